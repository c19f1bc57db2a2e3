package streams

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/testenv"
)

// hostile is a table that a test makes large, to see what a segment of it costs.
type hostile struct {
	*testing.T
	*testHost
}

// take has a segment of stream 1 arrive, which has credit for all that a test sends.
func (h *hostile) take(header Header, n int) {
	header.ID, header.Opens = 1, true
	if header.Kind == Data && !header.Part {
		header.End = true
	}
	h.table.Input(append(header.Append(nil), make([]byte, n)...), false)
	if s := h.table.streams[1]; s != nil {
		s.in.window = 1 << 28
		s.in.limit = s.in.freed + container.Serial(s.in.window)
	}
}

// expect fails the test if stream 1 is over.
func (h *hostile) expect() {
	require.NotNil(h, h.table.streams[1])
	require.Zero(h, h.dropped)
}

// write has the application queue n messages with receipts on each of 16 streams, of
// which the peer takes nothing.
func (h *hostile) write(n int, deadline int64) (streams []*Stream) {
	for range 16 {
		s, err := h.table.Open(Params{})
		require.NoError(h, err)
		s.out.limit = s.out.used
		for range n / 16 {
			s.Send([]byte{1}, 0, deadline, func(error) {})
		}
		streams = append(streams, s)
	}
	return streams
}

// segmentCosts are segments whose work might depend on what a stream holds. Each
// function makes that n entries, and returns what brings the segment.
var segmentCosts = map[string]func(h *hostile, n int) func(){
	"FIN again": func(h *hostile, n int) func() {
		h.notes(n)
		h.take(Header{Kind: Fin, MID: container.Serial(n + 9)}, 0)
		return func() { h.take(Header{Kind: Fin, MID: container.Serial(n + 9)}, 0) }
	},
	"FIN": func(h *hostile, n int) func() {
		h.notes(n)
		return func() { h.take(Header{Kind: Fin, MID: container.Serial(n + 9)}, 0) }
	},
	"bad FIN": func(h *hostile, n int) func() {
		h.notes(n)
		return func() { h.take(Header{Kind: Fin, MID: container.Serial(n)}, 0) }
	},
	"the message that was missing": func(h *hostile, n int) func() {
		h.early(n)
		return func() { h.take(Header{}, 1) }
	},
	"the missing one is abandoned": func(h *hostile, n int) func() {
		h.early(n)
		return func() { h.take(Header{Kind: Abandon, Size: NoSegment}, 0) }
	},
	"all are abandoned": func(h *hostile, n int) func() {
		h.early(n)
		return func() { h.take(Header{Kind: Abandon, End: true, MID: container.Serial(n), Size: NoSegment}, 0) }
	},
	"half are abandoned": func(h *hostile, n int) func() {
		h.early(n)
		return func() { h.take(Header{Kind: Abandon, End: true, MID: container.Serial(n / 2), Size: NoSegment}, 0) }
	},
	"those before all early ones are abandoned": func(h *hostile, n int) func() {
		for i := range n {
			h.take(Header{MID: container.Serial(2*n + i)}, 1)
		}
		return func() {
			h.take(Header{Kind: Abandon, End: true, MID: container.Serial(2*n - 2), Size: NoSegment}, 0)
		}
	},
	"the last fragment": func(h *hostile, n int) func() {
		for i := range n {
			h.take(Header{Part: true, FSN: uint32(n - i)}, 1)
		}
		return func() {
			h.take(Header{Part: true, End: true, FSN: uint32(n + 1)}, 1)
			h.take(Header{Part: true}, 1)
		}
	},
	"RESET": func(h *hostile, n int) func() {
		h.early(n)
		return func() { h.take(Header{Kind: Reset, Code: 1}, 0) }
	},
	"the stream that was missing": func(h *hostile, n int) func() {
		for i := range uint32(n) {
			h.table.Input((&Header{ID: 2*i + 3, Opens: true, Kind: Reset, Code: 1}).Append(nil), false)
		}
		return func() { h.take(Header{}, 1) }
	},
	"STOP": func(h *hostile, n int) func() {
		s := h.write(n, 0)[0]
		return func() { h.table.Input((&Header{ID: s.id, Kind: Stop, Code: 1}).Append(nil), false) }
	},
	"refused": func(h *hostile, n int) func() {
		s := h.write(n, 0)[0]
		return func() { h.table.Input((&Header{ID: s.id, Kind: Reset, Code: Refused}).Append(nil), false) }
	},
	"the end of the session": func(h *hostile, n int) func() {
		h.write(n, 0)
		return func() { h.table.Owes(); h.table.Fail(errors.New("over")) }
	},
	"the end of the session when lifetimes are over": func(h *hostile, n int) func() {
		h.write(n, 1000)
		h.now = 2000
		return func() { h.table.Owes(); h.table.Fail(errors.New("over")) }
	},
}

