package incast

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Incast: once the socket's", "10/16", high16 / 16.},
		{"| Incast, its budget", "7/16", low16 / 16.},
		{"| Incast, its budget", "20 ms", stepTime},
		{"| Incast, its shares", "500 ms", Epoch},
		{"| Incast, standing queue", "170 µs", standingTime},
		{"| Incast, standing queue", "128 KiB", standingLeast},
		{"| Incast: who has sent", "16 segments", Least},
		{"| Incast: if shares", "4 to 64 full", turnLeast},
		{"| Incast: if shares", "64 full", turnMost},
		{"| Incast: if shares", "100 ms", Epoch / turnCycle},
		{"| Incast, its turns", "25 ms", turnLimit},
		{"| Incast, its turns", "3 times", turnDrains},
		{"| Incast, its turns", "16 segments", Least},
		{"| Incast, its turns", "500 ms", Epoch},
	})
}
