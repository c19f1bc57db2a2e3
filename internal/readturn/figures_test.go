package readturn

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| A blocked call reads the socket", "1 ms", Grace},
		{"| Sockets of NewEndpoint", "1 to 100 ms", Soon},
		{"| Sockets of NewEndpoint", "100 ms", Late},
	})
}
