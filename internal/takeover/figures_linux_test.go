package takeover

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	const takeover, forwarding = "| Socket takeover", "| Forwarding"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{takeover, "4 s", Timeout},
		{takeover, "1 s", PauseTimeout},
		{takeover, "10 µs", noteTime},
		{forwarding, "64 datagrams", maxDatagrams},
		{forwarding, "32 KiB", maxMessage},
		{forwarding, "4 MiB", pipeBuffer},
		{forwarding, "1048576 sessions", MaxOwned},
	})
}
