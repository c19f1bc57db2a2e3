package crypt

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that WIRE.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"| block ciphers, full-block CFB |", "nonce 16", nonceSize},
		{"| block ciphers, full-block CFB |", "what follows, 4", crcSize},
		{"| block ciphers, full-block CFB |", "nonce 16", headerSize - crcSize},
	})
}
