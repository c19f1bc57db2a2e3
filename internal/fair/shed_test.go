package fair

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bytes count half after each period, at any time since the beginning, and
// never less than none.
func TestRecent(t *testing.T) {
	for _, start := range []time.Duration{0, time.Hour, 300 * 24 * time.Hour, 100 * 365 * 24 * time.Hour} {
		start = start.Truncate(period * time.Millisecond)
		at := func(periods float64) time.Duration {
			return start + time.Duration(periods*period)*time.Millisecond
		}
		var r Recent
		require.Zero(t, r.At(at(0)))
		r = r.Add(1000, at(0))
		r = r.Add(24, at(0.9))
		require.EqualValues(t, 1024, r.At(at(0.99)))
		require.EqualValues(t, 512, r.At(at(1)))
		require.EqualValues(t, 1, r.At(at(10.5)))
		require.Zero(t, r.At(at(11)))
		require.Zero(t, r.At(at(100000)))
		r = r.Add(8, at(3))
		require.EqualValues(t, 136, r.At(at(3)))
		r = r.Add(math.MaxInt64/2, at(4))
		require.Equal(t, int64(maxAmount), r.At(at(4)))
		require.Equal(t, int64(maxAmount/2), r.At(at(5)))
	}
}

// A steady rate shows as what moves in two to four seconds.
func TestRecentRate(t *testing.T) {
	var r Recent
	for now := time.Duration(0); now < time.Minute; now += 10 * time.Millisecond {
		r = r.Add(10, now)
		if now > 20*time.Second {
			require.InDelta(t, 1.5*period, r.At(now), period/2+20)
		}
	}
}

// Ranks follow the ratio: they never fall as more is held, nor rise as more
// moves, and four of them are a factor of two.
func TestRanks(t *testing.T) {
	sizes := []int64{0, 1, 2, 3, 5, 100, 1 << 10, 20_000, 1 << 20, 3 << 20, 1 << 31, 1 << 40, 1 << 47}
	for _, large := range []bool{false, true} {
		for i, held := range sizes {
			for j, recent := range sizes {
				if r := RankOf(held, recent, large); i > 0 && j > 0 {
					require.GreaterOrEqual(t, r, RankOf(sizes[i-1], recent, large))
					require.LessOrEqual(t, r, RankOf(held, sizes[j-1], large))
					require.Less(t, r, NoRank)
				}
			}
		}
		for held := int64(1 << 10); held < 1<<24; held += held / 7 {
			require.Equal(t, RankOf(held, 0, large)+4, RankOf(2*held, 0, large))
			require.LessOrEqual(t, RankOf(held*5/4, 0, large)-RankOf(held, 0, large), Rank(2))
		}
		require.Equal(t, RankOf(16<<10, 0, large), RankOf(32<<10, 1<<10, large))
		require.Zero(t, RankOf(0, 0, large))
		for exponent := -4; exponent < 20; exponent++ {
			held := int64(spared) << (exponent + 8) >> 8
			require.True(t, RankOf(held, 0, large).Holds(exponent))
			require.False(t, RankOf(held-held/10, 0, large).Holds(exponent))
		}
	}
	require.Greater(t, RankOf(spared/2, 0, true), RankOf(1<<40, 0, false))
	require.Equal(t, RankOf(spared/2-1, 0, true), RankOf(spared/2-1, 0, false))
}

// Those of the highest rank pay, and no more of them than hold enough. Who is
// spared for the time being, as its ratio is too low, is not replaced by others
// of lower rank.
func TestLine(t *testing.T) {
	fresh, stuck := RankOf(100<<10, 100<<10, true), RankOf(80<<10, 0, true)
	slow, idle := RankOf(50<<10, 5<<10, false), RankOf(4<<10, 0, false)
	running := RankOf(1<<20, 30<<20, true)
	require.True(t, stuck > fresh && fresh > slow && slow > idle && idle > running)
	var c Census
	for r, held := range map[Rank]int64{fresh: 500, stuck: 100, slow: 50, idle: 4, running: 1000} {
		c.Add(r, held)
	}
	for _, tc := range []struct {
		excess   int64
		exponent int
		line     Rank
	}{
		{-1, 0, NoRank}, {0, 0, NoRank}, {1, 4, stuck}, {100, 4, stuck}, {101, 4, stuck}, {5000, 4, stuck}, {5000, 7, NoRank},
		{100, -1, stuck}, {101, -1, fresh}, {600, -1, fresh}, {601, 2, slow}, {601, 3, slow}, {601, 4, stuck},
		{650, 2, slow}, {651, 2, idle}, {651, 3, slow}, {5000, 0, idle}, {655, -20, running},
	} {
		require.Equal(t, tc.line, c.Line(tc.excess, tc.exponent), "%+v", tc)
	}
	require.Equal(t, NoRank, new(Census).Line(1, -20))
}
