package copies

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	const small = "Redundant copies of small segments"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{small, "256 bytes", MaxSize},
		{small, "newest 16", Reach},
		{small, "28 for IPv4", PacketOverhead},
		{small, "48 segments", Memory},
		{small, "28 bytes", Saved},
		{small, "1024 in reserve", burst},
		{"A redundant copy of each small", "4 segments", RetransmitsReach},
	})
}
