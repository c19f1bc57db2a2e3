package netsim

import (
	"math"
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
		"Delay":    {int64(maxDelay), func(c *LinkConfig, n int64) { c.Delay = time.Duration(n) }},
		"Jitter":   {int64(maxDelay), func(c *LinkConfig, n int64) { c.Jitter = time.Duration(n) }},
		"Rate":     {maxRate, func(c *LinkConfig, n int64) { c.Rate = n }},
		"Overhead": {maxOverhead, func(c *LinkConfig, n int64) { c.Overhead = int(min(n, math.MaxInt)) }},
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
