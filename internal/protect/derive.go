package protect

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"hash"

	"golang.org/x/crypto/chacha20poly1305"
)

// Labels of HKDF-Expand-Label (RFC 8446 §7.1). They differ from QUIC's, so that
// no secret has the same keys in both protocols.
const (
	labelKey    = "kcp key"
	labelIV     = "kcp iv"
	labelUpdate = "kcp ku"
)

// suite is what a cipher suite of TLS 1.3 consists of.
type suite struct {
	hash    func() hash.Hash
	size    int // of a secret, in bytes
	keySize int // bytes
	aead    func(key []byte) (cipher.AEAD, error)
	own     func(key []byte) (cipher.AEAD, error) // draws nonces of its own; nil: there is none
}

// newSuite returns the cipher suite with that number.
func newSuite(id uint16) (*suite, error) {
	switch id {
	case tls.TLS_AES_128_GCM_SHA256:
		return &suite{sha256.New, sha256.Size, 16, newGCM, newOwnGCM}, nil
	case tls.TLS_AES_256_GCM_SHA384:
		return &suite{sha512.New384, sha512.Size384, 32, newGCM, newOwnGCM}, nil
	case tls.TLS_CHACHA20_POLY1305_SHA256:
		return &suite{sha256.New, sha256.Size, chacha20poly1305.KeySize, chacha20poly1305.New, nil}, nil
	}
	return nil, fmt.Errorf("protect: unknown cipher suite %#04x", id)
}

// newGCM returns AES-GCM.
func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// newOwnGCM returns AES-GCM with random nonces, which it puts in front.
func newOwnGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// OwnNonces reports whether packets have to be sealed with random nonces, which
// they then carry. They have to in programs run with GODEBUG=fips140=only: there
// a nonce has to come from the FIPS 140-3 module itself (NIST SP 800-38D §8.2.2,
// FIPS 140-3 IG C.H), and its AES-GCM takes none to seal with. What others have
// sealed it opens with any nonce.
func OwnNonces() bool {
	if !fips140.Enabled() {
		return false
	}
	_, err := newGCM(make([]byte, 16))
	return err != nil
}

// newKey derives the keys of a secret of TLS.
func newKey(id uint16, secret []byte, own bool) (key, error) {
	s, err := newSuite(id)
	if err != nil {
		return key{}, err
	}
	if len(secret) != s.size {
		return key{}, fmt.Errorf("protect: a secret of %d bytes, not %d", len(secret), s.size)
	}
	return derive(id, append([]byte(nil), secret...), own)
}

// derive makes the keys of a secret, which it keeps.
func derive(id uint16, secret []byte, own bool) (k key, err error) {
	s, err := newSuite(id)
	if err != nil {
		return key{}, err
	}
	k.suite, k.secret, k.own = id, secret, own
	build := s.aead
	if own {
		build = s.own
	}
	if build == nil {
		return key{}, fmt.Errorf("protect: cipher suite %#04x has no nonces of its own", id)
	}
	raw, err := s.expand(secret, labelKey, nil, s.keySize)
	if err != nil {
		return key{}, err
	}
	iv, err := s.expand(secret, labelIV, nil, NonceSize)
	if err != nil {
		return key{}, err
	}
	copy(k.iv[:], iv)
	if k.aead, err = build(raw); err != nil {
		return key{}, err
	}
	return k, nil
}

// following returns the keys of the next generation (key update, RFC 9001 §6.1).
func (k *key) following() (key, error) {
	s, err := newSuite(k.suite)
	if err != nil {
		return key{}, err
	}
	secret, err := s.expand(k.secret, labelUpdate, nil, s.size)
	if err != nil {
		return key{}, err
	}
	return derive(k.suite, secret, k.own)
}

// expand is HKDF-Expand-Label (RFC 8446 §7.1).
func (s *suite) expand(secret []byte, label string, context []byte, n int) ([]byte, error) {
	const prefix = "tls13 "
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(info, byte(len(prefix)+len(label)))
	info = append(info, prefix+label...)
	info = append(append(info, byte(len(context))), context...)
	return hkdf.Expand(s.hash, secret, string(info), n)
}
