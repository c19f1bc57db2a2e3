package protect

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The window takes every number once, in whatever order they come, and none
// that is further back than it remembers; it never takes one twice.
func TestWindow(t *testing.T) {
	const size = (words - 1) * 64
	seeds := uint64(200)
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 1))
		var w Window
		seen := make(map[uint64]bool)
		at := []uint64{0, 1 << 32, math.MaxUint64 - 1<<20}[random.IntN(3)]
		highest := uint64(0)
		for range 5000 {
			switch random.IntN(100) {
			case 0:
				at += random.Uint64N(3 * size)
			case 1:
				at += 64*random.Uint64N(words+2) - at%64
			default:
				at += random.Uint64N(3)
			}
			n := at - min(at, random.Uint64N(1+random.Uint64N(2*size)))
			isNew := w.IsNew(n)
			switch {
			case isNew != w.Take(n):
				t.Fatalf("seed %d: %d is taken, or not, against IsNew", seed, n)
			case isNew && seen[n]:
				t.Fatalf("seed %d: %d is taken twice", seed, n)
			case !isNew && !seen[n] && (n > highest || highest-n < size):
				t.Fatalf("seed %d: %d is not taken, the highest is %d", seed, n, highest)
			}
			if isNew {
				seen[n], highest = true, max(highest, n)
			}
		}
	}
	var w Window
	require.True(t, w.Take(math.MaxUint64-1))
	require.False(t, w.Take(math.MaxUint64), "nothing could come after it")
	require.False(t, w.Take(0))
}

// The whole number is found again from its lowest bits.
func TestExpand(t *testing.T) {
	for _, test := range []struct {
		low          uint32
		next, number uint64
	}{
		{0, 0, 0}, {5, 0, 5}, {math.MaxUint32, 0, math.MaxUint32}, {7, 7, 7}, {0, 1 << 32, 1 << 32},
		{math.MaxUint32, 1 << 32, math.MaxUint32}, {1, 1<<33 + 2, 1<<33 + 1},
		{0, 1<<32 - 1, 1 << 32}, {0, 1<<31 + 1, 1 << 32}, {0, 1<<31 - 1, 0}, {0, 1 << 31, 1 << 32},
		{math.MaxUint32, MaxNumber + 1, MaxNumber}, {0, MaxNumber + 1, 1<<62 - 1<<32},
		{0, MaxNumber, 1<<62 - 1<<32}, {math.MaxUint32, MaxNumber, MaxNumber},
		{math.MaxUint32, 1<<62 - 1<<32, 1<<62 - 1<<32 - 1},
	} {
		require.Equal(t, test.number, Expand(test.low, test.next), "%+v", test)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		next := random.Uint64N(MaxNumber - 1<<31)
		number := max(next, 1<<31) - 1<<31 + random.Uint64N(1<<31)
		require.Equal(t, number, Expand(uint32(number), next))
	}
	var w Window
	require.True(t, w.Take(1<<40))
	require.Equal(t, uint64(1<<40+3), w.Expand(3))
}
