package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// When a session looks: some hundred milliseconds after the last sign of life, and then
// again and again, ever less often.
func TestWhenToLook(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ quiet, rto, looked, want time.Duration }{
		{10 * time.Second, 30 * time.Millisecond, 0, 10*time.Second + leastPatience},
		{10 * time.Second, 30 * time.Millisecond, 9 * time.Second, 10*time.Second + leastPatience},
		{10 * time.Second, 700 * time.Millisecond, 0, 10*time.Second + 700*time.Millisecond},
		{10 * time.Second, 5 * time.Second, 0, 11 * time.Second},
		{10 * time.Second, 0, 10*time.Second + 200*time.Millisecond, 10*time.Second + 450*time.Millisecond},
		{10 * time.Second, 0, 12 * time.Second, 12*time.Second + lookEvery},
		{10 * time.Second, 0, 15 * time.Second, 15*time.Second + lookLater},
		{10 * time.Second, 0, 30 * time.Second, 30*time.Second + lookLater},
	} {
		require.Equal(t, tc.want, nextLook(tc.quiet, patience(tc.rto), tc.looked), "%+v", tc)
	}
	looks := 0
	for at := nextLook(0, patience(0), 0); at < 30*time.Second; at = nextLook(0, patience(0), at) {
		looks++
	}
	require.Equal(t, 69, looks, "in a silence of PeerTimeout")

	require.Equal(t, 11*time.Second, lookAfter(10*time.Second, time.Second, 0))
	require.Equal(t, 11*time.Second, lookAfter(10*time.Second, 9500*time.Millisecond, 10*time.Second))
	require.Zero(t, lookAfter(10*time.Second, 9501*time.Millisecond, 0), "an answer")
	require.Zero(t, lookAfter(10*time.Second, time.Second, 11*time.Second), "once")
	require.Zero(t, lookAfter(0, 0, 0), "no data")
}
