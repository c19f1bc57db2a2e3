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
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	cfbBlock, err := NewAESBlockCrypt(key)
	if err != nil {
		t.Fatal(err)
	}
	salsaBlock, _ := NewSalsa20BlockCrypt(key)
	salsa, err := crypt.Salsa20(key)
	if err != nil {
		t.Fatal(err)
	}
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
		if c.here.Seal(one) != nil || c.here.Seal(two) != nil || bytes.Equal(one, two) {
			t.Error(name, "seals the same content twice with one nonce")
		}
		if crypt.Authenticated(c.here) {
			t.Error(name, "says that it authenticates")
		}
		if _, err := c.here.Open(make([]byte, head+tail-1+boolInt(head+tail == 0))); err == nil {
			t.Error(name, "opens a packet that is too short")
		}
		if c.here.Seal(make([]byte, max(head+tail-1, 0))) == nil {
			t.Error(name, "seals into too little")
		}
		p := make([]byte, 100)
		if _, err := c.here.Open(p); err == nil {
			t.Error(name, "opens zeros")
		}
	}
	if newCipher(nil) != nil {
		t.Error("nil is a cipher")
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func BenchmarkCFB(b *testing.B) {
	c, err := NewAESBlockCrypt(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	for name, s := range map[string]crypt.Cipher{"here": newCipher(c), "engine": crypt.CFB(block)} {
		p := make([]byte, 1400)
		b.Run(name+"/seal", func(b *testing.B) {
			b.SetBytes(1400)
			b.ReportAllocs()
			for b.Loop() {
				_ = s.Seal(p)
			}
		})
		b.Run(name+"/open", func(b *testing.B) {
			b.SetBytes(1400)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = s.Open(p)
			}
		})
	}
}
