package streams

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// limitOf returns the limit of the segment that h sends next, the only one.
func (h *testHost) limitOf(t *testing.T) int {
	t.Helper()
	require.True(t, h.pull(false))
	s := h.queued[len(h.queued)-1]
	got, _, ok := Decode(s.payload)
	require.True(t, ok)
	require.Equal(t, MaxStreams, got.Kind)
	require.Zero(t, got.ID)
	require.False(t, h.pull(false))
	return int(got.Streams)
}

// peerOpens has the peer open its n-th stream, from 0.
func (h *testHost) peerOpens(n int) {
	h.table.Input((&Header{ID: uint32(2*n + 1), Kind: Open, Opens: true}).Append(nil), false)
}

// finish ends a stream of the peer at both ends.
func (h *testHost) finish(t *testing.T, s *Stream) {
	t.Helper()
	h.table.Input((&Header{ID: s.id, Kind: Fin}).Append(nil), false)
	s.ReadDone()
	s.Finish()
	require.True(t, h.pull(false))
	h.acked(h.queued[len(h.queued)-1])
	h.queued = h.queued[:len(h.queued)-1]
}

// The peer learns of room once half of its streams are open, in one segment for all that
// are over by then; that of an end that takes one stream learns of each.
func TestLimitIsTold(t *testing.T) {
	for _, most := range []int{1, 2, 3, 8} {
		limits := someLimits
		limits.Streams = most
		h := newHost(2, limits)
		h.limit = 5
		for n := range most {
			h.peerOpens(n)
			require.False(t, h.pull(false), "as many as INFO has told")
		}
		told := most
		for over := range most {
			h.finish(t, h.table.Accept())
			if 2*(told-most) > most {
				require.False(t, h.pull(false), "%d of %d are left", told-most, most)
				continue
			}
			told = most + over + 1
			require.Equal(t, told, h.limitOf(t))
		}
		for n := most; n < told; n++ {
			h.peerOpens(n)
			if told < 2*most && 2*(told-n-1) <= most {
				told = 2 * most
				require.Equal(t, told, h.limitOf(t))
			}
		}
		for n := told; n < 2*most; n++ {
			h.peerOpens(n)
		}
		require.False(t, h.pull(false), "nothing is over")
		for range most {
			s := h.table.Accept()
			h.table.Input((&Header{ID: s.id, Kind: Stop}).Append(nil), false)
			h.table.Input((&Header{ID: s.id, Kind: Reset}).Append(nil), false)
			s.Reset(0)
		}
		for h.pull(false) {
		}
		for _, s := range h.queued {
			h.acked(s)
		}
		h.queued = nil
		require.Zero(t, h.table.fromPeer)
		require.Equal(t, 3*most, h.limitOf(t))
		require.Zero(t, h.dropped)
	}
}

// A peer that does not know of the limit is not told it, nor is one whose session closes
// or has failed.
func TestLimitIsNotTold(t *testing.T) {
	for name, end := range map[string]func(h *testHost){
		"old peer": func(h *testHost) { h.limit = 0 },
		"Close":    func(h *testHost) { h.table.Close(false) },
		"Fail":     func(h *testHost) { h.table.Fail(resetError{}) },
	} {
		limits := someLimits
		limits.Streams = 1
		h := newHost(2, limits)
		h.limit = 1
		h.peerOpens(0)
		s := h.table.Accept()
		end(h)
		h.table.Input((&Header{ID: 1, Kind: Reset}).Append(nil), false)
		s.Reset(0)
		for h.pull(false) {
			h.acked(h.queued[0])
			got, _, _ := Decode(h.queued[0].payload)
			require.NotEqual(t, MaxStreams, got.Kind, name)
			h.queued = nil
		}
		require.False(t, h.table.tell, name)
		require.Equal(t, name == "Fail", h.table.fromPeer > 0)
	}
}

