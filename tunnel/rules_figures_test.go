package tunnel

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Tunnel: a stream's opening", "10 s", openDeadline},
		{"| Tunnel: a hello has", "64 KiB", maxHello},
		{"| Tunnel, its lobby", "256 sessions", maxUnknown},
		{"| Tunnel, its lobby", "32 of one network", maxUnknownEach},
		{"| Tunnel, its lobby", "10 records", strangerRecords},
		{"| Tunnel, lock-out", "5 attempts", guardAttempts},
		{"| Tunnel, its pool", "3 s", unanswered},
		{"| Tunnel, flows of UDP", "64 packets", flowQueue},
		{"| Tunnel: a connection that takes", "2 s", probeInterval},
	})
}
