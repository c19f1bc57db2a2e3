package admission

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Cookie, valid for", "10 to 20 s", CookieTime},
		{"| Legacy peers with an AEAD", "32768", maxConvs},
		{"| TIME-WAIT", "60 s", TimeWait},
		{"| TIME-WAIT", "8192 entries", MaxTimeWaits},
		{"| Replies outside a session", "2000 a second", ReplyRate},
		{"| Replies outside a session", "10 000 cookies", CookieRate},
		{"| Stateless reset", "10 000 a second", ResetRate},
	})
}
