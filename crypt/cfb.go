package crypt

import (
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// initialVector returns the constant that every packet of kcp-go starts from.
// Ciphers with blocks of 8 bytes use the first half.
func initialVector() []byte {
	return []byte{
		0xa7, 0x73, 0x4f, 0x9c, 0x12, 0xac, 0x1b, 0x01,
		0xa4, 0x15, 0xf2, 0xc1, 0xfc, 0x78, 0xe6, 0x6b,
	}
}

// CFB returns a Cipher for one of kcp-go's block ciphers:
// nonce 16 | CRC-32 of the plaintext 4 | plaintext, all of it encrypted with
// block in cipher feedback mode. It adds 20 bytes to a packet. It panics if the
// blocks of block have neither 8 nor 16 bytes.
//
//	kcp-go       block
//	aes-…        aes.NewCipher(key of 16, 24 or 32 bytes)
//	3des         des.NewTripleDESCipher(key of 24 bytes)
//	blowfish     blowfish.NewCipher(key), of golang.org/x/crypto as the next four
//	cast5        cast5.NewCipher(key of 16 bytes)
//	tea          tea.NewCipherWithRounds(key of 16 bytes, 16)
//	twofish      twofish.NewCipher(key of 16, 24 or 32 bytes)
//	xtea         xtea.NewCipher(key of 16 bytes)
//	sm4          any implementation
//
// It hides the content from those who only listen, as far as the block cipher
// goes. The constant initial vector does no harm, because the random nonce in
// front takes its place. With blocks of 8 bytes, though, two equal blocks of
// ciphertext give away the XOR of two blocks of content, and they turn up: in
// 1 GiB under one key with a probability of 1 in 2000, in 32 GiB with 2 in 5.
//
// It does not authenticate. The CRC finds what happens by chance, not what is
// done on purpose: without the key, and without knowing the content, anybody on
// the way can flip chosen bits of the last block of a packet so that the CRC
// remains right, and make up random packets until one in 2^32 passes. Nor does
// it notice packets that are replayed. Use it with peers that have nothing
// better. Package kcp derives keys from it and changes over to an AEAD, once a session
// with a peer of its own is open.
//
// block must be safe for concurrent use, as the ciphers of the standard library and
// golang.org/x/crypto are; see [Locked] for one that is not.
func CFB(block cipher.Block) Cipher {
	if block == nil {
		panic("crypt: CFB: nil cipher.Block")
	}
	size := block.BlockSize()
	if size != 8 && size != 16 {
		panic(fmt.Sprintf("crypt: CFB needs a cipher with blocks of 8 or 16 bytes, not %d", size))
	}
	mask := make([]byte, size)
	block.Encrypt(mask, initialVector()[:size])
	if size == 8 {
		return &checked{scrambler: &cfb8{cfb{block, mask}}, hides: true}
	}
	return &checked{scrambler: &cfb16{cfb{block, mask}}, hides: true}
}

// cfb is cipher feedback of whole blocks: each block of plaintext is XORed with
// the encryption of the block of ciphertext before it.
//
// It needs no memory besides the packet, where a buffer that is passed through
// an interface would have to come from the heap: a block is moved to registers,
// the cipher writes to where it was, and the two are XORed there.
type cfb struct {
	block cipher.Block
	mask  []byte // the encryption of the initial vector, which never changes
}

// tail does the bytes behind the last whole block, the same in both directions.
// last is that block's ciphertext.
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

// cfb8 is for ciphers with blocks of 8 bytes.
type cfb8 struct{ cfb }

func (c *cfb8) encrypt(p []byte) {
	subtle.XORBytes(p, p, c.mask)
	last := p[:8]
	p = p[8:]
	for len(p) >= 8 {
		b := p[:8]
		w := binary.NativeEndian.Uint64(b)
		c.block.Encrypt(b, last)
		binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)^w)
		last, p = b, p[8:]
	}
	c.tail(last, p)
}

// decrypt goes from the end to the front, because each block needs the
// ciphertext of the one before it. Nothing in it waits for the block before, so
// the processor works on several at once.
func (c *cfb8) decrypt(p []byte) {
	n := len(p) &^ 7
	c.tail(p[n-8:n], p[n:])
	for i := n - 16; i >= 0; i -= 8 {
		last, b := p[i:i+8], p[i+8:i+16]
		w := binary.NativeEndian.Uint64(b)
		c.block.Encrypt(b, last)
		binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)^w)
	}
	subtle.XORBytes(p, p, c.mask)
}

// cfb16 is for ciphers with blocks of 16 bytes.
type cfb16 struct{ cfb }

// encrypt uses XORBytes, which stores 16 bytes at once: the next block's
// encryption reads them at once, and would wait longer for two halves.
func (c *cfb16) encrypt(p []byte) {
	subtle.XORBytes(p, p, c.mask)
	last := p[:16]
	p = p[16:]
	for len(p) >= 16 {
		b := p[:16]
		w := [16]byte(b)
		c.block.Encrypt(b, last)
		subtle.XORBytes(b, b, w[:])
		last, p = b, p[16:]
	}
	c.tail(last, p)
}

// decrypt is like cfb8's. Nothing reads what it stores, so two halves are
// faster than a call here.
func (c *cfb16) decrypt(p []byte) {
	n := len(p) &^ 15
	c.tail(p[n-16:n], p[n:])
	for i := n - 32; i >= 0; i -= 16 {
		last, b := p[i:i+16], p[i+16:i+32]
		w0, w1 := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])
		c.block.Encrypt(b, last)
		binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)^w0)
		binary.NativeEndian.PutUint64(b[8:], binary.NativeEndian.Uint64(b[8:])^w1)
	}
	subtle.XORBytes(p, p, c.mask)
}
