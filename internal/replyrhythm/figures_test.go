package replyrhythm

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| An ACK waits for the application's", "100 ms", MaxHold * time.Millisecond},
		{"| An ACK waits for the application's", "16 of them", FirstReplies},
		{"| An ACK waits for the application's", "250 after", Streak},
		{"| An ACK waits for the application's", "32 does", Sampled},
	})
}