// Limits that are lost, doubled or late, and those of a peer that lies, never lower what
// an end may open. The largest is more than there are ids.
func TestLimitGrows(t *testing.T) {
	for first, want := range map[int]int{0: 100, 1: 1, 7: 7, MostAtFirst: 100} {
		h := newHost(1, someLimits)
		h.limit = first
		for range want {
			require.True(t, h.table.MayOpen(nil))
			_, err := h.table.Open(Params{})
			require.NoError(t, err)
		}
		require.Equal(t, want == 100, h.table.MayOpen(nil))
	}
	h := newHost(2, someLimits)
	h.limit = 1
	_, err := h.table.Open(Params{})
	require.NoError(t, err)
	input := func(n uint32) { h.table.Input((&Header{Kind: MaxStreams, Streams: n}).Append(nil), false) }
	for _, n := range []uint32{0, 1, 0} {
		input(n)
		require.False(t, h.table.MayOpen(nil))
	}
	input(3)
	input(2)
	input(0)
	for range 2 {
		require.True(t, h.table.MayOpen(nil))
		_, err := h.table.Open(Params{})
		require.NoError(t, err)
	}
	require.False(t, h.table.MayOpen(nil))
	input(math.MaxUint32)
	h.table.next = math.MaxUint32 - 1 // the last id there is
	require.True(t, h.table.MayOpen(nil))
	require.Zero(t, h.dropped)
	for _, bad := range [][]byte{
		{0, 0, 0, 0, 7}, {0, 0, 0, 0, 7, 1, 0, 0}, {0, 0, 0, 0, 7, 1, 0, 0, 0, 0}, // another size
		{1, 0, 0, 0, 7, 1, 0, 0, 0},    // of a stream
		{0, 0, 0, 0, 0x27, 1, 0, 0, 0}, // bits
	} {
		dropped := h.dropped
		h.table.Input(bad, false)
		require.Equal(t, dropped+1, h.dropped, "%x", bad)
	}
}

// Far into a session the limit is that of all ids, and does not come around.
func TestLimitAtTheLastIDs(t *testing.T) {
	limits := someLimits
	limits.Streams = 4
	h := newHost(2, limits)
	h.limit = 4
	h.table.Counts.Accepted = mostStreams - 2
	h.table.told = mostStreams - 2
	h.table.noteLimit()
	require.Equal(t, uint32(mostStreams), uint32(h.limitOf(t)))
	h.table.Counts.Refused = 2
	h.table.noteLimit()
	require.False(t, h.pull(false))
}

// Calls that wait open their streams in the order in which they came, one wake-up for
// each, and none that comes later is before them.
func TestOpenersTakeTurns(t *testing.T) {
	h := newHost(1, someLimits)
	h.limit = 1
	open := func(o *Opener) {
		require.True(t, h.table.MayOpen(o))
		_, err := h.table.Open(Params{})
		require.NoError(t, err)
		if o != nil {
			h.table.Leave(o)
		}
	}
	open(nil)
	var woken []int
	calls := make([]Opener, 5)
	for i := range calls {
		calls[i].Wake = func() { woken = append(woken, i) }
		require.False(t, h.table.MayOpen(&calls[i]))
		h.table.Await(&calls[i])
		h.table.Await(&calls[i]) // woken for something else
	}
	input := func(n uint32) { h.table.Input((&Header{Kind: MaxStreams, Streams: n}).Append(nil), false) }
	input(2)
	require.Equal(t, []int{0}, woken)
	require.False(t, h.table.MayOpen(nil))
	require.False(t, h.table.MayOpen(&calls[1]))
	open(&calls[0])
	require.Equal(t, []int{0}, woken, "there is no room for both")
	h.table.Leave(&calls[2]) // its context is done
	input(4)
	require.Equal(t, []int{0, 1}, woken)
	open(&calls[1])
	require.Equal(t, []int{0, 1, 3}, woken)
	h.table.Leave(&calls[3]) // its context is done, and there is room for another
	require.Equal(t, []int{0, 1, 3, 4}, woken)
	h.table.Await(&calls[2])
	h.table.Wake()
	require.Equal(t, []int{0, 1, 3, 4, 4, 2}, woken)
	require.True(t, h.table.MayOpen(nil), "nobody waits")
}

// A peer that withholds acknowledgements causes no more than so many segments.
func TestLimitsInFlightAreBounded(t *testing.T) {
	limits := someLimits
	limits.Streams = 1
	h := newHost(2, limits)
	h.limit = 1
	for n := range 10 * mostRefusing {
		h.peerOpens(n)
		s := h.table.Accept()
		require.NotNil(t, s)
		h.table.Input((&Header{ID: s.id, Kind: Reset}).Append(nil), false)
		s.Reset(0)
		for h.pull(false) {
		}
		kept := h.queued[:0]
		for _, q := range h.queued {
			if q.tag == &h.table.control {
				kept = append(kept, q)
			} else {
				h.acked(q)
			}
		}
		h.queued = kept
		for h.pull(false) {
		}
		require.Zero(t, h.table.fromPeer)
		require.LessOrEqual(t, len(h.queued), mostRefusing)
	}
	require.Len(t, h.queued, mostRefusing)
	h.acked(h.queued[0])
	require.Equal(t, 10*mostRefusing+1, h.limitOf(t), "the newest")
}
