package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Samples at their extremes.
func TestRTTSamples(t *testing.T) {
	c := new(Conn)
	c.measured(0, 0)
	c.measured(-time.Second, 0)
	require.Zero(t, c.rtt)
	require.Equal(t, 7*time.Millisecond, c.rtt.current(7))
	c.measured(1, 0)
	require.Equal(t, time.Microsecond, c.rtt.current(7))
	require.NotZero(t, c.rtt.at, "there was a sample")
	c.measured(time.Duration(1<<63-1), time.Hour)
	require.Equal(t, time.Duration((7+1<<32-1)/8)*time.Microsecond, c.rtt.current(7))
	require.EqualValues(t, 1, c.rtt.least)
}
