package neterr

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Read errors", "8 in a row", ManyFailures},
		{"| Sockets of NewEndpoint", "5 s", LastingErrors},
		{"| Sockets of NewEndpoint", "64 in a row", manyTimeouts},
		{"| Sockets of NewEndpoint", "20 ms", timeoutGap},
	})
}

// From the eighth error in a row on a reader pauses, for longer each time. Errors that
// are not of the system end the socket after five seconds.
func TestErrorsInARow(t *testing.T) {
	odd := errors.New("odd")
	for name, test := range map[string]struct {
		err  error
		last bool
	}{"odd": {odd, true}, "of the system": {syscall.ECONNREFUSED, false}, "a time-out": {os.ErrDeadlineExceeded, false}} {
		var f Failures
		now := time.Hour
		for i := range 20 {
			pause, last := f.Failed(test.err, now)
			require.False(t, last)
			require.Equal(t, i >= 7, f.Many())
			switch {
			case i < 7:
				require.Zero(t, pause)
			default:
				require.Equal(t, min(time.Millisecond<<(i-7), 100*time.Millisecond), pause, "%s %d", name, i)
			}
		}
		_, last := f.Failed(test.err, now+5*time.Second-1)
		require.False(t, last)
		_, last = f.Failed(test.err, now+5*time.Second)
		require.Equal(t, test.last, last, name)
	}
}

// Time-outs count as errors if nobody has asked for them, and 64 come within 20 ms each.
func TestTimeoutsInARow(t *testing.T) {
	for _, test := range []struct {
		asked bool
		gap   time.Duration
		ends  bool
	}{{true, 0, false}, {false, 0, true}, {false, 19 * time.Millisecond, true}, {false, 21 * time.Millisecond, false}} {
		var f Failures
		goesOn := true
		for i := range 64 {
			require.True(t, goesOn, "%d", i)
			goesOn = f.TimedOut(test.asked, time.Hour+time.Duration(i+1)*test.gap)
		}
		require.Equal(t, !test.ends, goesOn, "%+v", test)
	}
}
