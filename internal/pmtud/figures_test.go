package pmtud

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| DPLPMTUD: the search", "64 full segments", SearchAfter},
		{"| DPLPMTUD: the search", "20 bytes", Step},
		{"| DPLPMTUD: the search", "3 lost probes", maxProbes},
		{"| DPLPMTUD: the search", "10 in silence", maxUnheard},
		{"| DPLPMTUD: the search", "10 min", RaiseAfter},
		{"| DPLPMTUD: probes on the wire", "200 ms", minWait},
		{"| DPLPMTUD: probes on the wire", "2 s", MaxWait},
		{"| Black hole detection", "1200 bytes", Base},
		{"| Black holes on the way", "15 s", doubtTime},
		{"| What cannot be smaller", "548 bytes", Floor},
		{"| Black hole detection", "1 s", minTrust},
		{"| Black hole detection", "8 s", maxTrust},
	})
}
