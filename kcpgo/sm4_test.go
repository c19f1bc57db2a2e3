package kcp

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// TestSM4 has the example of GB/T 32907-2016, appendix A.1.
func TestSM4(t *testing.T) {
	key, _ := hex.DecodeString("0123456789abcdeffedcba9876543210")
	want, _ := hex.DecodeString("681edf34d206965e86b3e94f536e4246")
	c, err := newSM4(key)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, sm4BlockSize)
	c.Encrypt(got, key)
	if !bytes.Equal(got, want) {
		t.Fatalf("%x, want %x", got, want)
	}
	if c.Decrypt(got, got); !bytes.Equal(got, key) {
		t.Errorf("does not decrypt: %x", got)
	}
}

// TestSM4Million encrypts a block over and over, appendix A.2 of the standard.
// It takes a second; -short leaves it out.
func TestSM4Million(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	b, _ := hex.DecodeString("0123456789abcdeffedcba9876543210")
	c, err := newSM4(b)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000000 {
		c.Encrypt(b, b)
	}
	if got := hex.EncodeToString(b); got != "595298c7c6fd271f0402f804c33d3f66" {
		t.Error(got)
	}
}
