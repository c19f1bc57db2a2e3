package fair

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever comes is taken, and the oldest goes.
func TestOldestGoesFirst(t *testing.T) {
	t.Parallel()
	var s Lingering[int]
	for i := range 3 {
		_, full := s.Add(i, 3)
		require.False(t, full)
	}
	_, full := s.Add(1, 3)
	require.False(t, full, "it is there already")
	s.Remove(0)
	s.Remove(7)
	_, full = s.Add(3, 3)
	require.False(t, full)
	oldest, full := s.Add(4, 3)
	require.True(t, full)
	require.Equal(t, 1, oldest)
	oldest, full = s.Add(5, 1) // the limit is lower now
	require.True(t, full)
	require.Equal(t, 2, oldest)
	for _, want := range []int{3, 4, 5} {
		oldest, ok := s.Take()
		require.True(t, ok)
		require.Equal(t, want, oldest)
	}
	_, ok := s.Take()
	require.False(t, ok)
}

// The application has most of the descriptors.
func TestLingeringLimit(t *testing.T) {
	t.Parallel()
	for descriptors, want := range map[int]int{0: 256, 4: 1, 64: 8, 1024: 128, 2048: 256, 1 << 20: 256} {
		require.Equal(t, want, LingeringLimit(descriptors), "of %d", descriptors)
	}
}
