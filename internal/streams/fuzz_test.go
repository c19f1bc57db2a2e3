package streams

import (
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
)

// resetError is the error of a stream that was reset.
type resetError struct {
	code   uint64
	remote bool
}

func (resetError) Error() string { return "reset" }

// testHost is a session with nothing but streams.
type testHost struct {
	table    Table
	first    uint32 // id
	now      int64
	room     int
	payload  int
	rtt      time.Duration
	short    bool
	receipts Receipts
	dropped  int
	queued   []segment // by Pull
	limit    int       // what the peer takes at first; 0: it tells no limit
}

// segment is one that is with the machine.
type segment struct {
	tag     *Tag
	payload []byte
}

func newHost(first uint32, limits Limits) *testHost {
	h := &testHost{first: first, payload: 1000, room: 1 << 28, rtt: 10 * time.Millisecond}
	h.table.Init(h, limits)
	return h
}

// someLimits are those of a session.
var someLimits = Limits{Streams: 100, ReceiveBuffer: 1 << 20, MostReceiveBuffer: 8 << 20, WriteBuffer: 256 << 10, MostShown: 8 << 20}

// testHeadroom is what precedes the payload in the buffer of a segment.
const testHeadroom = 30

func (h *testHost) NewSegment(n int) []byte { return make([]byte, testHeadroom+n) }

func (h *testHost) GrowSegment(buf []byte, n int) []byte {
	if n <= cap(buf) {
		return buf[:n]
	}
	return append(make([]byte, 0, n), buf...)[:n]
}

// pull takes the next segment of the table for the state machine of the session.
func (h *testHost) pull(plain bool) bool {
	t, buf, ok := h.table.Pull(plain)
	if ok {
		t.InFlight++
		h.queued = append(h.queued, segment{t, buf[testHeadroom:]})
	}
	return ok
}

func (h *testHost) FreeSegment(buf []byte) { clear(buf[:cap(buf)]) } // what still uses it sees other bytes

func (h *testHost) SegmentPayload() int { return h.payload }
func (h *testHost) Now() int64          { return h.now }
func (h *testHost) MemoryIsShort() bool { return h.short }
func (h *testHost) WriteBuffer() int    { return h.room }
func (h *testHost) FirstID() uint32     { return h.first }
func (h *testHost) PeerLimit() int      { return h.limit }
func (h *testHost) Opened()             {}
func (h *testHost) Dropped()            { h.dropped++ }

func (h *testHost) RoundTrip() (last, rtt time.Duration) {
	return time.Duration(h.now) * time.Microsecond, h.rtt
}

func (h *testHost) NewStream(*Params) *Stream { return &Stream{Owner: new(testOwner)} }

func (h *testHost) Error(code uint64, remote bool) error { return resetError{code, remote} }
func (h *testHost) Closed() error                        { return resetError{0, true} }
func (h *testHost) Finish(t *Tag, err error)             { h.receipts.Finish(t, err) }

func (h *testHost) Fail(a *Awaiting, f Failure) {
	f.At = h.now
	h.receipts.Fail(a, f)
}

// testOwner counts the calls.
type testOwner struct{ readable, writable int }

func (o *testOwner) Readable() { o.readable++ }
func (o *testOwner) Writable() { o.writable++ }

// acked has the segment be acknowledged.
func (h *testHost) acked(s segment) {
	s.tag.InFlight--
	h.table.Acked(s.tag)
}

// script builds stream segments of bytes: most fit, some almost.
type script []byte

func (in *script) next() byte {
	if len(*in) == 0 {
		return 0
	}
	b := (*in)[0]
	*in = (*in)[1:]
	return b
}

// number returns one of those near 0, near the ends of 32 bits, or in between.
func (in *script) number() uint32 {
	b := in.next()
	switch b >> 6 {
	case 0, 1:
		return uint32(b & 0x3f)
	case 2:
		return -uint32(b & 0x3f)
	}
	return uint32(b&0x3f) << 25
}