// early has n messages arrive behind a missing one.
func (h *hostile) early(n int) {
	for i := range n {
		h.take(Header{MID: container.Serial(i + 1)}, 1)
	}
	h.expect()
}

// notes has n messages behind a missing one be abandoned.
func (h *hostile) notes(n int) {
	h.take(Header{Kind: Open}, 0)
	for i := range n {
		h.take(Header{Kind: Abandon, MID: container.Serial(i + 1), Size: NoSegment}, 0)
	}
	h.expect()
}

// No segment of a stream, and no end of a session, costs more when streams hold
// more: neither of what has arrived, nor of what waits to be sent.
func TestSegmentsCostTheSame(t *testing.T) {
	const few, many = 1024, 16 * 1024
	limits := Limits{Streams: 1 << 17, WriteBuffer: 1 << 28, ReceiveBuffer: 1 << 28, MostReceiveBuffer: 1 << 28}
	for name, prepare := range segmentCosts {
		t.Run(name, func(t *testing.T) {
			cost := func(n, tries int, enough time.Duration) time.Duration {
				least := time.Hour // other programs only make work seem dearer
				for ; tries > 0 && least >= enough; tries-- {
					bring := prepare(&hostile{t, newHost(2, limits)}, n)
					begin := time.Now()
					bring()
					least = min(least, time.Since(begin))
				}
				return least
			}
			a := cost(few, 5, 0)
			limit := 4 * max(a, 20*time.Microsecond)
			b := cost(many, 200, limit)
			t.Logf("%v with %d entries, %v with %d", a, few, b, many)
			require.Less(t, b, limit)
		})
	}
}

// hoards are ways of a peer to have streams hold memory. Each brings segment i of
// a stream, with at most one byte, and reports whether there is another.
var hoards = []struct {
	name      string
	streams   uint32
	unordered bool
	read      bool // the application reads all it can
	little    bool // a stream holds 64 KiB at most
	segment   func(h *Header, i int) (more bool)
}{
	{"open", 256, false, false, true, func(h *Header, i int) bool { h.Kind = Open; return false }},
	{"stopped", 256, false, false, true, func(h *Header, i int) bool { h.Kind, h.Code = Stop, 1; return false }},
	{"unread", 16, false, false, true, func(h *Header, i int) bool { h.MID, h.End = container.Serial(i), true; return true }},
	{"a few unread", 16, false, false, true, func(h *Header, i int) bool { h.MID, h.End = container.Serial(i), true; return i < 130 }},
	{"early", 16, false, false, false, func(h *Header, i int) bool { h.MID, h.End = container.Serial(i+1), true; return true }},
	{"fragments of one message", 16, false, false, false, func(h *Header, i int) bool { h.Part, h.FSN = true, uint32(i+1); return true }},
	{"a fragment of each message", 16, false, false, false, func(h *Header, i int) bool { h.Part, h.MID, h.FSN = true, container.Serial(i+1), 7; return true }},
	{"abandoned", 16, false, false, true, func(h *Header, i int) bool {
		h.Kind, h.MID, h.Size = Abandon, container.Serial(i+1), NoSegment
		return true
	}},
	{"abandoned with their place", 16, false, false, true, func(h *Header, i int) bool {
		h.Kind, h.MID, h.Size = Abandon, container.Serial(i/2+1), NoSegment
		if i%2 == 1 {
			h.Size = 1
		}
		return true
	}},
	{"arrived, then abandoned", 16, false, false, false, func(h *Header, i int) bool {
		if h.MID, h.Part = container.Serial(i/2+1), true; i%2 == 1 {
			h.Kind, h.Part, h.Size = Abandon, false, NoSegment
		}
		return true
	}},
	{"unordered, behind a missing one", 16, true, false, false, func(h *Header, i int) bool { h.MID, h.End = container.Serial(i+1), true; return true }},
	{"unordered, and read", 16, true, true, false, func(h *Header, i int) bool { h.MID, h.End = container.Serial(i+1), true; return true }},
	{"unordered, spread", 16, true, true, false, func(h *Header, i int) bool { h.MID, h.End = container.Serial(i*9+1), true; return true }},
}

