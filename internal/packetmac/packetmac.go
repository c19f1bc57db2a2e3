// Package packetmac authenticates packets, with their numbers, under ciphers
// that do not authenticate themselves. The number and a message authentication
// code take the place of the 16 bytes of nonce that such packets have in front,
// as in SIV modes (RFC 5297). So they take no room, and a receiver that does not
// know of them takes them for a nonce. WIRE.md §4.1 specifies the format.
package packetmac

import (
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"
)

const (
	// KeySize is the size of the keys, in bytes.
	KeySize = chacha20poly1305.KeySize
	// NonceSize is the size of the nonces that Mark makes, in bytes.
	NonceSize = tagSize + 4
	// tagSize is how many bytes of the authentication code travel. They come
	// first: ciphers with short nonces use the beginning, which must not repeat
	// in other sessions with the same key of the cipher.
	tagSize = 12
	// Numbers is how many packet numbers there are, from 0.
	Numbers = 1 << 62
)

// Key authenticates the packets of one direction of a session: by the tag of
// ChaCha20-Poly1305 (RFC 8439 §2.8) over additional data alone. All methods are
// safe for concurrent use.
type Key struct {
	mu    sync.Mutex // guards the fields below; aead is immutable
	aead  cipher.AEAD
	nonce [chacha20poly1305.NonceSize]byte
	tag   [chacha20poly1305.Overhead]byte
}

// New returns the Key made of key, which has KeySize bytes. It fails if the
// program may not use ChaCha20-Poly1305 (GODEBUG=fips140=only).
func New(key []byte) (*Key, error) {
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		return nil, err
	}
	return &Key{aead: aead}, nil
}

// Mark sets nonce, of NonceSize bytes, to a packet's. Each number below
// Numbers is good for one packet.
func (k *Key) Mark(nonce, content []byte, number uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	copy(nonce, k.tagOfLocked(content, number))
	binary.LittleEndian.PutUint32(nonce[tagSize:], uint32(number))
}

// Check reports whether Mark has made nonce for content and number. The caller
// takes number from Low. It refuses a nonce of another size.
func (k *Key) Check(nonce, content []byte, number uint64) bool {
	if len(nonce) != NonceSize || Low(nonce) != uint32(number) || number >= Numbers {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return subtle.ConstantTimeCompare(nonce[:tagSize], k.tagOfLocked(content, number)) == 1
}

// Low returns the lowest 32 bits of the packet number in a nonce; 0 if it has
// another size.
func Low(nonce []byte) uint32 {
	if len(nonce) != NonceSize {
		return 0
	}
	return binary.LittleEndian.Uint32(nonce[tagSize:])
}

// tagOfLocked returns the tag of a packet, as much of it as travels. It is valid
// until k.mu is released.
func (k *Key) tagOfLocked(content []byte, number uint64) []byte {
	binary.LittleEndian.PutUint64(k.nonce[len(k.nonce)-8:], number)
	return k.aead.Seal(k.tag[:0], k.nonce[:], nil, content)[:tagSize]
}
