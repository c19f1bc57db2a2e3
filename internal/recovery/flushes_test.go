package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
)

// FlushCalls are woken once what the first of them waits for is acknowledged, and say then
// what they wait for.
func TestCallsAreWoken(t *testing.T) {
	var c FlushCalls
	base := container.Serial(1<<32 - 2)
	require.False(t, c.Delivers(base))
	first, second := c.Begin(base+3), c.Begin(base+5)
	c.WaitFor(*second)
	c.WaitFor(*first)
	require.False(t, c.Delivers(base+2))
	require.True(t, c.Delivers(base+3))
	require.False(t, c.Delivers(base+9), "they have been woken")
	c.End(first)
	c.WaitFor(*second)
	require.True(t, c.Delivers(base+6))
	c.End(second)
	require.Empty(t, c.waiting)
}

// A segment that leaves before what waits moves what calls wait for, but not that of
// calls all of whose segments have left.
func TestSegmentsThatLeaveBefore(t *testing.T) {
	var c FlushCalls
	base := container.Serial(1<<32 - 2)
	left, waits := c.Begin(base+1), c.Begin(base+4)
	c.Overtaken(base + 1)
	require.Equal(t, base+1, *left)
	require.Equal(t, base+5, *waits)
	c.End(waits)
	c.Overtaken(base)
	require.Equal(t, base+2, *left)
	require.Equal(t, base+5, *waits, "it has returned")
}
