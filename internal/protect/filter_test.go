package protect

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// packet returns the packet with that number, whose first 12 bytes tell it from
// others.
func packet(n uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 4, 64), n)[:64]
}

func newFilter() *Filter {
	f := new(Filter)
	f.Enable(12)
	return f
}

// A packet is new once, and IsNew alone records nothing.
func TestFilter(t *testing.T) {
	f := newFilter()
	for n := range uint64(100) {
		mark := f.Mark(packet(n))
		for range 2 {
			require.True(t, f.IsNew(mark))
		}
		require.True(t, f.Take(mark))
		for range 2 {
			require.False(t, f.IsNew(mark))
			require.False(t, f.Take(mark))
		}
	}
	require.True(t, newFilter().IsNew(f.Mark(packet(0))), "of another filter")
}

// A packet that was sent is not taken when it comes back.
func TestFilterSent(t *testing.T) {
	f := newFilter()
	f.Sent(packet(1))
	mark := f.Mark(packet(1))
	require.False(t, f.IsNew(mark))
	for range 2 {
		require.False(t, f.Take(mark))
	}
	require.True(t, f.Take(f.Mark(packet(2))))
}

// Packets are told apart by their first bytes, and may be shorter than those.
func TestFilterMark(t *testing.T) {
	f := newFilter()
	long := append(packet(1)[:12:12], "other content"...)
	require.Equal(t, f.Mark(packet(1)), f.Mark(long))
	require.NotEqual(t, f.Mark(packet(1)), f.Mark(packet(2)))
	require.NotEqual(t, f.Mark(packet(1)[:3]), f.Mark(packet(1)[:2]))
	require.NotEqual(t, f.Mark(nil), f.Mark(packet(1)[:2]))
}

// A filter that is off takes everything, and uses no memory.
func TestFilterOff(t *testing.T) {
	var f Filter
	f.Sent(packet(1))
	for range 2 {
		require.True(t, f.IsNew(0))
		require.True(t, f.Take(0))
	}
	require.Nil(t, f.received.sets)
	require.Nil(t, f.sent.sets)
	f.Forget()
}

// The filter remembers packets among as many others as it says, nearly, and
// packets of one direction do not push out those of the other.
func TestFilterSize(t *testing.T) {
	f := newFilter()
	f.Sent(packet(0))
	for n := range uint64(tableSize) {
		f.Take(f.Mark(packet(1 + n)))
	}
	require.False(t, f.IsNew(f.Mark(packet(0))))
	forgotten := 0
	for n := range uint64(tableSize / 4) {
		if f.IsNew(f.Mark(packet(tableSize - n))) {
			forgotten++
		}
	}
	require.Less(t, forgotten, tableSize/4/20, "of the last quarter")
	for n := range uint64(8 * tableSize) {
		f.Take(f.Mark(packet(2*tableSize + n)))
	}
	remembered := 0
	for n := range uint64(tableSize) {
		if !f.IsNew(f.Mark(packet(1 + n))) {
			remembered++
		}
	}
	require.Less(t, remembered, tableSize/20)

	f.Forget()
	require.True(t, f.IsNew(f.Mark(packet(0))))
	require.True(t, f.IsNew(f.Mark(packet(10*tableSize-1))))
}

// Of several that receive copies of a packet one takes it.
func TestFilterConcurrentUse(t *testing.T) {
	const packets = 100 // few enough that no set of the table overflows
	f := newFilter()
	var taken atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for n := range uint64(packets) {
				if f.Take(f.Mark(packet(n))) {
					taken.Add(1)
				}
				f.Sent(packet(1e6 + n))
			}
		})
	}
	all.Wait()
	require.EqualValues(t, packets, taken.Load())
}

// The constants of the package are the figures that RULES.md says.
func TestReplayFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Anti-replay window", "1984", (words - 1) * 64},
		{"| Anti-replay window", "16384", tableSize},
	})
}
