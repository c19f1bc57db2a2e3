package streams

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// fill has a reader take rate bytes a millisecond out of a buffer that grows from
// size to limit, for a second, and returns its size then.
func fill(size, limit, rate int, rtt time.Duration) int {
	var m BufferMeter
	for now := range time.Duration(1000) {
		taken := min(rate, size/max(int(rtt.Milliseconds()), 1)) // what the buffer allows
		if m.Read(taken, size, now*time.Millisecond, rtt) && size < limit {
			size *= 2
		}
	}
	return size
}

// A buffer grows until it does not limit the sender.
func TestBufferFollowsThePath(t *testing.T) {
	const limit = 1 << 30
	rtt := 10 * time.Millisecond
	for rate := 1 << 10; rate <= 1<<16; rate *= 2 {
		size := fill(1<<16, limit, rate, rtt)
		require.GreaterOrEqual(t, size, min(rate*10, limit), "one round trip")
		require.LessOrEqual(t, size, max(1<<16, 8*rate*10), "not much more")
	}
	require.Equal(t, 1<<16, fill(1<<16, limit, 1<<20, 0), "the round-trip time is not known")
	require.Equal(t, 1<<16, fill(1<<16, limit, 0, time.Hour), "nothing is read")
}

// A pause of the reader counts: the sender had time for more.
func TestPausesCount(t *testing.T) {
	var m BufferMeter
	require.False(t, m.Read(49, 100, 0, time.Second))
	require.False(t, m.Read(1, 100, 2*time.Second+1, time.Second))
	require.False(t, m.Read(49, 100, 3*time.Second, time.Second))
	require.True(t, m.Read(1, 100, 5*time.Second, time.Second))
}

// While a segment is missing, half a buffer in use is enough for it to grow, once for
// each half that was read.
func TestEarly(t *testing.T) {
	var m BufferMeter
	require.False(t, m.Early(100, 100), "nothing was read")
	require.False(t, m.Read(49, 100, 0, time.Second))
	require.False(t, m.Early(100, 100))
	require.False(t, m.Read(1, 100, time.Hour, time.Second), "too slowly")
	require.False(t, m.Early(50, 100), "not half of it is in use")
	require.True(t, m.Early(51, 100))
	require.False(t, m.Early(200, 200))
	require.True(t, m.Read(100, 200, time.Hour, time.Second))
	require.False(t, m.Early(400, 400), "it was doubled just now")
}

// The constants of the package are the figures that RULES.md says.
func TestRightSizingFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Dynamic right-sizing", "2 round trips", trips},
	})
}
