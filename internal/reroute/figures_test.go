package reroute

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The figures of RULES.md are those of the code.
func TestRuleFigures(t *testing.T) {
	t.Parallel()
	const when, next, again = "| A dialled socket has its route looked at", "| A dialled socket is looked at again", "| It is connected again"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{when, "300 ms", patience},
		{when, "1 s", longPatience},
		{when, "500 ms", listening},
		{next, "every 250 ms", every},
		{next, "5 s", while},
		{next, "every 500 ms", everyLater},
		{next, "each 500 ms", idle},
		{again, "3 looks", confirmations},
	})
}
