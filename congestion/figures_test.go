package congestion

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| BBR (draft-ietf-ccwg-bbr)", "2.77", bbrStartupPace},
		{"| BBR (draft-ietf-ccwg-bbr)", "3 rounds", bbrFullRounds},
		{"| BBR (draft-ietf-ccwg-bbr)", "1.25 x", bbrFullGrowth},
		{"| BBR (draft-ietf-ccwg-bbr)", "8 segments", bbrFullLost},
		{"| BBR (draft-ietf-ccwg-bbr)", "0.5", bbrDrainPace},
		{"| BBR (draft-ietf-ccwg-bbr)", "1.25", bbrUpPace},
		{"| BBR (draft-ietf-ccwg-bbr)", "1/24", bbrGrowth},
		{"| BBR (draft-ietf-ccwg-bbr)", "0.85", bbrHeadroom},
		{"| BBR (draft-ietf-ccwg-bbr)", "10 s", bbrMinRTTWindow * time.Microsecond},
		{"| BBR (draft-ietf-ccwg-bbr)", "4 segments", bbrMinCwnd},
		{"| Startup ends by losses only", "36 %", bbrStartupLossMost},
		{"| Startup ends by losses only", "2 %", bbrLossThreshold},
		{"| Startup ends by losses only", "64 segments", bbrStartupFew},
		{"| Startup ends by losses only", "10 %", bbrStartupLossy},
		{"| CUBIC (RFC 9438)", "0.4", cubicC},
		{"| CUBIC (RFC 9438)", "0.7", cubicBeta},
		{"| CUBIC (RFC 9438)", "10 segments", initialWindow},
		{"| CUBIC (RFC 9438)", "2 at least", minimalWindow},
		{"| CUBIC (RFC 9438)", "srtt/8", hystartThresholdPart},
		{"| CUBIC (RFC 9438)", "4 to 16 ms", hystartMinThreshold * time.Microsecond},
		{"| CUBIC (RFC 9438)", "16 ms", hystartMaxThreshold * time.Microsecond},
		{"| CUBIC (RFC 9438)", "8 samples", hystartSamples},
		{"| CUBIC (RFC 9438)", "5 rounds", hystartRounds},
		{"| Pacing: bursts", "64 KiB", bbrBurst},
		{"| Pacing: bursts", "512 µs", bbrBurstHalves * time.Microsecond},
		{"| Pacing: bursts", "1/16 s", time.Second / bbrBurstShare},
		{"| The reference's congestion control", "2 first", ssthreshInitial},
		{"| The reference's congestion control", "ssthresh 2", ssthreshMin},
	})
}
