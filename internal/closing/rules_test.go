package closing

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The figures of RULES.md are those of the code.
func TestRuleFigures(t *testing.T) {
	t.Parallel()
	rulebook.Check(t, "RULES.md", []rulebook.Figure{{"| Close: CLOSE;", "30 s", Background}})
}
