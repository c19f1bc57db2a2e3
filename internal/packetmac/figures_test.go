package packetmac

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| A code of 12 bytes beside", "12 bytes", tagSize},
		{"| A code of 12 bytes beside", "12 bytes", NonceSize - 4},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"The content is all that follows the CRC", "2^62", int64(Numbers)},
	})
}
