package streams

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
)

// An ABANDON of all up to a message lets those be read that are complete, in order,
// and drops the others, whatever arrives of them later.
func TestSkips(t *testing.T) {
	whole := func(mid container.Serial) []byte {
		return append((&Header{ID: 1, Kind: Data, Opens: true, End: true, MID: mid}).Append(nil), byte(mid))
	}
	part := func(mid container.Serial) []byte {
		return append((&Header{ID: 1, Kind: Data, Opens: true, Part: true, MID: mid}).Append(nil), byte(mid))
	}
	upTo := func(mid container.Serial) []byte {
		return (&Header{ID: 1, Kind: Abandon, Opens: true, End: true, MID: mid, Size: NoSegment}).Append(nil)
	}
	for _, tc := range []struct {
		segments [][]byte
		read     []byte // messages of one byte, their numbers
		skipped  uint64
		next     container.Serial
	}{
		{[][]byte{upTo(4)}, nil, 5, 5},
		{[][]byte{whole(1), upTo(0)}, []byte{1}, 1, 2},
		{[][]byte{whole(2), whole(3), part(1), whole(6), whole(5), upTo(3)}, []byte{2, 3}, 2, 4},
		{[][]byte{whole(2), whole(3), whole(5), upTo(4), whole(4), whole(0)}, []byte{2, 3, 5}, 3, 6},
		{[][]byte{part(1000), whole(2), part(1001), upTo(1000)}, []byte{2}, 1000, 1001},
		{[][]byte{whole(1), whole(2), part(4), upTo(2), upTo(1), upTo(4), whole(5)}, []byte{1, 2, 5}, 3, 6},
	} {
		h := newHost(2, someLimits)
		for _, p := range tc.segments {
			h.table.Input(p, false)
		}
		r := h.table.Accept()
		require.Equal(t, tc.next, r.in.next)
		require.Equal(t, tc.skipped, r.in.stats.Skipped)
		require.NoError(t, r.ReadEnd())
		buf := make([]byte, 10)
		for _, want := range tc.read {
			n, ok := r.NextMessage()
			require.True(t, ok)
			require.Equal(t, 1, n)
			require.Equal(t, 1, r.ReadMessage(buf))
			require.Equal(t, want, buf[0])
		}
		_, ok := r.NextMessage()
		require.False(t, ok)
		held, cost := 0, container.Serial(0)
		for _, m := range r.in.early.All {
			held += m.memory()
			cost += container.Serial(m.cost)
		}
		require.Equal(t, held, r.in.held)
		require.Equal(t, cost, r.in.got-r.in.freed)
	}
}

// A message of one fragment takes no more memory than credit, whatever is missing
// before it.
func TestOneFragmentIsHeldAsAWhole(t *testing.T) {
	h := newHost(2, someLimits)
	h.table.Input((&Header{ID: 1, Kind: Open, Opens: true, Params: Params{Unordered: true}}).Append(nil), false)
	r := h.table.Accept()
	for mid := range container.Serial(InitialCredit / (SegmentCost + 1)) {
		h.table.Input(append((&Header{ID: 1, Kind: Data, Part: true, End: true, MID: mid + 1}).Append(nil), byte(mid)), false)
		check(t, &h.table)
	}
	require.Less(t, uint32(r.in.limit-r.in.got), uint32(SegmentCost+1))
	require.Zero(t, h.dropped)
	for mid := 0; r.in.waits(); mid++ {
		var b [2]byte
		require.Equal(t, 1, r.ReadMessage(b[:]))
		require.Equal(t, byte(mid), b[0])
	}
}

// Data that is read as fast as the path brings it doubles the buffer, twice for 2 MB,
// unless memory is short.
func TestGrowth(t *testing.T) {
	for _, short := range []bool{false, true} {
		h := newHost(2, someLimits)
		h.short = short
		h.table.Input((&Header{ID: 1, Kind: Open, Opens: true}).Append(nil), false)
		r := h.table.Accept()
		for mid := range container.Serial(2000) {
			h.table.Input(append((&Header{ID: 1, Kind: Data, End: true, MID: mid}).Append(nil), make([]byte, 1000)...), false)
			require.Equal(t, 1000, r.Read(make([]byte, 2000)))
			for h.pull(false) { // credit
			}
		}
		want := someLimits.ReceiveBuffer
		if !short {
			want *= 4
		}
		require.Equal(t, want, r.Stats().Window)
		require.Equal(t, want-someLimits.ReceiveBuffer, h.table.grown)
		require.Zero(t, h.dropped)
	}
}

