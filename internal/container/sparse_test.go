package container

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Set says what a map of all numbers says, and takes no memory for numbers in
// order, nor for others once those between have come.
func TestSet(t *testing.T) {
	const reach = 1000
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 1))
		var s SparseSet
		s.floor = random.Uint32() >> 1 // as after so many
		start, model := s.floor, make(map[uint32]bool)
		far := 1 + random.Uint32N(2*reach)
		for range 2000 {
			n := s.floor + random.Uint32N(far)
			require.Equal(t, n < start || model[n], s.Has(n), "seed %d", seed)
			if !model[n] && s.Add(n, reach) {
				model[n] = true
			}
			require.Equal(t, model[n], n-start <= reach || s.Has(n), "seed %d", seed)
			require.False(t, s.Has(s.floor))
		}
		for !s.missing(start, model) {
		}
		require.Zero(t, s.ahead)
		require.Zero(t, s.Size())
		require.Len(t, model, int(s.floor-start))
	}
}

// missing adds the first number that is missing, and reports whether no other is
// known beyond.
func (s *SparseSet) missing(start uint32, model map[uint32]bool) (done bool) {
	if s.ahead == 0 {
		return true
	}
	model[s.floor] = true
	s.Add(s.floor, 0)
	return false
}

func TestSetReach(t *testing.T) {
	var s SparseSet
	require.False(t, s.Add(1<<16+1, 1<<16))
	require.False(t, s.Add(1<<32-1, 1<<16))
	require.Zero(t, s.Size())
	require.True(t, s.Add(1<<16, 1<<16))
	require.LessOrEqual(t, s.Size(), 16<<10)
	require.True(t, s.Has(1<<16))
	require.False(t, s.Has(0))
	require.False(t, s.Has(1<<32-1))
}

// keysOf returns the keys of m in order.
func keysOf(m *SparseMap[uint32]) (keys []uint32) {
	m.All(func(key uint32, v *uint32) bool {
		keys = append(keys, *v)
		return true
	})
	return keys
}

// A Map says what a sorted list says, across the wrap of 2^32 too.
func TestMap(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 2))
		var m SparseMap[uint32]
		base := -random.Uint32N(500) // what follows wraps
		var model []uint32           // distances from base
		for range 2000 {
			d := random.Uint32N(1000)
			at, ok := slices.BinarySearch(model, d)
			v := m.Get(base + d)
			require.Equal(t, ok, v != nil)
			switch {
			case !ok:
				*m.Add(base + d) = d
				model = slices.Insert(model, at, d)
			case random.IntN(2) == 0:
				require.Equal(t, d, *v)
			default:
				key, first := m.First()
				require.Equal(t, base+model[0], key)
				require.Equal(t, model[0], *first)
				m.RemoveFirst()
				model = model[1:]
			}
			require.Equal(t, len(model) == 0, m.Empty())
		}
		require.Equal(t, model, keysOf(&m))
	}
}

// depth returns the length of the longest way down.
func (n *node[V]) depth() int {
	if n == nil {
		return 0
	}
	return 1 + max(n.less.depth(), n.more.depth())
}

// The work of a call is logarithmic, in whatever order keys come.
func TestMapDepth(t *testing.T) {
	const n = 1 << 14
	for name, key := range map[string]func(i uint32) uint32{
		"up":      func(i uint32) uint32 { return i },
		"down":    func(i uint32) uint32 { return n - i },
		"outward": func(i uint32) uint32 { return n + i*(1-i%2*2) },
		"spread":  func(i uint32) uint32 { return i * 0x9e3779b1 >> 1 },
	} {
		t.Run(name, func(t *testing.T) {
			var m SparseMap[int]
			for i := range uint32(n) {
				if m.Get(key(i)) == nil {
					m.Add(key(i))
				}
			}
			require.Less(t, m.root.depth(), 6*14) // about 33; 84 has a chance of 1e-9
		})
	}
}
