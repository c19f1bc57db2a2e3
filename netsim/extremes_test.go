package netsim

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What nobody means is refused: more than maxDelay, maxRate and maxOverhead.
func TestValidateRefusesExtremes(t *testing.T) {
	for name, set := range map[string]struct {
		most int64
		set  func(*LinkConfig, int64)
	}{
		"Delay":          {int64(maxDelay), func(c *LinkConfig, n int64) { c.Delay = time.Duration(n) }},
		"Jitter":         {int64(maxDelay), func(c *LinkConfig, n int64) { c.Jitter = time.Duration(n) }},
		"CoDel.Target":   {int64(maxDelay), func(c *LinkConfig, n int64) { c.CoDel.Target = time.Duration(n) }},
		"CoDel.Interval": {int64(maxDelay), func(c *LinkConfig, n int64) { c.CoDel.Interval = time.Duration(n) }},
		"Rate":           {maxRate, func(c *LinkConfig, n int64) { c.Rate = n }},
		"Overhead":       {maxOverhead, func(c *LinkConfig, n int64) { c.Overhead = int(min(n, math.MaxInt)) }},
	} {
		var c LinkConfig
		set.set(&c, set.most)
		require.NoError(t, c.Validate(), name)
		for _, n := range []int64{set.most + 1, math.MaxInt64 - 1, math.MaxInt64} {
			set.set(&c, n)
			require.ErrorContains(t, c.Validate(), "LinkConfig."+name, "%d", n)
		}
	}
}

// With the largest settings, and late on the time line, nothing arrives before it is
// sent, and no figure is negative.
func TestLinkExtremes(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 14))
		pick := func(all ...int64) int64 { return all[r.IntN(len(all))] }
		cfg := LinkConfig{
			Delay: time.Duration(pick(0, 1, int64(maxDelay))), Jitter: time.Duration(pick(0, 1, int64(maxDelay))),
			JitterShape: JitterShape(r.IntN(3)), Rate: pick(0, 1, 1000, maxRate), Overhead: int(pick(0, 28, maxOverhead)),
			Queue: int(pick(0, 1<<20)), CoDel: CoDel{Enabled: r.IntN(2) == 0, Target: time.Duration(pick(0, int64(maxDelay)))},
		}
		l := NewLink(cfg, seed)
		sent := map[byte]time.Duration{}
		now, last := time.Duration(0), time.Duration(0)
		deliver := func(all []Delivery) {
			for _, d := range all {
				require.GreaterOrEqual(t, d.At, sent[d.Data[0]], "seed %d: %+v", seed, cfg)
				require.GreaterOrEqual(t, d.At, last, "seed %d: in order", seed)
				require.GreaterOrEqual(t, d.Queued, time.Duration(0), "seed %d", seed)
				last = d.At
			}
		}
		for i := range 100 {
			if r.IntN(4) == 0 {
				now = later(now, time.Duration(pick(1, 1e9, 1e15, int64(maxDelay), math.MaxInt64/4)))
			}
			sent[byte(i)] = now
			deliver(l.Send(now, append([]byte{byte(i)}, make([]byte, r.IntN(1400))...)))
			packets, bytes := l.Backlog(now)
			require.GreaterOrEqual(t, min(packets, bytes), 0, "seed %d", seed)
		}
		deliver(l.Poll(math.MaxInt64))
		delays := l.QueueDelays()
		for _, d := range []time.Duration{delays.Mean(), delays.Quantile(0.5), delays.Quantile(1)} {
			require.GreaterOrEqual(t, d, time.Duration(0), "seed %d", seed)
			require.LessOrEqual(t, d, delays.Max(), "seed %d", seed)
		}
	}
}

// Quantiles are right of delays that are many and long.
func TestQuantileOfLongDelays(t *testing.T) {
	var d Delays
	d.add(maxDelay)
	b := bucketOf(maxDelay)
	d.count, d.buckets[b], d.longest = 1<<40, 1<<40, math.MaxInt64
	require.Equal(t, (bucketStart(b)+bucketStart(b+1))/2, d.Quantile(0.5))
}

// Steps at the ends of the time line are done at once, and never.
func TestStepsAtTheEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{})
		time.Sleep(time.Second)
		var done []string
		n.At(math.MinInt64, func() { done = append(done, "first") })
		n.At(math.MaxInt64, func() { done = append(done, "last") })
		time.Sleep(365 * 24 * time.Hour)
		synctest.Wait()
		require.Equal(t, []string{"first"}, done)
	})
	script := Outage(time.Hour, math.MaxInt64)
	require.Equal(t, time.Duration(math.MaxInt64), script[1].At)
	script, err := script.inOrder(LinkConfig{}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{2 * time.Hour, math.MaxInt64}, []time.Duration{script[0].At, script[1].At})
}