// hoard has segments arrive on each stream, as many as credit allows. It returns
// how many did, and the most that a stream has held.
func hoard(t *testing.T, host *testHost, kind int) (arrived, most int) {
	how, table := hoards[kind], &host.table
	for id := uint32(1); id < 2*how.streams; id += 2 {
		for i := range 1 << 13 {
			h := Header{ID: id, Opens: true, Params: Params{Unordered: how.unordered}}
			more := how.segment(&h, i)
			s := table.streams[id]
			if s != nil && (s.in.credit() < 2*SegmentCost || h.MID-s.in.next > MaxMessagesAhead) {
				break
			}
			b := h.Append(nil)
			if h.Kind == Data {
				b = append(b, 1)
			}
			table.Input(b, false)
			arrived++
			s = table.streams[id]
			for how.read && s.in.waits() {
				s.ReadMessage(make([]byte, 1))
			}
			most = max(most, s.in.held)
			if !more {
				break
			}
		}
	}
	require.Zero(t, host.dropped)
	return arrived, most
}

// What a peer causes streams to hold is counted as allocated, whatever it sends,
// and a stream that the application has not read holds 64 KiB at most, unless a
// message needs more.
func TestMemoryIsCounted(t *testing.T) {
	if !testenv.Alone(t) {
		return
	}
	for kind, how := range hoards {
		t.Run(how.name, func(t *testing.T) {
			before := testenv.MemoryInUse()
			host := newHost(2, Limits{Streams: 1 << 10, ReceiveBuffer: 256 << 10, MostReceiveBuffer: 8 << 20, WriteBuffer: 256 << 10})
			arrived, most := hoard(t, host, kind)
			heap, counted := int(testenv.MemoryInUse()-before), host.table.Memory()
			t.Logf("%d segments, heap %d, counted %d, a stream %d", arrived, heap, counted, most)
			require.LessOrEqual(t, heap, counted+counted/2+32<<10)
			require.LessOrEqual(t, counted, 3*heap)
			if how.little {
				require.LessOrEqual(t, most, InitialCredit)
			}
			require.LessOrEqual(t, most, 256<<10)
			runtime.KeepAlive(host)
		})
	}
}

// A table that delivers nothing more remembers no refusals, which would not be sent.
func TestNoRefusalsAfterFail(t *testing.T) {
	limits := someLimits
	limits.Streams = 1
	h := newHost(2, limits)
	for id := uint32(1); id < 9; id += 2 {
		if id == 5 {
			require.True(t, h.table.Waits().Some, "stream 3 is to be refused")
			h.table.Fail(ErrAbandoned)
		}
		h.table.Input((&Header{ID: id, Kind: Open, Opens: true}).Append(nil), false)
	}
	require.False(t, h.table.Waits().Some)
	require.Zero(t, h.table.Figures().Refused)
	require.EqualValues(t, 3, h.table.Counts.Refused)
}

// Ids far ahead, and refusals that cannot be sent, hold little, and are counted.
func TestIDsHoldLittle(t *testing.T) {
	if !testenv.Alone(t) {
		return
	}
	var all [8]*testHost
	before := testenv.MemoryInUse()
	for n := range all {
		all[n] = newHost(2, Limits{Streams: 1, ReceiveBuffer: 1 << 20, WriteBuffer: 1 << 20})
		for i := range uint32(MaxIDsAhead) {
			all[n].table.Input((&Header{ID: 4*i + 3, Opens: true, Kind: Open}).Append(nil), false)
		}
		require.EqualValues(t, MaxIDsAhead/2, all[n].dropped)
	}
	heap, counted := int(testenv.MemoryInUse()-before)/len(all), all[0].table.Memory()
	t.Logf("heap %d, counted %d", heap, counted)
	require.LessOrEqual(t, heap, counted+counted/2+32<<10)
	require.LessOrEqual(t, counted, 40<<10)
	runtime.KeepAlive(all)
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Any segment", "4096", maxRefusals},
		{"| Write buffer of streams", "32 KiB", mostCreditNeeded},
		{"| Credit of a stream", "64 KiB", InitialCredit},
		{"| Credit of a stream", "16ths", creditParts},
		{"| Dynamic right-sizing", "32 MiB", MaxGrowth},
		{"| No segment", "16 early", advanceSteps},
		{"| What streams hold", "128 bytes", SegmentCost},
		{"| What streams hold", "128 bytes", messageBytesHeld + fragmentBytesHeld},
		{"| What streams hold", "768 bytes", BytesHeld},
	})
}
