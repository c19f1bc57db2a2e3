package flowtable

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Tunnel, flows of UDP: a user", "3 s", Grace},
		{"| Tunnel, flows of UDP: a user", "30 s", Dormant},
	})
}
