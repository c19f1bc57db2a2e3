package replay

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Anti-replay window", "1984", (words - 1) * 64},
		{"| Replay filter", "16384", tableSize},
	})
}
