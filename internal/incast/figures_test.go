package incast

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Incast: once the socket's", "10/16", high16 / 16.},
		{"| Incast: once the socket's", "7/16", low16 / 16.},
		{"| Incast: once the socket's", "20 ms", stepTime},
		{"| Incast: once the socket's", "500 ms", Epoch},
		{"| Incast: once the socket's", "16 segments", Least},
		{"| Incast: if shares", "4 to 64 full", turnLeast},
		{"| Incast: if shares", "64 full", turnMost},
		{"| Incast: if shares", "100 ms", Epoch / turnCycle},
		{"| Incast: if shares", "25 ms", turnLimit},
		{"| Incast: if shares", "3 times", turnDrains},
		{"| Incast: if shares", "16 segments", Least},
		{"| Incast: if shares", "500 ms", Epoch},
	})
}
