package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Datagrams leave first until they are a packet ahead of data, and are never more than
// two ahead, so that both get half of the rate.
func TestShaperSharesTheRate(t *testing.T) {
	s := NewShaper(28, 1000)
	s.SetRate(1_000_000, 0)
	now, datagrams, data := int64(1), 0, 0
	for range 1000 {
		now += 1100
		if s.DatagramsFirst() && s.Pass(1000, true, now) {
			datagrams++
			continue
		}
		if s.Ready(now, 0) {
			s.Sent(972, true)
			data++
		}
	}
	require.InDelta(t, datagrams, data, 2)
	require.Greater(t, datagrams, 400)
	for range 10 {
		now += 1_000_000
		require.True(t, s.Pass(1000, true, now))
	}
	require.False(t, s.DatagramsFirst())
	s.Sent(972, true)
	require.False(t, s.DatagramsFirst(), "two packets ahead")
	s.Sent(972, true)
	require.True(t, s.DatagramsFirst())
}

// What does not wait borrows, and its overhead counts.
func TestShaperBorrows(t *testing.T) {
	s := NewShaper(500, 1000)
	s.SetRate(10_000, 0)
	s.Sent(500, false)
	require.True(t, s.Ready(1, 0))
	s.Sent(500, true)
	require.False(t, s.Ready(1, 0))
	require.Greater(t, s.Wait(1), int64(100_000), "1000 bytes, and half of it pays the debt")
	require.False(t, s.Pass(1, true, 1))
	var none *Shaper
	none.Charge(1)
	require.True(t, none.Pass(1, true, 1))
}
