package congestion

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| BBR", "2.77", bbrStartupPace},
		{"| BBR", "3 rounds", bbrFullRounds},
		{"| BBR", "1.25 x", bbrFullGrowth},
		{"| BBR", "8 segments", bbrFullLost},
		{"| BBR", "0.5", bbrDrainPace},
		{"| BBR: Drain", "1.25", bbrUpPace},
		{"| BBR", "1/24", bbrGrowth},
		{"| BBR", "0.85", bbrHeadroom},
		{"| BBR", "10 s", bbrMinRTTWindow * time.Microsecond},
		{"| BBR", "4 segments", bbrMinCwnd},
		{"| Startup", "36 %", bbrStartupLossMost},
		{"| Startup ends by losses only", "2 %", bbrLossThreshold},
		{"| Startup: what was lost", "20 %", bbrLossMost},
		{"| Startup", "64 segments", bbrStartupFew},
		{"| Startup", "10 %", bbrStartupLossy},
		{"| CUBIC", "0.4", cubicC},
		{"| CUBIC", "0.7", cubicBeta},
		{"| CUBIC", "10 segments", initialWindow},
		{"| CUBIC", "2 at least", minimalWindow},
		{"| CUBIC", "srtt/8", hystartThresholdPart},
		{"| CUBIC", "4 to 16 ms", hystartMinThreshold * time.Microsecond},
		{"| CUBIC", "16 ms", hystartMaxThreshold * time.Microsecond},
		{"| CUBIC", "8 samples", hystartSamples},
		{"| CUBIC", "5 rounds", hystartRounds},
		{"| Pacing", "64 KiB", bbrBurst},
		{"| Pacing", "512 µs", bbrBurstHalves * time.Microsecond},
		{"| Pacing", "1/16 s", time.Second / bbrBurstShare},
		{"| The reference's congestion control", "2 first", ssthreshInitial},
		{"| The reference's congestion control", "ssthresh 2", ssthreshMin},
	})
}
