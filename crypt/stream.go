package crypt

import (
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/subtle"

	"golang.org/x/crypto/salsa20"
)

// Salsa20 returns kcp-go's salsa20, with a key of 32 random bytes:
// nonce 16 | CRC-32 of the plaintext 4 | plaintext, where the first 8 bytes
// stay clear and are the nonce of the key stream that the rest is XORed with. It
// adds 20 bytes to a packet. kcp-go takes keys of other lengths; it cuts them or
// fills them up with zeros.
//
// It hides the content from those who only listen, for a while: with 8 bytes,
// random nonces repeat. Among 2^24 packets under one key, of both ends together,
// two have the same nonce with a probability of 1 in 2^17, among 2^32 with 2 in
// 5; the XOR of their contents is then known. Nothing counts the packets.
//
// It does not authenticate. Without the key anybody on the way can flip any
// bits of the content and set the CRC right, and knows what comes out if they
// know what was there. Nor does it notice packets that are replayed. Use it
// with peers that have nothing better. As with [CFB], package kcp finds that once
// a session with a peer of its own is open.
func Salsa20(key []byte) (Cipher, error) {
	s := new(salsa)
	if len(key) != len(s.key) {
		return nil, &keySizeError{"Salsa20", "32", len(key), nil}
	}
	copy(s.key[:], key)
	return &checked{scrambler: s, hides: true}, nil
}

type salsa struct{ key [32]byte }

// salsaNonce is how much of the packet's nonce is the cipher's, and stays clear.
const salsaNonce = 8

func (s *salsa) encrypt(p []byte) {
	salsa20.XORKeyStream(p[salsaNonce:], p[salsaNonce:], p[:salsaNonce], &s.key)
}

func (s *salsa) decrypt(p []byte) { s.encrypt(p) }

// What kcp-go stretches the key of XOR with.
const (
	xorSalt   = "sH3CIVoF#rWLtJo6"
	xorRounds = 32
	xorLength = 1500
)

// XOR returns kcp-go's xor: nonce 16 | CRC-32 of the plaintext 4 | plaintext,
// XORed with 1500 bytes made of key with PBKDF2; further bytes stay clear. It
// adds 20 bytes to a packet.
//
// It gives no security at all. The bytes are the same for every packet, so that
// one packet with known content opens all others up to its length, and two with
// unknown content nearly so. At best it keeps middle boxes from recognising the
// protocol. The CRC finds damage. The key may have any length; none is a key too, the
// same for everybody, as in kcp-go.
//
// It panics in programs run with GODEBUG=fips140=only, which forbids SHA-1.
func XOR(key []byte) Cipher {
	table, err := pbkdf2.Key(sha1.New, string(key), []byte(xorSalt), xorRounds, xorLength)
	if err != nil {
		panic("crypt: XOR: " + err.Error())
	}
	return &checked{scrambler: xor(table)}
}

type xor []byte

func (x xor) encrypt(p []byte) { subtle.XORBytes(p, p, x) }
func (x xor) decrypt(p []byte) { subtle.XORBytes(p, p, x) }

// None returns kcp-go's none: nonce 16 | CRC-32 of the plaintext 4 | plaintext,
// all of it clear. It adds 20 bytes to a packet.
//
// It gives no security at all. The CRC finds damage that the checksum of UDP has
// missed.
func None() Cipher {
	return &checked{scrambler: plain{}}
}

type plain struct{}

func (plain) encrypt([]byte) {}
func (plain) decrypt([]byte) {}