func (in *script) segment() []byte {
	what := in.next()
	h := Header{
		ID: 1 + uint32(what>>4&3), Kind: Kind(in.next() % uint8(Kinds)), Opens: what&1 != 0,
		MID: container.Serial(in.number()),
	}
	switch h.Kind {
	case Data:
		h.End, h.Part = what&2 != 0, what&4 != 0
		if h.End = h.End || !h.Part; h.Part {
			h.FSN = in.number()
		}
	case Abandon:
		h.Size = uint16(in.number())
	case Reset, Stop:
		h.Code = uint64(in.number()) << (what & 0x20)
	case Credit:
		h.Limit = container.Serial(in.number()) << (what & 8)
		if what&2 != 0 {
			return (&Header{Kind: MaxStreams, Streams: uint32(h.Limit)}).Append(nil)
		}
	case Open:
		h.Opens = true
	}
	if h.Opens {
		h.Params = Params{Unordered: what&8 != 0, Priority: int8(what % 9)}
	}
	b := h.Append(nil)
	if h.Kind == Data {
		b = append(b, make([]byte, int(in.next())<<(what>>6*3))...)
	}
	return b
}

// Bounds of an input of FuzzStreams. After each step all streams are checked, so
// that the time for an input grows with their product.
const (
	maxScript = 2048 // bytes
	maxOpen   = 32   // streams opened by this end
)

// Whatever segments arrive, and whatever the application does in between: nothing
// panics, what is held is what the streams hold, no stream holds more than its
// credit, and once all of them are closed nothing is left.
func FuzzStreams(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x10\x11\x00\x01\x20\x01\x02\x01"))
	f.Add([]byte("\x05\x00\x00\x00\x10\x07\x00\x00\x01\x10\x01\x01\x01\xff\xff"))
	f.Add([]byte("\xff\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	f.Add(make([]byte, maxScript))
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 500)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		in := script(input[:min(len(input), maxScript)])
		limits := someLimits
		h := newHost(2, limits)
		if len(in)&1 != 0 {
			limits.Streams = 2 // of the four that the script has
			h = newHost(2, limits)
			h.limit = 3
		}
		table := &h.table
		var mine []*Stream
		done := make(ends)
		for len(in) > 0 {
			switch op := in.next(); {
			case op < 16 && len(mine) < maxOpen && table.MayOpen(nil):
				s, err := table.Open(Params{Unordered: op&1 != 0})
				require.NoError(t, err)
				mine = append(mine, s)
			case op < 32 && len(table.backlog) > 0:
				mine = append(mine, table.Accept())
			case op < 64 && len(mine) > 0:
				mine[int(op)%len(mine)].Read(make([]byte, 1<<20))
			case op < 80 && len(mine) > 0:
				if s := mine[int(op)%len(mine)]; s.CannotWrite() == nil {
					s.Write(make([]byte, 1+int(op)))
				}
			case op < 84 && len(mine) > 0:
				s := mine[int(op)%len(mine)]
				s.Finish()
				done.of(s).wrote = true
			case op < 86 && len(mine) > 0:
				s := mine[int(op)%len(mine)]
				s.Reset(1)
				*done.of(s) = end{true, true}
			case op < 87 && len(mine) > 0:
				s := mine[int(in.next())%len(mine)]
				s.CancelWrite(2)
				done.of(s).wrote = true
			case op < 88 && len(mine) > 0:
				s := mine[int(in.next())%len(mine)]
				if _, more := s.NextMessage(); !more && s.ReadEnd() != nil {
					s.ReadDone()
					done.of(s).knows = true
				}
			case op < 96 && len(in) > 3:
				n := min(len(in), int(op)%16)
				table.Input(in[:n], false) // as it is
				in = in[n:]
			case op < 98 && len(mine) > 0:
				if s := mine[int(op)%len(mine)]; s.CannotWrite() == nil {
					s.Send(make([]byte, int(in.next())<<8), 0, h.now+1+int64(in.next()), func(error) {})
				}
			case op < 99:
				if h.now += int64(in.next()); table.Expires() > 0 && h.now >= table.Expires() {
					table.Purge()
				}
			case op < 102:
				for range 64 {
					h.pull(false)
				}
			case op < 110:
				h.pull(op&1 != 0)
			case op < 120 && len(h.queued) > 0:
				i := int(op) % len(h.queued)
				h.acked(h.queued[i])
				h.queued = append(h.queued[:i], h.queued[i+1:]...)
			default:
				table.Input(in.segment(), false)
			}
			check(t, table)
			done.check(t, table, mine)
		}
		for s := table.Accept(); s != nil; s = table.Accept() {
			mine = append(mine, s)
		}
		for _, s := range mine {
			s.StopReading(0)
			s.Reset(0)
			*done.of(s) = end{true, true}
			require.Zero(t, s.in.held)
			require.Zero(t, s.out.memory)
		}
		check(t, table)
		done.check(t, table, mine)
		require.Zero(t, table.held)
		require.Zero(t, table.queued)
		for h.pull(false) {
		}
		require.True(t, table.Drained())
		for _, s := range h.queued {
			h.acked(s)
		}
		require.Zero(t, table.Len(), "all is acknowledged, so all streams are over")
		require.Zero(t, table.fromPeer, "and the application is done with them")
		require.Zero(t, table.grown)
		seen := table.Counts.Accepted + table.Counts.Refused
		if told := uint64(max(table.told, uint32(limits.Streams))); h.limit > 0 && !table.refuses() {
			require.LessOrEqual(t, told, seen+uint64(limits.Streams))
			require.Greater(t, 2*(told-seen), uint64(limits.Streams), "there is room that the peer does not know of")
		}
	})
}

