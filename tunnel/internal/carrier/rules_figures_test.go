package carrier

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| TCP is tried", "4 MiB", window},
		{"| TCP is tried", "64 pings", pingBurst},
	})
}
