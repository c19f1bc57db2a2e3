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
		{"Copies in the short form, sent", "2 of each", Least},
		{"Copies in the short form, sent", "400 segments", LongMemory},
		{"Copies in the short form, sent", "28 bytes", Saved},
		{"Copies in the short form, taken", "32 in a segment", Most},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"- A segment has at most", "32 copies", Most},
		{"The next packet carries a redundant copy", "256 bytes", MaxSize},
		{"The next packet carries a redundant copy", "400 segments", LongMemory},
	})
}
