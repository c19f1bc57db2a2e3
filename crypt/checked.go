package crypt

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	nonceSize  = 16
	crcSize    = 4
	headerSize = nonceSize + crcSize
)

// A scrambler turns whole packets, header included, into what travels and back,
// in place. Packets hold headerSize bytes at least.
type scrambler interface {
	encrypt(packet []byte)
	decrypt(packet []byte)
}

// checked is the layout that all ciphers but AEADs share: a random nonce, the
// CRC-32 of the plaintext, and the plaintext, scrambled as a whole. The nonce
// serves no purpose after decryption and is not covered by the CRC.
type checked struct {
	scrambler
	nonces nonceSource
	hides  bool // it keeps the content from being read
}

func (c *checked) Overhead() (head, tail int) { return headerSize, 0 }

func (c *checked) Seal(packet []byte) error {
	if len(packet) < headerSize {
		return ErrShort
	}
	c.nonces.fill(packet[:nonceSize])
	c.seal(packet)
	return nil
}

// NonceSize returns 0 for what hides nothing: a code in the nonce would be
// anybody's.
func (c *checked) NonceSize() int {
	if !c.hides {
		return 0
	}
	return nonceSize
}

func (c *checked) SealNonce(packet []byte) error {
	switch {
	case !c.hides:
		return errNoNonce
	case len(packet) < headerSize:
		return ErrShort
	}
	c.seal(packet)
	return nil
}

// seal is Seal with the nonce in place.
func (c *checked) seal(packet []byte) {
	crc := crc32.ChecksumIEEE(packet[headerSize:])
	binary.LittleEndian.PutUint32(packet[nonceSize:], crc)
	c.encrypt(packet)
}

func (c *checked) Open(packet []byte) ([]byte, error) {
	if len(packet) < headerSize {
		return nil, ErrShort
	}
	c.decrypt(packet)
	plaintext := packet[headerSize:]
	if crc32.ChecksumIEEE(plaintext) != binary.LittleEndian.Uint32(packet[nonceSize:]) {
		return nil, ErrAuth
	}
	return plaintext, nil
}
