package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// Behind a token bucket with a queue of two packets at most three of ten that pass are
// dropped besides, from the start of a flow, and few later. All of the rate is used.
func TestQueueOfTwo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rate   int64
		bucket int
		first  time.Duration
	}{{125_000, 2000, 3400 * time.Millisecond}, {2_500_000, 3000, time.Second}} {
		c := newCourse(t, congestion.NewBBR(), test.rate, 100*time.Microsecond, 1, 0)
		c.now = time.Millisecond // what is lost of time 0 does not count
		c.cfg.Bucket, c.cfg.Queue = test.bucket, 3000
		c.forward, c.back = netsim.NewLink(c.cfg, 1), netsim.NewLink(netsim.LinkConfig{Delay: c.cfg.Delay}, 2)
		c.run(test.first)
		start := c.forward.Stats()
		require.LessOrEqual(t, float64(start.Overflow.Packets), 0.3*float64(start.Delivered.Packets), "%d bytes a second", test.rate)
		goodput := c.run(test.first + 5*time.Second)
		end := c.forward.Stats()
		require.LessOrEqual(t, float64(end.Overflow.Packets-start.Overflow.Packets), 0.1*float64(end.Delivered.Packets-start.Delivered.Packets))
		require.Greater(t, goodput, 0.9*float64(test.rate))
	}
}

// A path that loses a fifth each way is no queue of few packets, however short it is.
func TestShortPathOfRandomLoss(t *testing.T) {
	t.Parallel()
	long(t)
	c := newCourse(t, congestion.NewBBR(), courseRate, 2*time.Millisecond, 20, 0.2)
	c.run(2 * time.Second)
	require.Greater(t, c.run(10*time.Second), 0.5*courseRate)
}
