package recovery

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Reordering window", "srtt/4", windowFraction},
		{"| Reordering window", "3 times", maxMult},
		{"| Reordering window", "6 more", leastSpurious},
		{"| Reordering window", "12 at most", mostSpurious},
		{"| Reordering window", "16 round trips", persistRounds},
		{"| Spurious retransmission", "8 segments", memory},
		{"| Tail of what", "16 in flight", MostOverdue},
		{"| Tail of what", "5 ms", overdueMargin * time.Millisecond},
		{"| Tail of what", "8 oldest", OverdueReach},
		{"| What is lost", "2 segments", Growth},
		{"| What is lost", "4 a round trip", First},
		{"| What is lost", "64 in reserve", Saved},
		{"| Outage", "16 segments", OutageFirst},
		{"| Outage", "2 for each one", OutageGrowth},
		{"| Copies of a retransmission", "2, in packets", SpareCopies},
		{"| Copies of a retransmission", "1/2 of cwnd", 1. / SpareShare},
	})
}
