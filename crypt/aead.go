package crypt

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/crypto/chacha20poly1305"
)

// AEAD returns a Cipher that seals packets with a, which must be safe for
// concurrent use: nonce | a.Seal(plaintext), with a random nonce of
// a.NonceSize() bytes and no additional data. It is kcp-go's NewAEADCrypt.
//
// It protects the content of each packet from being read and from being
// changed: what was not sealed with the key does not open. It does not protect
// from packets being replayed, nor from conclusions drawn of their sizes and
// times, nor the past when the key becomes known; see the package documentation.
//
// How many packets it seals before it returns [ErrKeyExhausted] depends on the
// size of the nonce: 2^31 for 12 bytes and more, less for fewer (2^15 for 8),
// and without limit for 24 and more. An AEAD with a NonceSize of 0 is taken for
// one that draws 12 random bytes of its own, such as
// [cipher.NewGCMWithRandomNonce], whose packets are the same as of [AESGCM].
func AEAD(a cipher.AEAD) Cipher {
	return &aead{
		aead:  a,
		head:  a.NonceSize(),
		tail:  a.Overhead(),
		limit: sealLimit(a.NonceSize()),
	}
}

type aead struct {
	aead       cipher.AEAD
	head, tail int
	limit      uint64 // packets that may be sealed; unlimited is not counted
	nonces     nonceSource
	sealed     atomic.Uint64
}

const unlimited = math.MaxUint64

// sealLimit returns how many packets one of two ends may seal with random
// nonces of n bytes, so that any two of both ends' are equal with a probability
// of 2^-33 at most. Nonces of less than 5 bytes are not good for that.
func sealLimit(n int) uint64 {
	switch {
	case n >= chacha20poly1305.NonceSizeX:
		return unlimited
	case n >= 12 || n == 0:
		return 1 << 31
	default:
		return 1 << max(0, 4*n-17)
	}
}

func (a *aead) Overhead() (head, tail int) { return a.head, a.tail }
func (a *aead) Authenticated() bool        { return true }

func (a *aead) Remaining() uint64 {
	if a.limit == unlimited {
		return unlimited
	}
	return a.limit - min(a.limit, a.sealed.Load())
}

func (a *aead) Seal(packet []byte) error {
	if err := a.count(packet); err != nil {
		return err
	}
	a.nonces.fill(packet[:a.head])
	return a.seal(packet, a.content(packet))
}

func (a *aead) SealFrom(packet, plaintext []byte) error {
	if err := a.count(packet); err != nil {
		return err
	}
	a.nonces.fill(packet[:a.head])
	return a.seal(packet, plaintext)
}

// content returns the place of the plaintext in a packet.
func (a *aead) content(packet []byte) []byte { return packet[a.head : len(packet)-a.tail] }

func (a *aead) NonceSize() int { return a.head }

func (a *aead) SealNonce(packet []byte) error {
	if len(packet) < a.head+a.tail {
		return ErrShort
	}
	return a.SealNonceFrom(packet, a.content(packet))
}

func (a *aead) SealNonceFrom(packet, plaintext []byte) error {
	if a.head == 0 {
		return errNoNonce
	}
	if err := a.count(packet); err != nil {
		return err
	}
	return a.seal(packet, plaintext)
}

// count counts a packet that is to be sealed. It does so before, so that the
// limit holds however many goroutines are at it. The counter cannot come around:
// that would take centuries of refusals.
func (a *aead) count(packet []byte) error {
	if len(packet) < a.head+a.tail {
		return ErrShort
	}
	if a.limit != unlimited && a.sealed.Add(1) > a.limit {
		return ErrKeyExhausted
	}
	return nil
}

// errAEAD is for AEADs of other packages, and guards against sending a packet
// in the clear.
var errAEAD = errors.New("crypt: AEAD does not add as much as its Overhead")

// seal is SealFrom with the nonce in place.
func (a *aead) seal(packet, plaintext []byte) error {
	if len(packet) != a.head+len(plaintext)+a.tail {
		return ErrShort
	}
	out := a.aead.Seal(packet[:a.head:len(packet)], packet[:a.head], plaintext, nil)
	if len(out) != len(packet) {
		return errAEAD
	}
	if len(out) > 0 && &out[0] != &packet[0] { // append may have moved it
		copy(packet, out)
	}
	return nil
}

func (a *aead) Open(packet []byte) ([]byte, error) {
	if len(packet) < a.head+a.tail {
		return nil, ErrShort
	}
	nonce, sealed := packet[:a.head], packet[a.head:len(packet):len(packet)]
	out, err := a.aead.Open(sealed[:0], nonce, sealed, nil)
	if err != nil {
		return nil, ErrAuth
	}
	if len(out) > 0 && &out[0] != &sealed[0] {
		out = sealed[:copy(sealed, out)]
	}
	return out, nil
}

// AESGCM returns the [AEAD] AES-GCM, kcp-go's NewAESGCMCrypt. A key of 16, 24 or
// 32 random bytes selects AES-128, AES-192 or AES-256. It adds 28 bytes to a
// packet.
//
// It is the fastest choice if Go uses AES instructions: on amd64, arm64,
// ppc64le and s390x. Elsewhere it is slow and its timing depends on the key; use
// ChaCha20-Poly1305 there. A key is good for 2^32 packets of both ends
// together; see the package documentation.
//
// In programs run with GODEBUG=fips140=only nonces come from the FIPS module
// itself, by [cipher.NewGCMWithRandomNonce]. Packets look alike.
func AESGCM(key []byte) (Cipher, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, &keySizeError{"AES-GCM", "16, 24 or 32", len(key), err}
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil && fips140.Enabled() {
		gcm, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		return nil, fmt.Errorf("crypt: AES-GCM: %w", err)
	}
	return AEAD(gcm), nil
}

// ChaCha20Poly1305 returns the [AEAD] ChaCha20-Poly1305 of RFC 8439, with a key
// of 32 random bytes. It adds 28 bytes to a packet. Peers with kcp-go need
// NewAEADCrypt for it.
//
// It is fast on every processor, and its timing does not depend on the key. Its
// nonces have the length of AES-GCM's and repeat as soon, so a key is good for
// 2^32 packets of both ends together, too; see the package documentation.
func ChaCha20Poly1305(key []byte) (Cipher, error) {
	if len(key) != chacha20poly1305.KeySize {
		return nil, &keySizeError{"ChaCha20-Poly1305", "32", len(key), nil}
	}
	a, err := chacha20poly1305.New(key)
	if err != nil {
		return nil, fmt.Errorf("crypt: ChaCha20-Poly1305: %w", err)
	}
	return AEAD(a), nil
}

// XChaCha20Poly1305 returns the [AEAD] XChaCha20-Poly1305, with a key of 32
// random bytes. It adds 40 bytes to a packet. Peers with kcp-go need
// NewAEADCrypt for it.
//
// It is ChaCha20-Poly1305 with nonces of 24 bytes. Random ones do not repeat in
// practice, whatever the number of packets, clients and restarts, so it is the
// choice for a key that is used by many or for long.
func XChaCha20Poly1305(key []byte) (Cipher, error) {
	if len(key) != chacha20poly1305.KeySize {
		return nil, &keySizeError{"XChaCha20-Poly1305", "32", len(key), nil}
	}
	a, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, fmt.Errorf("crypt: XChaCha20-Poly1305: %w", err)
	}
	return AEAD(a), nil
}
