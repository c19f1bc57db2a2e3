package admission

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Cookie, valid for", "10 to 20 s", CookieTime},
		{"| Half-open limits", "oldest 16", looks},
		{"| Legacy peers with an AEAD", "32768", maxConvs},
		{"| TIME-WAIT (RFC 9293", "60 s", TimeWait},
		{"| TIME-WAIT (RFC 9293", "8192 entries", MaxTimeWaits},
	})
}
