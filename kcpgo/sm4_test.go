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
	must(t, err)
	got := make([]byte, sm4BlockSize)
	c.Encrypt(got, key)
	if !bytes.Equal(got, want) {
		t.Fatalf("%x, want %x", got, want)
	}
	if c.Decrypt(got, got); !bytes.Equal(got, key) {
		t.Errorf("does not decrypt: %x", got)
	}
}
