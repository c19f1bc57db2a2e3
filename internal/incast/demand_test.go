package incast

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// fairLevel is the max-min fair level of what the senders use, found in the slow way:
// the largest one that all who sent more can have. Those below it use a part of
// what they have sent in an epoch.
func fairLevel(demands []uint32, budget int) int {
	sorted := slices.Sorted(slices.Values(demands))
	left := int64(budget)
	for _, d := range sorted {
		left -= int64(d) / lightPart
	}
	for n := int64(1); n <= int64(len(sorted)); n++ {
		d := int64(sorted[len(sorted)-int(n)])
		left += d / lightPart
		level := max(left/n, 1)
		if n == 1 && d <= level {
			return 0
		}
		if n == int64(len(sorted)) || int64(sorted[len(sorted)-int(n)-1]) <= level {
			return int(level)
		}
	}
	return 0
}

// A thousand senders of different demand have the max-min fair share, within an
// eighth, however their bytes arrive.
func TestLevelIsFair(t *testing.T) {
	limited := 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 7))
		var d Demand
		demands := make([]uint32, 1+r.IntN(1000))
		sum := int64(0)
		for i := range demands {
			demands[i] = 1 + r.Uint32N(1<<(1+r.IntN(28)))
			for left := demands[i]; left > 0; {
				n := 1 + r.Uint32N(left)
				require.Equal(t, demands[i]-left+n, d.Add(demands[i]-left, n))
				left -= n
			}
			sum += int64(demands[i])
		}
		require.Equal(t, len(demands), d.Senders())
		require.Equal(t, sum, d.Sum())
		budget := 1 + int(sum>>(1+r.IntN(8)))
		want, got := fairLevel(demands, budget), d.Level(budget)
		if want == 0 || got == 0 {
			continue // the budget is about what the largest has sent
		}
		limited++
		require.InEpsilon(t, want, got, 0.125, "seed %d", seed)
	}
	require.Greater(t, limited, 50)
}

// All who send alike have equal shares, at least a byte.
func TestEqualShares(t *testing.T) {
	var d Demand
	require.True(t, d.Dominated())
	require.Zero(t, d.Level(1000))
	for range 100 {
		d.Add(0, 1<<20)
	}
	require.Equal(t, 1<<20/100, d.Level(1<<20))
	require.Equal(t, 1, d.Level(0))
	require.Equal(t, 100, d.Above(1000))
	require.Equal(t, 100, d.Above(1<<20))
	require.Zero(t, d.Above(2<<20))
	d.Halve()
	require.Equal(t, 50, d.Senders())
	require.Equal(t, int64(50<<20), d.Sum())
	require.Equal(t, 1<<20/50, d.Level(1<<20))
	d.Reset()
	require.Zero(t, d.Level(1000))
	d.Add(0, 1)
	require.EqualValues(t, uint32(1<<32-1), d.Add(1, 1<<32-1), "what is more than a number holds")
}

// What is not in the histogram is not taken out of it, and nothing is divided by 0.
func TestNothingIsTakenOutThatIsNotIn(t *testing.T) {
	var d Demand
	require.EqualValues(t, 1500, d.Add(8<<20, 1500), "its first")
	require.EqualValues(t, 1500, d.Add(9<<20, 1500))
	require.EqualValues(t, 1500, d.Add(1600, 1500), "more than all of its bucket")
	require.EqualValues(t, 0, d.Add(0, 0), "nothing")
	require.Equal(t, 3, d.Senders())
	require.EqualValues(t, 3*1500, d.Sum())
	require.Equal(t, 1500/lightPart, d.Level(3*1500/lightPart))
	d.Halve()
	require.Equal(t, 1, d.Senders())
}
