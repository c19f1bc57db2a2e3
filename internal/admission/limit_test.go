package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// As many as fit into a second come at once, but one at least, and then one each time.
func TestLogLimit(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Millisecond, 250 * time.Millisecond, time.Second, 10 * time.Second} {
		var l Limit
		now := time.Hour
		allowed := func() (n int) {
			for range 1000 {
				if _, ok := l.Allow(now, every); ok {
					n++
				}
			}
			return n
		}
		burst := int(max(time.Second/every, 1))
		require.Equal(t, burst, allowed(), every)
		now += every - 1
		require.Zero(t, allowed(), every)
		now++
		left, ok := l.Allow(now, every)
		require.True(t, ok)
		require.Equal(t, uint64(2000-burst), left, every)
		require.Zero(t, allowed(), every)
		now += time.Hour
		require.Equal(t, burst, allowed(), every)
	}
}
