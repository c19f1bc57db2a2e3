package takeover

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	const rule = "| Socket takeover, in"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{rule, "4 s", Timeout},
		{rule, "1 s", PauseTimeout},
		{rule, "10 µs", noteTime},
		{rule, "64 datagrams", maxDatagrams},
		{rule, "32 KiB", maxMessage},
		{rule, "4 MiB", pipeBuffer},
		{rule, "1048576 sessions", MaxOwned},
	})
}
