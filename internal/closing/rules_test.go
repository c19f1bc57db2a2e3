package closing

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The figures of RULES.md are those of the code.
func TestRuleFigures(t *testing.T) {
	t.Parallel()
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Close: CLOSE", "30 s", Background},
		{"| A reason", "256 bytes", MaxReasonText},
		{"| A socket outlives", "7 s", DialledHold},
		{"| A socket outlives", "4 RTO", holdRTOs},
		{"| A socket outlives", "0.2 to 3 s", minHold},
		{"| A socket outlives", "to 3 s", MaxHold},
		{"| A socket outlives", "1.5 s", lossyHold},
	})
}
