package flowtable

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Tunnel's UDP", "3 s", Grace},
		{"| Tunnel's UDP", "idle for 30 s", Dormant},
	})
}
