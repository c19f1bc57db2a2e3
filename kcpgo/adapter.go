package kcp

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"

	"github.com/arqnet/kcp/crypt"
)

// The layout of packets that are not sealed by an AEAD:
// nonce 16 | CRC-32 of the content 4 | content, all of it encrypted.
const (
	nonceSize   = 16
	checkedSize = nonceSize + 4
)

// newCipher returns what the engine needs of block; nil for no encryption.
//
// The ciphers do not implement crypt's Authenticated: sessions tell peers apart
// by address alone, and conversation ids are the program's, so a packet that
// opens must not move a session. Nor do they count packets (see NewAEADCrypt).
func newCipher(block BlockCrypt) crypt.Cipher {
	switch b := block.(type) {
	case nil:
		return nil
	case *aeadCrypt:
		return &sealedPackets{aeadCrypt: b, head: b.aead.NonceSize(), tail: b.aead.Overhead()}
	case *cfb, *salsa, xorCrypt, noneCrypt:
		return &checkedPackets{block: b}
	}
	return &lockedPackets{checkedPackets: checkedPackets{block: block}}
}

// checkedPackets encrypts with a cipher that is safe for concurrent use.
type checkedPackets struct{ block BlockCrypt }

// Overhead implements crypt.Cipher.
func (c *checkedPackets) Overhead() (head, tail int) { return checkedSize, 0 }

// Seal implements crypt.Cipher.
func (c *checkedPackets) Seal(p []byte) error {
	if err := c.prepare(p); err != nil {
		return err
	}
	c.block.Encrypt(p, p)
	return nil
}

// prepare writes the header.
func (c *checkedPackets) prepare(p []byte) error {
	if len(p) < checkedSize {
		return crypt.ErrShort
	}
	fillRand(p[:nonceSize])
	binary.LittleEndian.PutUint32(p[nonceSize:], crc32.ChecksumIEEE(p[checkedSize:]))
	return nil
}

// Open implements crypt.Cipher.
func (c *checkedPackets) Open(p []byte) ([]byte, error) {
	if len(p) < checkedSize {
		return nil, crypt.ErrShort
	}
	c.block.Decrypt(p, p)
	return c.check(p)
}

// check returns the content of a decrypted packet.
func (c *checkedPackets) check(p []byte) ([]byte, error) {
	content := p[checkedSize:]
	if crc32.ChecksumIEEE(content) != binary.LittleEndian.Uint32(p[nonceSize:]) {
		return nil, crypt.ErrAuth
	}
	return content, nil
}

// lockedPackets is checkedPackets for a cipher of the program. A dialled session
// of kcp-go encrypts on one goroutine and decrypts on another, so a program may
// rely on that.
type lockedPackets struct {
	checkedPackets
	encrypting, decrypting sync.Mutex
}

// Seal implements crypt.Cipher.
func (c *lockedPackets) Seal(p []byte) error {
	if err := c.prepare(p); err != nil {
		return err
	}
	c.encrypting.Lock()
	defer c.encrypting.Unlock()
	c.block.Encrypt(p, p)
	return nil
}

// Open implements crypt.Cipher.
func (c *lockedPackets) Open(p []byte) ([]byte, error) {
	if len(p) < checkedSize {
		return nil, crypt.ErrShort
	}
	c.decrypt(p)
	return c.check(p)
}

func (c *lockedPackets) decrypt(p []byte) {
	c.decrypting.Lock()
	defer c.decrypting.Unlock()
	c.block.Decrypt(p, p)
}

// sealedPackets seals with an AEAD: nonce | sealed content.
type sealedPackets struct {
	*aeadCrypt
	head, tail int // bytes that the AEAD adds; never change
}

// errMisfit guards against an AEAD that adds less or more than it says.
var errMisfit = errors.New("kcp: AEAD does not add as much as its Overhead")

// Overhead implements crypt.Cipher.
func (c *sealedPackets) Overhead() (head, tail int) { return c.head, c.tail }

// Seal implements crypt.Cipher.
func (c *sealedPackets) Seal(p []byte) error {
	if len(p) < c.head+c.tail {
		return crypt.ErrShort
	}
	fillRand(p[:c.head])
	content := p[c.head : len(p)-c.tail]
	out := c.aead.Seal(p[:c.head:len(p)], p[:c.head], content, nil)
	if len(out) != len(p) {
		return errMisfit
	}
	if len(out) > 0 && &out[0] != &p[0] { // it has another buffer
		copy(p, out)
	}
	return nil
}

// Open implements crypt.Cipher.
func (c *sealedPackets) Open(p []byte) ([]byte, error) {
	if len(p) < c.head+c.tail {
		return nil, crypt.ErrShort
	}
	sealed := p[c.head:len(p):len(p)]
	out, err := c.aead.Open(sealed[:0], p[:c.head], sealed, nil)
	if err != nil {
		return nil, crypt.ErrAuth
	}
	if len(out) > 0 && &out[0] != &sealed[0] {
		out = sealed[:copy(sealed, out)]
	}
	return out, nil
}
