package kcp

import (
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
)

// initialVector is what every packet of kcp-go starts from; ciphers with blocks
// of 8 bytes use the first half. The random nonce in front of a packet takes the
// part that an initial vector has elsewhere.
var initialVector = [16]byte{
	0xa7, 0x73, 0x4f, 0x9c, 0x12, 0xac, 0x1b, 0x01,
	0xa4, 0x15, 0xf2, 0xc1, 0xfc, 0x78, 0xe6, 0x6b,
}

// cfb is cipher feedback (NIST SP 800-38A §6.3) of whole blocks. It has no
// state, and needs no memory besides the packet's: the cipher writes its
// output over the block of plaintext, which has been moved to registers.
type cfb struct {
	block cipher.Block
	size  int      // of a block in bytes: 8 or 16
	mask  [16]byte // the encryption of the initial vector
}

// newCFB returns block in cipher feedback mode, or err.
func newCFB(block cipher.Block, err error) (BlockCrypt, error) {
	if err != nil {
		return nil, err
	}
	c := &cfb{block: block, size: block.BlockSize()}
	block.Encrypt(c.mask[:c.size], initialVector[:c.size])
	return c, nil
}

// Encrypt implements BlockCrypt.
func (c *cfb) Encrypt(dst, src []byte) {
	copy(dst, src)
	p := dst[:len(src)]
	subtle.XORBytes(p, p, c.mask[:c.size])
	if len(p) <= c.size {
		return
	}
	last := p[:c.size]
	for p = p[c.size:]; len(p) >= c.size; p = p[c.size:] {
		b := p[:c.size]
		if c.size == 8 {
			c.step8(last, b)
		} else {
			w := [16]byte(b)
			c.block.Encrypt(b, last)
			subtle.XORBytes(b, b, w[:]) // the next block reads all 16 bytes at once
		}
		last = b
	}
	c.tail(last, p)
}

// Decrypt implements BlockCrypt. It goes from the end to the front: each block
// needs the ciphertext of the one before it, which is then still in place.
func (c *cfb) Decrypt(dst, src []byte) {
	copy(dst, src)
	p := dst[:len(src)]
	if whole := len(p) / c.size * c.size; whole > 0 {
		c.tail(p[whole-c.size:whole], p[whole:])
		if c.size == 8 {
			for i := whole - 8; i > 0; i -= 8 {
				c.step8(p[i-8:i], p[i:i+8])
			}
		} else {
			c.decrypt16(p[:whole])
		}
	}
	subtle.XORBytes(p, p, c.mask[:c.size])
}

// step8 XORs b, a block of 8 bytes, with the encryption of last.
func (c *cfb) step8(last, b []byte) {
	w := binary.NativeEndian.Uint64(b)
	c.block.Encrypt(b, last)
	binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)^w)
}

// decrypt16 XORs all blocks of 16 bytes but the first with the encryption of
// the one before. No block waits for another, so the processor works on several
// at once.
func (c *cfb) decrypt16(p []byte) {
	for i := len(p) - 16; i > 0; i -= 16 {
		last, b := p[i-16:i], p[i:i+16]
		low, high := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
		c.block.Encrypt(b, last)
		binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)^low)
		binary.NativeEndian.PutUint64(b[8:], binary.NativeEndian.Uint64(b[8:])^high)
	}
}

// tail XORs the bytes behind the last whole block, whose ciphertext is last,
// with its encryption.
func (c *cfb) tail(last, rest []byte) {
	if len(rest) == 0 {
		return
	}
	var saved [16]byte
	copy(saved[:], last)
	c.block.Encrypt(last, last)
	subtle.XORBytes(rest, rest, last)
	copy(last, saved[:])
}
