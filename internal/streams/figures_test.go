package streams

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Streams of the peer beyond", "4096", maxRefusals},
		{"| All streams", "32 KiB", mostCreditNeeded},
		{"| Credit of a stream", "64 KiB", InitialCredit},
		{"| Credit of a stream", "16ths", creditParts},
		{"| Dynamic right-sizing", "16 MiB", MaxGrowth},
		{"| No segment of a stream", "16 early", advanceSteps},
		{"| What streams hold", "128 bytes", SegmentCost},
		{"| What streams hold", "128 bytes", messageBytesHeld + fragmentBytesHeld},
		{"| What streams hold", "768 bytes", BytesHeld},
	})
}
