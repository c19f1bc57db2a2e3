package kcp

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"testing"

	"github.com/arqnet/kcp/crypt"
)

// TestAdapters seals what the engine's own ciphers open, and opens what they
// seal.
func TestAdapters(t *testing.T) {
	key := make([]byte, 32)
	block, err := aes.NewCipher(key)
	must(t, err)
	gcm, err := cipher.NewGCM(block)
	must(t, err)
	cfbBlock, err := NewAESBlockCrypt(key)
	must(t, err)
	salsaBlock, _ := NewSalsa20BlockCrypt(key)
	salsa, err := crypt.Salsa20(key)
	must(t, err)
	none, _ := NewNoneBlockCrypt(nil)
	for name, c := range map[string]struct{ here, engine crypt.Cipher }{
		"aes":        {newCipher(cfbBlock), crypt.CFB(block)},
		"salsa20":    {newCipher(salsaBlock), salsa},
		"none":       {newCipher(none), crypt.None()},
		"gcm":        {newCipher(NewAEADCrypt(gcm)), crypt.AEAD(gcm)},
		"of its own": {newCipher(struct{ BlockCrypt }{cfbBlock}), crypt.CFB(block)},
	} {
		head, tail := c.here.Overhead()
		for _, pair := range [][2]crypt.Cipher{{c.here, c.engine}, {c.engine, c.here}} {
			for _, n := range []int{0, 1, 24, 1400} {
				p := make([]byte, head+n+tail)
				for i := range n {
					p[head+i] = byte(i)
				}
				if err := pair[0].Seal(p); err != nil {
					t.Fatal(name, err)
				}
				content, err := pair[1].Open(p)
				if err != nil || len(content) != n {
					t.Fatal(name, n, len(content), err)
				}
				for i := range n {
					if content[i] != byte(i) {
						t.Fatal(name, "other content")
					}
				}
			}
		}
		one, two := make([]byte, 100), make([]byte, 100)
		wrong(t, c.here.Seal(one) != nil || c.here.Seal(two) != nil || bytes.Equal(one, two), name, "seals the same content twice with one nonce")
		wrong(t, crypt.Authenticated(c.here), name, "says that it authenticates")
		if _, err := c.here.Open(make([]byte, head+tail-1+boolInt(head+tail == 0))); err == nil {
			t.Error(name, "opens a packet that is too short")
		}
		wrong(t, c.here.Seal(make([]byte, max(head+tail-1, 0))) == nil, name, "seals into too little")
		p := make([]byte, 100)
		if _, err := c.here.Open(p); err == nil {
			t.Error(name, "opens zeros")
		}
	}
	wrong(t, newCipher(nil) != nil, "nil is a cipher")
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
