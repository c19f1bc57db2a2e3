package pacing

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Pacing", "2 ms", burstTime * time.Microsecond},
		{"| Pacing", "10 packets", idleBurst},
		{"| Pacing", "1400 bytes", packetSize},
		{"| Pacing", "10 ms", catchUp * time.Microsecond},
		{"| Pacing", "200 ms", debtTime * time.Microsecond},
		{"| Where bursts are lost", "1.2 ms", strictTime * time.Microsecond},
		{"| Cap of the rate", "10 ms", catchUp * time.Microsecond},
		{"| Cap of the rate", "200 ms", debtTime * time.Microsecond},
		{"| Cap of the rate", "1400 bytes", packetSize},
		{"| Cap of the rate", "1 ms apart", leastCapWait},
		{"| Cap of the rate", "above 1000000", fineCap},
		{"| At the cap datagrams wait", "100 ms", heldTime},
		{"| At the cap datagrams wait", "256 of them", MaxHeld},
		{"| At the cap parity waits", "256 packets", MaxHeld},
		{"| With a cap the write buffer", "1 s", cappedTime},
		{"| With a cap the write buffer", "64 KiB", LeastWriteBuffer},
	})
}
