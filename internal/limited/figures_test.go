package limited

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{{"| What limits: ", "2 round trips", rounds}})
}
