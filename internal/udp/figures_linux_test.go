package udp

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Lack of processor time", "1 s after", delayedFor},
		{"| Lack of processor time", "5 ms", delayedBy},
		{"| Lack of processor time", "16 KiB", shortCall},
		{"| Bursts", "32 KiB", BurstLeast},
		{"| Bursts", "512 KiB", burstMost},
	})
}
