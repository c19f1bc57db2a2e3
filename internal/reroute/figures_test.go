package reroute

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The figures of RULES.md are those of the code.
func TestFigures(t *testing.T) {
	t.Parallel()
	const when, again = "| A dialled socket has its route looked at", "| It is connected again"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{when, "300 ms", patience},
		{when, "1 s", longPatience},
		{when, "500 ms", listening},
		{when, "every 250 ms", every},
		{when, "5 s", while},
		{when, "every 500 ms", everyLater},
		{when, "each 500 ms", idle},
		{again, "3 looks", confirmations},
	})
}
