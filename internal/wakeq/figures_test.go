package wakeq

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Lack of processor time", "10 s", LagTime},
		{"| Lack of processor time: for", "90 s", probeFor},
		{"| Lack of processor time: for", "100 ms", probeEvery},
		{"| Wake queues", "16", mostQueues},
	})
}
