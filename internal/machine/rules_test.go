package machine

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/wire"
)

const Millis = time.Millisecond

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", machineFigures())
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"A zero window is probed after", "5 s to 120 s", probeWaitInitial * Millis},
		{"A zero window is probed after", "120 s", probeWaitMax * Millis},
		{"What is received is kept up to", "256 KiB", legacyBytes},
	})
}

// machineFigures are those of the state machine.
func machineFigures() []rulebook.Figure {
	const ( // rules
		rto      = "| RTO (RFC"
		window   = "| Reordering window"
		lost     = "| What is lost"
		outage   = "| Outage"
		probe    = "| Zero-window probe"
		pieces   = "| Pieces of segments"
		requests = "| Requests: while"
	)
	return []rulebook.Figure{
		{rto, "30 ms", rtoNoDelay * Millis},
		{rto, "100", rtoMin},
		{rto, "60 s", MaxRTO * Millis},
		{rto, "200 ms", rtoInitial * Millis},
		{probe, "200 ms", zeroWindowProbeWait * Millis},
		{"| Messages: whole", "127 fragments", MaxFragments},
		{"| Fast retransmit", "5 transmissions", DefaultFastLimit},
		{pieces, "1 MiB", maxAssembly},
		{pieces, "2 s", assemblyTime * Millis},
		{pieces, "4 RTO", assemblyRTOs},
		{requests, "16 signals", wire.MaxSignals},
		{"| Data is taken", "4096 segments", sessionReach},
		{"| Data is taken", "16 x", reachGrowth},
		{"| Data is taken", "64 if unvalidated", unvalidatedReach},
	}
}
