package tunnel

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/tunnel/internal/lobby"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Tunnel: a stream's opening", "10 s", openDeadline},
		{"| Tunnel: a hello has", "64 KiB", maxHello},
		{"| Tunnel, its lobby", "256 sessions", maxUnknown},
		{"| Tunnel, its lobby", "32 of one network", maxUnknownEach},
		{"| Tunnel, its lobby", "10 records", lobby.Records},
		{"| Tunnel, lock-out: ", "5 attempts", guardAttempts},
		{"| Tunnel, lock-out: ", "60 s", guardWindow},
		{"| Tunnel, lock-out of a network", "50 attempts", guardNetwork},
		{"| Tunnel, lock-out of a network", "24 h", guardMemory},
		{"| Tunnel, lock-out of a network", "65536", guardEntries},
		{"| Tunnel, dialling", "256 dials", maxDials},
		{"| Tunnel: a password", "72 bytes", maxHashed},
		{"| Tunnel, its pool", "3 s", unanswered},
		{"| Tunnel, flows of UDP", "64 packets", flowQueue},
		{"| Tunnel, flows of UDP: a user", "1536", maxFlows},
		{"| Tunnel, flows of UDP: 256 more", "256", maxEnding},
		{"| Tunnel, flows of UDP: one without", "30 s", unansweredTimeout},
		{"| Tunnel: a remote of the server", "3 s", aliveWait},
		{"| Tunnel: a connection that takes", "2 s", probeInterval},
	})
}
