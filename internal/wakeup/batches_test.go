package wakeup

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// While a batch is fed, sets wait for its end, each once. Between batches nothing waits,
// and with several readers sets are taken at the end of the next batch.
func TestBatches(t *testing.T) {
	type set struct{ int }
	var b Batches[set]
	x, y := &set{1}, &set{2}
	require.False(t, b.Defers(x), "no batch is fed")
	var taken []*set
	take := func(s *set) { taken = append(taken, s) }
	b.Begin()
	for range 3 {
		require.True(t, b.Defers(x))
	}
	require.True(t, b.Defers(y))
	b.End(take)
	require.ElementsMatch(t, []*set{x, y}, taken)
	require.False(t, b.Defers(x))
	b.Begin()
	b.Begin()
	taken = nil
	b.End(take)
	require.Empty(t, taken)
	require.True(t, b.Defers(x), "another reader feeds one")
	b.End(func(s *set) {
		take(s)
		require.False(t, b.Defers(y), "the caller takes it itself")
	})
	require.Equal(t, []*set{x}, taken)
}
