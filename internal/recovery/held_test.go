package recovery

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The oldest packets leave first, and make room.
func TestHeld(t *testing.T) {
	var h Held[int]
	require.Empty(t, slices.Collect(h.Beyond(0)))
	require.Empty(t, slices.Collect(h.Stale(time.Hour)))
	for i := range MaxHeld {
		h.Add(i, 0)
	}
	require.Empty(t, slices.Collect(h.Stale(0)))
	h.Add(MaxHeld, 0)
	h.Add(MaxHeld+1, 0)
	require.Equal(t, []int{0, 1}, slices.Collect(h.Stale(0)))
	require.Equal(t, 2, *h.First())
	require.Equal(t, 2, h.Take())
	require.Equal(t, MaxHeld-1, h.Len())
	require.Equal(t, []int{3, 4}, slices.Collect(h.Beyond(MaxHeld-3)))
	for range h.Beyond(0) {
		break
	}
	require.Equal(t, 6, *h.First(), "only what was returned")
	require.Len(t, slices.Collect(h.Beyond(0)), MaxHeld-4)
	require.Zero(t, h.Len())
}

// Packets wait for 100 ms.
func TestHeldTooLong(t *testing.T) {
	var h Held[string]
	h.Add("a", 1)
	h.Add("b", 1)
	h.Add("c", 2)
	require.Empty(t, slices.Collect(h.Stale(heldTime+1)))
	require.Equal(t, []string{"a", "b"}, slices.Collect(h.Stale(heldTime+2)))
	require.Equal(t, []string{"c"}, slices.Collect(h.Stale(time.Hour)))
}

// Above 1 MB/s the timer fires every millisecond at most.
func TestCapWakes(t *testing.T) {
	for _, test := range []struct {
		rate   int
		wait   int64
		micros time.Duration
	}{
		{fineCap, 20, 20},
		{fineCap, 0, 1},
		{fineCap + 1, 20, 1000},
		{fineCap + 1, 999, 1000},
		{fineCap + 1, 1001, 1001},
	} {
		require.Equal(t, test.micros*time.Microsecond, WakeAfter(test.rate, test.wait), "%+v", test)
	}
}

// The write buffer lasts for a second, within bounds.
func TestCapWriteBuffer(t *testing.T) {
	const most = 4 << 20
	for rate, want := range map[int]int{
		1000: LeastWriteBuffer, LeastWriteBuffer + 1: LeastWriteBuffer + 1, most - 1: most - 1, most + 1: most, math.MaxInt: most,
	} {
		require.Equal(t, want, WriteBuffer(rate, most))
	}
}
