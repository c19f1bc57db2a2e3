package streams

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Streams are opened by any", "4096", maxRefusals},
		{"| All streams of a session together", "32 KiB", mostCreditNeeded},
		{"| Credit of a stream", "64 KiB", InitialCredit},
		{"| Credit of a stream", "16ths", creditParts},
		{"| Dynamic right-sizing", "16 MiB", MaxGrowth},
		{"| No segment of a stream", "16 early", advanceSteps},
		{"| What streams hold is counted", "128 bytes", SegmentCost},
		{"| What streams hold is counted", "128 bytes", messageBytesHeld + fragmentBytesHeld},
		{"| What streams hold is counted", "768 each", BytesHeld},
	})
}