// end is what the application has done with a stream.
type end struct {
	wrote bool // it has ended what it writes
	knows bool // that no more can be read
}

type ends map[*Stream]*end

func (e ends) of(s *Stream) *end {
	if e[s] == nil {
		e[s] = new(end)
	}
	return e[s]
}

// check counts the streams of the peer that are not over for both ends, and how far the
// receive buffers of those of which something waits have grown. mine are those that the
// application has.
func (e ends) check(t *testing.T, table *Table, mine []*Stream) {
	fromPeer, grown := 0, 0
	for _, s := range append(mine, table.backlog...) {
		if in := &s.in; !s.gone || in.waits() {
			grown += max(in.window-table.limits.ReceiveBuffer, 0)
		}
		if s.id&1 == 0 {
			continue
		}
		done := e.of(s)
		_, more := s.NextMessage()
		read := done.knows || !more && s.ReadEnd() == io.EOF && s.Stats().MessagesReceived > 0
		if !s.gone || !done.wrote || !read {
			fromPeer++
		}
	}
	require.Equal(t, fromPeer, table.fromPeer)
	require.Equal(t, grown, table.grown)
}

// check holds the accounts of the table against those of its streams.
func check(t *testing.T, table *Table) {
	all := 0
	for id, s := range table.unread {
		if all += s.in.held; !s.gone || id != s.id || !s.in.waits() {
			t.Fatalf("stream %d, gone: %v, is said to have unread data: %v", id, s.gone, s.in.waits())
		}
	}
	for id, s := range table.streams {
		if first := s.out.first; first != nil && !s.sendable() && first.of.Deadline > 0 {
			if at := table.Expires(); at == 0 || at > first.of.Deadline {
				t.Fatalf("stream %d waits until %d at most, Purge is due at %d", id, first.of.Deadline, at)
			}
		}
		in := &s.in
		all += in.held
		held, size := 0, 0
		for _, m := range in.ready[in.head:] {
			held += int(m.held)
			size += int(m.left)
		}
		for mid, m := range in.early.All {
			held += m.memory()
			size += int(m.bytes)
			if container.Serial(mid).Before(in.next) || !container.Serial(mid).Before(in.end) {
				t.Fatalf("stream %d holds message %d, but not between %d and %d", s.id, mid, in.next, in.end)
			}
		}
		switch {
		case id != s.id, held != in.held, size != in.bytes:
			t.Fatalf("stream %d (%d) holds %d bytes, %d of data; counted are %d and %d", s.id, id, held, size, in.held, in.bytes)
		case int64(uint32(in.limit-in.got)) > int64(in.window), held > in.window:
			t.Fatalf("stream %d has a credit of %d and holds %d bytes, window %d", id, in.limit-in.got, held, in.window)
		}
	}
	require.Equal(t, all, table.held)
}
