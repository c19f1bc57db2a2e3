package crypt

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// Errors of Seal and Open; compare with errors.Is.
var (
	// ErrShort means that a packet is shorter than the overhead of its cipher.
	ErrShort = errors.New("crypt: packet shorter than the overhead of its cipher")
	// ErrAuth is returned by Open for a packet that fails its check: it was
	// sealed with another key or cipher, or changed on its way.
	ErrAuth = errors.New("crypt: packet fails its check")
	// ErrKeyExhausted is returned by Seal when a Cipher has sealed as many
	// packets as is safe under one key. It goes on to open packets. See [AEAD].
	ErrKeyExhausted = errors.New("crypt: key has sealed as many packets as is safe")

	errNoNonce = errors.New("crypt: the nonces of this cipher cannot be chosen")
)

// keySizeError is returned for a key of a size that its cipher does not take.
type keySizeError struct {
	cipher string
	sizes  string // sizes that it takes, in words
	size   int    // the key's
	err    error  // of the library; may be nil
}

func (e *keySizeError) Error() string {
	return fmt.Sprintf("crypt: %s takes a key of %s bytes, not %d", e.cipher, e.sizes, e.size)
}

func (e *keySizeError) Unwrap() error { return e.err }

// A Cipher protects packets. It works in the buffer of the packet, keeps no
// reference to it, and is safe for concurrent use: one Cipher serves all
// sessions of an endpoint.
//
// Other packages may implement it. If a Cipher has a method
// Authenticated() bool, [Authenticated] asks it, and if it has
// Remaining() uint64, [Remaining] does.
type Cipher interface {
	// Overhead returns how many bytes Seal adds in front of the plaintext and
	// behind it. It never changes.
	Overhead() (head, tail int)
	// Seal turns packet, in place, into what travels. The plaintext is
	// packet[head : len(packet)-tail]; the rest is overwritten. After an error
	// packet must not be sent: it may still be in the clear.
	Seal(packet []byte) error
	// Open checks and decrypts packet in place and returns the plaintext,
	// which is a part of packet. After an error, ErrShort or ErrAuth, the
	// content of packet is undefined.
	Open(packet []byte) (plaintext []byte, err error)
}

// A NonceCipher is a Cipher whose nonces the caller may choose. The nonce of a
// packet is packet[:NonceSize()], which has the same value after Open as before
// SealNonce. The ciphers made by [AEAD] are such, if the AEAD does not draw nonces
// itself, and so are those made by [CFB] and [Salsa20].
//
// Package kcp puts packet numbers into nonces of 12 to 32 bytes, between two ends
// of its own, so that no packet is taken twice or sent back. If the cipher does not
// authenticate, has nonces of 16 bytes and adds 20 to a packet, as kcp-go's do, it
// derives keys from what SealNonce makes of a constant, and changes over to an AEAD.
type NonceCipher interface {
	Cipher
	// NonceSize returns the length of the nonce; 0 if it cannot be chosen
	// after all.
	NonceSize() int
	// SealNonce is Seal with the nonce that the caller has put in its place.
	// There must never be two packets with the same nonce under one key. Nonces
	// of CFB must be unpredictable, and in nonces of Salsa20 the first 8 bytes
	// must differ.
	SealNonce(packet []byte) error
}

// A SealerFrom is a Cipher that seals a plaintext that is not in the packet, and
// leaves it as it is. The ciphers made by [AEAD] are such.
//
// Package kcp seals the segments that it may have to retransmit so, without a
// copy.
type SealerFrom interface {
	NonceCipher
	// SealFrom is Seal for a plaintext outside of the packet, whose length is
	// the packet's length less Overhead.
	SealFrom(packet, plaintext []byte) error
	// SealNonceFrom is SealFrom with the nonce that the caller has put in its
	// place, as for SealNonce.
	SealNonceFrom(packet, plaintext []byte) error
}

// Authenticated reports whether a packet that c opens can only have been sealed
// by a holder of the key. That is so of the ciphers made by [AEAD] and the
// functions based on it, and of no other in this package.
func Authenticated(c Cipher) bool {
	a, ok := c.(interface{ Authenticated() bool })
	return ok && a.Authenticated()
}

// Remaining returns how many packets c will still seal before it returns
// [ErrKeyExhausted], so that a key can be changed in time; math.MaxUint64 if
// c does not count.
func Remaining(c Cipher) uint64 {
	r, ok := c.(interface{ Remaining() uint64 })
	if !ok {
		return math.MaxUint64
	}
	return r.Remaining()
}

// Locked returns a Cipher that works like c and lets one goroutine at a time use
// it. The ciphers of this package need that only if the block cipher or AEAD
// they were given keeps working state of its own, as package sm4 of
// github.com/tjfoc/gmsm does:
//
//	block, err := sm4.NewCipher(key)
//	c := crypt.Locked(crypt.CFB(block))
func Locked(c Cipher) Cipher {
	if c == nil {
		panic("crypt: Locked: nil Cipher")
	}
	return &locked{c: c}
}

type locked struct {
	mu sync.Mutex
	c  Cipher
}

func (l *locked) Overhead() (head, tail int) { return l.c.Overhead() }
func (l *locked) Authenticated() bool        { return Authenticated(l.c) }
func (l *locked) Remaining() uint64          { return Remaining(l.c) }

func (l *locked) Seal(packet []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.Seal(packet)
}

func (l *locked) NonceSize() int {
	if n, ok := l.c.(NonceCipher); ok {
		return n.NonceSize()
	}
	return 0
}

func (l *locked) SealNonce(packet []byte) error {
	n, ok := l.c.(NonceCipher)
	if !ok {
		return errNoNonce
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.SealNonce(packet)
}

func (l *locked) Open(packet []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.Open(packet)
}
