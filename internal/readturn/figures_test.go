package readturn

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| A blocked call", "1 ms", Grace},
		{"| A blocked call", "2 come", fewCalls},
		{"| A blocked call", "64 stop", maxStops},
		{"| The turn of a blocked call", "8 ms", MaxGrace},
		{"| The turn of a blocked call", "16 calls", manyCalls},
		{"| The turn of a blocked call", "4 packets", burstPackets},
		{"| Sockets of NewEndpoint", "1 to 100 ms", Soon},
		{"| Sockets of NewEndpoint", "100 ms", Late},
	})
}
