package fair

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// In the first scan nobody pays. In the next one those above the line do, which together
// hold what is too much, and the share is what small holders leave to each large one.
func TestScanFindsWhoPays(t *testing.T) {
	const large = 64 << 10
	held := []int64{0, 1000, 2000, 100_000, 200_000, 1_000_000}
	s := NewScan(large)
	for _, h := range held {
		require.False(t, s.Pays(h, 0, large, 4))
	}
	s.Passed(len(held))
	require.True(t, s.Nobody())
	require.Equal(t, len(held), s.At)
	share := s.End(1_203_000, 100_000, 4)
	require.EqualValues(t, (1_203_000-3000)/3, share)
	require.Zero(t, s.At)
	require.False(t, s.Nobody())
	var paid []int64
	for _, h := range held {
		if s.Pays(h, 0, share, 4) {
			paid = append(paid, h)
		}
	}
	require.Equal(t, []int64{1_000_000}, paid)
	require.EqualValues(t, large, s.End(0, 0, 4), "the least share")
	require.True(t, s.Nobody(), "nothing is too much")
}

// Who moves what it holds does not pay before the limit is exceeded by far.
func TestRatioFalls(t *testing.T) {
	for _, test := range []struct {
		over   int64
		ratio  int
		active bool // who has moved lately what it holds pays
	}{{-5, 4, false}, {100, 4, false}, {101, 2, false}, {200, 2, false}, {201, -1, true}, {400, -1, true}, {401, anyRatio, true}} {
		require.Equal(t, test.ratio, LeastRatio(test.over, 100))
		s := NewScan(1000)
		s.Line = 0
		require.Equal(t, test.active, s.Pays(1<<20, 1<<20, 1000, test.ratio), "over by %d", test.over)
		require.True(t, s.Pays(1<<20, 0, 1000, test.ratio))
	}
}