// Turns are by bytes: streams of equal priority that have messages of different sizes
// send as much.
func TestTurnsAreByBytes(t *testing.T) {
	h := newHost(1, someLimits)
	sizes := []int{100, 1000, 333}
	for _, n := range sizes {
		s, err := h.table.Open(Params{})
		require.NoError(t, err)
		for range 20_000 / n {
			s.Send(make([]byte, n), 0, 0, nil)
		}
	}
	sent := make(map[uint32]int)
	for len(h.queued) < 150 {
		require.True(t, h.pull(false))
		p := h.queued[len(h.queued)-1].payload
		sent[ID(p)] += len(p)
	}
	for i := range sizes {
		require.InDelta(t, sent[1], sent[uint32(2*i+1)], 2500, "%v", sent)
	}
}

// What the session itself sends has priority 0: it leaves before streams of less.
func TestSessionAmongStreams(t *testing.T) {
	for priority, first := range map[int8]bool{-1: false, 1: true} {
		h := newHost(1, someLimits)
		s, err := h.table.Open(Params{Priority: priority})
		require.NoError(t, err)
		s.Write(make([]byte, 10_000))
		require.True(t, h.pull(false))
		require.Equal(t, first, h.pull(true), "%d", priority)
		require.True(t, h.pull(false))
	}
}

// There are ids for 2^31 - 1 streams of an end.
func TestIDsAreUsedUp(t *testing.T) {
	h := newHost(1, someLimits)
	_, err := h.table.Open(Params{})
	require.NoError(t, err)
	h.table.next = 1<<32 - 3
	_, err = h.table.Open(Params{})
	require.NoError(t, err)
	_, err = h.table.Open(Params{})
	require.ErrorIs(t, err, errIDs)
}

// The buffer of a stream that nothing has needed yet, and the largest, do not grow.
func TestNoGrowth(t *testing.T) {
	for window, grows := range map[int]bool{InitialCredit: false, 1 << 20: true, 8 << 20: false} {
		h := newHost(2, someLimits)
		h.table.Input((&Header{ID: 1, Kind: Open, Opens: true}).Append(nil), false)
		r := h.table.Accept()
		r.in.window = window
		r.grow(window)
		require.Equal(t, grows, r.in.window > window, "%d", window)
	}
}

// When the half for anything is full, a write waits for it unless there is credit for
// all of it, or for 32 KiB.
func TestRoomForCredit(t *testing.T) {
	h := newHost(1, someLimits)
	h.room = 128 << 10
	full, err := h.table.Open(Params{})
	require.NoError(t, err)
	full.Write(make([]byte, 100<<10))
	s, err := h.table.Open(Params{})
	require.NoError(t, err)
	for credit, want := range map[int]Half{0: ForAny, 999: ForAny, 1000: ForCredit} {
		s.out.limit = s.out.used + container.Serial(credit+SegmentCost)
		_, half := s.Room(1000)
		require.Equal(t, want, half, "%d", credit)
	}
}

// A message of which something was sent is given up by a segment of its own.
func TestPurgeOfABegunMessage(t *testing.T) {
	h := newHost(1, someLimits)
	s, err := h.table.Open(Params{})
	require.NoError(t, err)
	s.Send(make([]byte, 3000), 0, 5, func(error) {})
	require.True(t, h.pull(false))
	s.Purge()
	require.Empty(t, s.out.abandoned)
	h.now = 10
	s.Purge()
	require.Len(t, s.out.abandoned, 1)
}

// While bytes are in flight, which are no messages, nothing is said of what precedes a
// message that is given up.
func TestAbandonedBehindBytes(t *testing.T) {
	for _, bytes := range []bool{false, true} {
		h := newHost(1, someLimits)
		s, err := h.table.Open(Params{})
		require.NoError(t, err)
		if bytes {
			s.Write(make([]byte, 100))
			require.True(t, h.pull(false))
		}
		s.Send(make([]byte, 100), 0, 5, func(error) {})
		require.True(t, h.pull(false))
		h.now = 10
		_, ok := h.table.AbandonedUpTo(h.queued[len(h.queued)-1].tag)
		require.Equal(t, !bytes, ok)
	}
}

// A message that is given up tells of those before it up to one that is not: that may
// arrive yet.
func TestAbandonedUpToWhatIsLeft(t *testing.T) {
	h := newHost(1, someLimits)
	s, err := h.table.Open(Params{})
	require.NoError(t, err)
	for _, deadline := range []int64{5, 20, 5} {
		s.Send(make([]byte, 100), 0, deadline, func(error) {})
		require.True(t, h.pull(false))
	}
	h.now = 10
	mid, ok := h.table.AbandonedUpTo(h.queued[2].tag)
	require.True(t, ok)
	require.EqualValues(t, 0, mid)
	h.now = 20
	mid, ok = h.table.AbandonedUpTo(h.queued[2].tag)
	require.True(t, ok)
	require.EqualValues(t, 2, mid)
}
