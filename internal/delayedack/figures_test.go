package delayedack

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/replyrhythm"
	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Delayed ACK", "25 ms", MaxDelay * time.Millisecond},
		{"| Delayed ACK", "srtt/4", delayShare},
		{"| Delayed ACK", "2 ms", MinDelay * time.Millisecond},
		{"| Delayed ACK", "4 segments", manySegments},
		{"| Delayed ACK", "256 bytes", manyBytes},
		{"| Delayed ACK", "5 ms", soonDelay * time.Millisecond},
		{"| Delayed ACK", "srtt/16", SoonShare},
		{"| Delayed ACK", "4 full segments", FullSegments},
		{"| ACKs that are due", "25 ms", MaxDelay * time.Millisecond},
		{"| ACKs that are due", "100 ms", replyrhythm.MaxHold * time.Millisecond},
		{"| ACK at once at a gap", "3 packets", gapAcks},
		{"ACK repetition", "400 ACKs", repeatLength},
		{"ACK repetition", "4000 at most", repeatMost},
		{"ACK repetition", "10 ms", RepeatDelay * time.Millisecond},
	})
}
