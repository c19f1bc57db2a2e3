package tunnel

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/lobby"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Tunnel: a hello", "10 s", openDeadline},
		{"| Tunnel: a hello", "64 KiB", maxHello},
		{"| Tunnel's lobby", "256 sessions", maxUnknown},
		{"| Tunnel's lobby", "32 of one network", maxUnknownEach},
		{"| Tunnel's lobby", "10 records", lobby.Records},
		{"| Lock-out", "5 attempts", guardAttempts},
		{"| Lock-out", "60 s", guardWindow},
		{"| Lock-out", "50 attempts", guardNetwork},
		{"| Lock-out", "24 h", guardMemory},
		{"| Lock-out", "65536", guardEntries},
		{"| A user has", "256 dials", maxDials},
		{"| Passwords", "72 bytes", maxHashed},
		{"| Pool", "3 s", carrier.Unanswered},
		{"| Tunnel's UDP", "64 packets", flowQueue},
		{"| Tunnel's UDP", "1536", maxFlows},
		{"| Tunnel's UDP", "256 flows", maxEnding},
		{"| Tunnel's UDP", "lasts 30 s", unansweredTimeout},
		{"| Figures of", "32 remotes", maxRemotes},
		{"| Figures of", "3 records", saidAtOnce},
		{"| Figures of", "20 s", saidEvery},
		{"| A remote goes", "3 s", aliveWait},
		{"| TCP is tried", "1 s", tcpAfter},
		{"| Each direction", "2 s", probeInterval},
	})
}
