package kcp

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/subtle"

	"github.com/emmansun/gmsm/sm4"
	"golang.org/x/crypto/blowfish"
	"golang.org/x/crypto/cast5"
	"golang.org/x/crypto/salsa20"
	"golang.org/x/crypto/tea"
	"golang.org/x/crypto/twofish"
	"golang.org/x/crypto/xtea"
)

// BlockCrypt encrypts and decrypts packets. Programs may implement it: the
// first 16 bytes of what is encrypted are a random nonce, the next 4 a CRC-32
// of the rest.
//
// A session calls Encrypt from one goroutine at a time, and Decrypt from one at
// a time. Sessions of several sockets call both at once. The ciphers of this
// package are safe for concurrent use.
type BlockCrypt interface {
	// Encrypt encrypts src into dst, which may be the same memory. Both may
	// have any length; dst is at least as long as src.
	Encrypt(dst, src []byte)

	// Decrypt decrypts src into dst, which may be the same memory.
	Decrypt(dst, src []byte)
}

// NewAESBlockCrypt returns AES in cipher feedback mode. The key has 16, 24 or
// 32 bytes.
func NewAESBlockCrypt(key []byte) (BlockCrypt, error) { return newCFB(aes.NewCipher(key)) }

// NewSM4BlockCrypt returns SM4 (GB/T 32907-2016) in cipher feedback mode. The
// key has 16 bytes.
func NewSM4BlockCrypt(key []byte) (BlockCrypt, error) { return newCFB(sm4.NewCipher(key)) }

// NewTwofishBlockCrypt returns Twofish in cipher feedback mode. The key has 16,
// 24 or 32 bytes.
func NewTwofishBlockCrypt(key []byte) (BlockCrypt, error) { return newCFB(twofish.NewCipher(key)) }

// NewTripleDESBlockCrypt returns triple DES in cipher feedback mode. The key
// has 24 bytes.
func NewTripleDESBlockCrypt(key []byte) (BlockCrypt, error) {
	return newCFB(des.NewTripleDESCipher(key))
}

// NewCast5BlockCrypt returns CAST-128 (RFC 2144) in cipher feedback mode. The
// key has 16 bytes.
func NewCast5BlockCrypt(key []byte) (BlockCrypt, error) { return newCFB(cast5.NewCipher(key)) }

// NewBlowfishBlockCrypt returns Blowfish in cipher feedback mode. The key has 1
// to 56 bytes.
func NewBlowfishBlockCrypt(key []byte) (BlockCrypt, error) { return newCFB(blowfish.NewCipher(key)) }

// teaRounds is kcp-go's, half of what TEA is specified with.
const teaRounds = 16

// NewTEABlockCrypt returns TEA with 16 rounds in cipher feedback mode. The key
// has 16 bytes.
func NewTEABlockCrypt(key []byte) (BlockCrypt, error) {
	return newCFB(tea.NewCipherWithRounds(key, teaRounds))
}

// NewXTEABlockCrypt returns XTEA in cipher feedback mode. The key has 16 bytes.
func NewXTEABlockCrypt(key []byte) (BlockCrypt, error) { return newCFB(xtea.NewCipher(key)) }

// NewSalsa20BlockCrypt returns Salsa20. The key has 32 bytes; a longer one is
// cut, a shorter one filled up with zeros. The first 8 bytes of what is
// encrypted stay clear: they are the nonce. The error is always nil.
func NewSalsa20BlockCrypt(key []byte) (BlockCrypt, error) {
	c := new(salsa)
	copy(c.key[:], key)
	return c, nil
}

// NewSimpleXORBlockCrypt returns a cipher that XORs with 1500 bytes made of key
// by PBKDF2. Further bytes stay clear. It protects nothing. It fails if the
// program forbids SHA-1, with GODEBUG=fips140=only.
func NewSimpleXORBlockCrypt(key []byte) (BlockCrypt, error) {
	table, err := pbkdf2.Key(sha1.New, string(key), []byte(xorSalt), xorRounds, maxPacket)
	if err != nil {
		return nil, err
	}
	return xorCrypt(table), nil
}

// NewNoneBlockCrypt returns a cipher that copies. The nonce and the CRC-32
// still travel. The error is always nil.
func NewNoneBlockCrypt(key []byte) (BlockCrypt, error) { return noneCrypt{}, nil }

// NewAESGCMCrypt returns AES-GCM, for which see NewAEADCrypt. The key has 16,
// 24 or 32 bytes.
func NewAESGCMCrypt(key []byte) (BlockCrypt, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return NewAEADCrypt(gcm), nil
}

// NewAEADCrypt returns a cipher that seals packets with aead, which must be
// safe for concurrent use. The nonce is random and travels in front; there is
// no additional data, and no CRC-32. With a nil aead it returns nil, which
// means no encryption.
//
// Its methods Encrypt and Decrypt panic: only sessions can use it. Nothing
// counts the packets. With nonces of 12 bytes a key should be replaced after
// 2^32 packets (NIST SP 800-38D §8.3).
func NewAEADCrypt(aead cipher.AEAD) BlockCrypt {
	if aead == nil {
		return nil
	}
	return &aeadCrypt{aead}
}

// aeadCrypt marks an AEAD among the BlockCrypts.
type aeadCrypt struct{ aead cipher.AEAD }

func (*aeadCrypt) Encrypt(dst, src []byte) { panic("kcp: Encrypt of an AEAD") }
func (*aeadCrypt) Decrypt(dst, src []byte) { panic("kcp: Decrypt of an AEAD") }

// What kcp-go stretches the key of NewSimpleXORBlockCrypt with.
const (
	xorSalt   = "sH3CIVoF#rWLtJo6"
	xorRounds = 32
)

// salsaNonce is how many bytes in front stay clear.
const salsaNonce = 8

type salsa struct{ key [32]byte }

func (s *salsa) Encrypt(dst, src []byte) {
	if len(src) < salsaNonce {
		return
	}
	copy(dst[:salsaNonce], src)
	salsa20.XORKeyStream(dst[salsaNonce:len(src)], src[salsaNonce:], src[:salsaNonce], &s.key)
}

func (s *salsa) Decrypt(dst, src []byte) { s.Encrypt(dst, src) }

type xorCrypt []byte

func (x xorCrypt) Encrypt(dst, src []byte) {
	n := subtle.XORBytes(dst, src, x)
	copy(dst[n:], src[n:])
}

func (x xorCrypt) Decrypt(dst, src []byte) { x.Encrypt(dst, src) }

type noneCrypt struct{}

func (noneCrypt) Encrypt(dst, src []byte) { copy(dst, src) }
func (noneCrypt) Decrypt(dst, src []byte) { copy(dst, src) }
