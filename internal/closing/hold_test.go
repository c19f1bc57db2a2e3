package closing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A socket answers for four time-outs, within bounds that losses raise.
func TestAnswerFor(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		rto   time.Duration
		lossy bool
		want  time.Duration
	}{{0, false, 200 * ms}, {50 * ms, false, 200 * ms}, {100 * ms, false, 400 * ms}, {time.Minute, false, 3 * time.Second},
		{0, true, 1500 * ms}, {375 * ms, true, 1500 * ms}, {500 * ms, true, 2 * time.Second}, {time.Minute, true, 3 * time.Second}} {
		require.Equal(t, test.want, AnswerFor(test.rto, test.lossy), "%+v", test)
	}
}
