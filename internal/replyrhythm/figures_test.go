package replyrhythm

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| An ACK waits", "100 ms", MaxHold * time.Millisecond},
		{"| An ACK waits", "16 replies", FirstReplies},
		{"| An ACK waits", "250 after", Streak},
		{"| An ACK waits", "32 does", Sampled},
	})
}
