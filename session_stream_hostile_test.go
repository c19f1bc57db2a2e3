package kcp

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// badStreamCase is what a peer sends that it should not, as payloads of stream
// segments, and what comes of it.
type badStreamCase struct {
	name     string
	segments [][]byte
	code     uint64 // with which stream 1 is reset, at both ends; 0: it is not
	drops    uint64 // counted by the receiver
	atSender uint64 // and by the end that has sent them
	streams  int    // that the receiver has more than before
	readErr  error  // what the receiver's Read of stream 1 returns; nil: it does not fail
}

// badData returns a whole message of stream 1, or what change makes of it.
func badData(change func(h *streamHeader), n int) []byte {
	h := streamHeader{id: 1, kind: streamData, end: true}
	change(&h)
	return append(h.append(nil), make([]byte, n)...)
}

// badMessage returns a whole message of stream 1.
func badMessage(mid seq) []byte { return badData(func(h *streamHeader) { h.mid = mid }, 1) }

// badPart returns a fragment of message 1 of stream 1.
func badPart(fsn uint32, end bool) []byte {
	return badData(func(h *streamHeader) { h.part, h.end, h.fsn, h.mid = true, end, fsn, 1 }, 10)
}

// badControl returns a segment of stream 1 without data.
func badControl(h streamHeader) []byte {
	h.id = 1
	return h.append(nil)
}

func badFin(n seq) []byte { return badControl(streamHeader{kind: streamFin, mid: n}) }

func badAbandon(mid seq, size uint16) []byte {
	return badControl(streamHeader{kind: streamAbandon, mid: mid, size: size})
}

// badAbandonAll returns an ABANDON of all messages up to mid.
func badAbandonAll(mid seq) []byte {
	return badControl(streamHeader{kind: streamAbandon, end: true, mid: mid, size: noSegment})
}

// badCredit returns n messages, eight of which use up the credit of stream 1; or, if
// parts, fragments of one.
func badCredit(n int, parts bool) (all [][]byte) {
	for i := range n {
		all = append(all, badData(func(h *streamHeader) {
			if h.mid = seq(i); parts {
				h.mid, h.part, h.end, h.fsn = 0, true, false, uint32(i)
			}
		}, initialCredit/64-streamCost))
	}
	return all
}

// badAbandons returns an ABANDON of each of n messages of which nothing arrives
// before, and with their DATA that, too.
func badAbandons(n int, data bool) (all [][]byte) {
	for i := range n {
		all = append(all, badAbandon(seq(i+1), noSegment))
	}
	for i := range n {
		if data {
			all = append(all, badData(func(h *streamHeader) { h.mid, h.part, h.end = seq(i+1), true, false }, 0))
		}
	}
	return all
}

// ofUnknown returns a segment of each kind of a stream that the peer has not
// opened: one of the receiver's, and one of the peer's without options.
func ofUnknown() (all [][]byte) {
	for kind := range streamKinds {
		if kind != streamOpen {
			all = append(all, (&streamHeader{id: 2, kind: kind, end: kind == streamData}).append(nil),
				(&streamHeader{id: 99, kind: kind, end: kind == streamData}).append(nil))
		}
	}
	return append(all, (&streamHeader{id: 2, kind: streamOpen, opens: true}).append(nil))
}

// opening returns the segments that open n streams of the peer from number 5 on.
func opening(n int) (all [][]byte) {
	for i := range uint32(n) {
		all = append(all, badData(func(h *streamHeader) { h.id, h.opens = 5+2*i, true }, 3))
	}
	return all
}

var badStreamCases = []badStreamCase{
	{name: "malformed", segments: [][]byte{{1, 0, 0, 0, 99}, {1, 0, 0, 0}, {}}, drops: 3},
	{name: "unknown stream", segments: ofUnknown(), drops: 13},
	{name: "id far ahead", segments: [][]byte{badData(func(h *streamHeader) { h.id, h.opens = 1<<32-1, true }, 1)}, drops: 1},
	{name: "priority", segments: [][]byte{badData(func(h *streamHeader) { h.id, h.opens, h.params.priority = 5, true, 8 }, 1)}, drops: 1},
	{name: "as many streams as allowed", segments: opening(2), streams: 2},
	// The peer did not open what is refused here, so it drops what refuses it.
	{name: "more streams than allowed", segments: opening(9), streams: 2, atSender: 7},

	{name: "credit used up", segments: badCredit(64, false)},
	{name: "credit exceeded", segments: badCredit(65, false), code: StreamViolation, drops: 1},
	{name: "message beyond limits", segments: badCredit(64, true), code: StreamTooLarge, drops: 1},

	{name: "one message twice", segments: [][]byte{badMessage(1), badMessage(1)}, code: StreamViolation, drops: 1},
	{name: "message too far ahead", segments: [][]byte{badMessage(maxMessagesAhead + 1)}, code: StreamViolation, drops: 1},
	{name: "message half the circle ahead", segments: [][]byte{badMessage(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "old message", segments: [][]byte{badMessage(1<<32 - 1)}},
	{name: "one fragment twice", segments: [][]byte{badPart(1, false), badPart(1, false)}, code: StreamViolation, drops: 1},
	{name: "two ends", segments: [][]byte{badPart(1, true), badPart(2, true)}, code: StreamViolation, drops: 1},
	{name: "fragment behind the end", segments: [][]byte{badPart(1, true), badPart(2, false)}, code: StreamViolation, drops: 1},
	{name: "end before a fragment", segments: [][]byte{badPart(5, false), badPart(1, true)}, code: StreamViolation, drops: 1},
	{name: "last fragment there is", segments: [][]byte{badPart(1<<32-1, false)}, code: StreamViolation, drops: 1},
	{name: "fragment of a whole message", segments: [][]byte{badMessage(1), badPart(1, false)}, code: StreamViolation, drops: 1},

	{name: "data after FIN", segments: [][]byte{badFin(1), badMessage(1)}, code: StreamViolation, drops: 1},
	{name: "FIN before data", segments: [][]byte{badMessage(3), badFin(3)}, code: StreamViolation, drops: 1},
	{name: "FIN far ahead", segments: [][]byte{badFin(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "another FIN", segments: [][]byte{badFin(5), badFin(6)}, code: StreamViolation, drops: 1},
	{name: "FIN again", segments: [][]byte{badFin(0), badFin(0)}, readErr: io.EOF},
	{name: "data after RESET", segments: [][]byte{badControl(streamHeader{kind: streamReset, code: 5}), badMessage(0), badFin(0)}, readErr: &StreamError{Code: 5, Remote: true}},

	{name: "abandoned far ahead", segments: [][]byte{badAbandon(1<<31, noSegment)}, code: StreamViolation, drops: 1},
	{name: "abandoned after FIN", segments: [][]byte{badFin(1), badAbandon(1, noSegment)}, code: StreamViolation, drops: 1},
	{name: "abandoned when delivered", segments: [][]byte{badMessage(0), badAbandon(0, noSegment), badAbandon(0, 7)}},
	{name: "abandoned when complete and early", segments: [][]byte{badMessage(1), badAbandon(1, noSegment), badMessage(0)}},
	{name: "abandoned beyond the credit", segments: [][]byte{badAbandon(0, 65534)}, code: StreamViolation, drops: 1},
	{name: "abandoned twice", segments: [][]byte{badAbandon(1, noSegment), badAbandon(1, noSegment)}},
	{name: "abandoned, as many as credit", segments: badAbandons(initialCredit/streamCost, false)},
	{name: "abandoned before they arrive", segments: badAbandons(initialCredit/streamCost, true)},
	{name: "more abandoned than credit", segments: badAbandons(initialCredit/streamCost+1, false), code: StreamViolation, drops: 1},
	{name: "another beside as many abandoned", segments: append(badAbandons(initialCredit/streamCost, false), badMessage(999)), code: StreamViolation, drops: 1},
	{name: "all abandoned far ahead", segments: [][]byte{badAbandonAll(maxMessagesAhead + 1)}, code: StreamViolation, drops: 1},
	{name: "all abandoned half the circle ahead", segments: [][]byte{badAbandonAll(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "all abandoned after FIN", segments: [][]byte{badFin(2), badAbandonAll(2)}, code: StreamViolation, drops: 1},
	{name: "all abandoned again", segments: [][]byte{badAbandonAll(9), badAbandonAll(9), badAbandonAll(3), badAbandon(3, 7)}},
	{name: "fragment of an abandoned message", segments: [][]byte{badAbandon(1, noSegment), badPart(0, false)}},

	{name: "credit backwards", segments: [][]byte{badControl(streamHeader{kind: streamCredit, limit: 1})}},
	{name: "credit half the circle ahead", segments: [][]byte{badControl(streamHeader{kind: streamCredit, limit: 1<<31 + 65536})}},
}

// What a peer should not send is a counted drop, or resets its stream with the
// reason. It is acknowledged all the same. Nothing else is disturbed: neither the
// accounts of another stream and of the session, nor what they carry.
func TestBadStreamSegments(t *testing.T) {
	long(t)
	for _, tc := range badStreamCases {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 10, clean, func(w *world) {
				a, b, _ := w.pair(nil, &Config{MaxStreams: 4, StreamReceiveBuffer: initialCredit})
				s, r := streamPair(t, a, b, nil)
				require.EqualValues(t, 1, s.ID())
				other, peer := streamPair(t, a, b, nil)
				_, err := other.Write(content(3, 5000))
				require.NoError(t, err)
				_, err = a.Write(content(4, 5000))
				require.NoError(t, err)
				time.Sleep(time.Second)
				before, figures := peer.Stats(), figuresOf(b)
				received := b.Stats().BytesReceived
				n := 0
				for _, p := range tc.segments {
					a.sendRaw(p)
					n += len(p)
				}
				time.Sleep(time.Second)
				st := a.Stats()
				require.Zero(t, st.InFlight+st.Queued, "they are acknowledged")
				require.Equal(t, Drops{Stream: tc.drops}, b.Stats().Dropped)
				require.Equal(t, Drops{Stream: tc.atSender}, st.Dropped)
				tc.checkReset(t, s, r)

				require.Equal(t, before, peer.Stats())
				require.GreaterOrEqual(t, b.Stats().BytesReceived, received+uint64(n))
				now := figuresOf(b)
				opened := tc.streams
				if tc.code != 0 {
					opened-- // stream 1 is over
				}
				require.Equal(t, figures.fromPeer+opened, now.fromPeer)
				require.Equal(t, figures.streams+opened, now.streams)
				require.Zero(t, now.refused+now.ahead+now.awaited)
				receive(t, peer, content(3, 5000))
				receive(t, b, content(4, 5000))
				bothWays(t, other, peer, content(1, 100000), content(2, 100000))
				bothWays(t, a, b, content(1, 20000), content(2, 20000))
				if tc.streams == 0 {
					more, accepted := streamPair(t, a, b, nil)
					bothWays(t, more, accepted, content(5, 20000), content(6, 20000))
				}
			})
		})
	}
}

// checkReset checks what has become of stream 1, of which s is the sender's end.
func (tc *badStreamCase) checkReset(t *testing.T, s, r *Stream) {
	if tc.code != 0 {
		_, err := r.Write([]byte{1})
		wantReset(t, err, tc.code, false)
		_, err = s.Write([]byte{1})
		wantReset(t, err, tc.code, true)
		require.Zero(t, r.Stats().ReadBuffered)
		return
	}
	_, err := r.Write([]byte{1})
	require.NoError(t, err)
	receive(t, s, []byte{1})
	if tc.readErr != nil {
		_, err := r.Read(make([]byte, 1))
		require.ErrorContains(t, err, tc.readErr.Error())
	}
}

// sendRaw sends a stream segment with this payload.
func (c *Conn) sendRaw(payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	copy(c.kcp.queueStream(&c.streamTable().control.streamTag, len(payload)), payload)
	c.push()
}

// hostileStreams is a session whose streams a test makes large, to see what a
// segment of them costs.
type hostileStreams struct {
	*testing.T
	c *Conn
}

// take has a segment of stream 1 arrive, which has credit for all that a test sends.
func (h *hostileStreams) take(header streamHeader, n int) {
	header.id, header.opens = 1, true
	if header.kind == streamData && !header.part {
		header.end = true
	}
	h.c.onStream(append(header.append(nil), make([]byte, n)...))
	if s := h.c.streams.streams[1]; s != nil {
		s.in.window = 1 << 28
		s.in.limit = s.in.freed + seq(s.in.window)
	}
}

// expect fails the test if stream 1 is over.
func (h *hostileStreams) expect() {
	require.NotNil(h, h.c.streams.streams[1])
	require.Zero(h, h.c.drops().Stream)
}

// write has the application queue n messages with receipts on each of 16 streams, of
// which the peer takes nothing.
func (h *hostileStreams) write(n int, lifetime time.Duration) (streams []*Stream) {
	for range 16 {
		s, err := h.c.streamTable().openLocked(streamParams{})
		require.NoError(h, err)
		s.out.limit = s.out.used
		h.c.mu.Unlock()
		for range n / 16 {
			require.NoError(h, s.SendMessage([]byte{1}, &MessageOptions{Lifetime: lifetime, Done: func(error) {}}))
		}
		h.c.mu.Lock()
		streams = append(streams, s)
	}
	return streams
}

// segmentCosts are segments whose work might depend on what a stream holds. Each
// function makes that n entries, and returns what brings the segment.
var segmentCosts = map[string]func(h *hostileStreams, n int) func(){
	"FIN again": func(h *hostileStreams, n int) func() {
		h.notes(n)
		h.take(streamHeader{kind: streamFin, mid: seq(n + 9)}, 0)
		return func() { h.take(streamHeader{kind: streamFin, mid: seq(n + 9)}, 0) }
	},
	"FIN": func(h *hostileStreams, n int) func() {
		h.notes(n)
		return func() { h.take(streamHeader{kind: streamFin, mid: seq(n + 9)}, 0) }
	},
	"bad FIN": func(h *hostileStreams, n int) func() {
		h.notes(n)
		return func() { h.take(streamHeader{kind: streamFin, mid: seq(n)}, 0) }
	},
	"the message that was missing": func(h *hostileStreams, n int) func() {
		h.early(n)
		return func() { h.take(streamHeader{}, 1) }
	},
	"the missing one is abandoned": func(h *hostileStreams, n int) func() {
		h.early(n)
		return func() { h.take(streamHeader{kind: streamAbandon, size: noSegment}, 0) }
	},
	"all are abandoned": func(h *hostileStreams, n int) func() {
		h.early(n)
		return func() { h.take(streamHeader{kind: streamAbandon, end: true, mid: seq(n), size: noSegment}, 0) }
	},
	"half are abandoned": func(h *hostileStreams, n int) func() {
		h.early(n)
		return func() { h.take(streamHeader{kind: streamAbandon, end: true, mid: seq(n / 2), size: noSegment}, 0) }
	},
	"those before all early ones are abandoned": func(h *hostileStreams, n int) func() {
		for i := range n {
			h.take(streamHeader{mid: seq(2*n + i)}, 1)
		}
		return func() {
			h.take(streamHeader{kind: streamAbandon, end: true, mid: seq(2*n - 2), size: noSegment}, 0)
		}
	},
	"the last fragment": func(h *hostileStreams, n int) func() {
		for i := range n {
			h.take(streamHeader{part: true, fsn: uint32(n - i)}, 1)
		}
		return func() {
			h.take(streamHeader{part: true, end: true, fsn: uint32(n + 1)}, 1)
			h.take(streamHeader{part: true}, 1)
		}
	},
	"RESET": func(h *hostileStreams, n int) func() {
		h.early(n)
		return func() { h.take(streamHeader{kind: streamReset, code: 1}, 0) }
	},
	"the stream that was missing": func(h *hostileStreams, n int) func() {
		for i := range uint32(n) {
			h.c.onStream((&streamHeader{id: 2*i + 3, opens: true, kind: streamReset, code: 1}).append(nil))
		}
		return func() { h.take(streamHeader{}, 1) }
	},
	"STOP": func(h *hostileStreams, n int) func() {
		s := h.write(n, 0)[0]
		return func() { h.c.onStream((&streamHeader{id: s.id, kind: streamStop, code: 1}).append(nil)) }
	},
	"refused": func(h *hostileStreams, n int) func() {
		s := h.write(n, 0)[0]
		return func() { h.c.onStream((&streamHeader{id: s.id, kind: streamReset, code: StreamRefused}).append(nil)) }
	},
	"the end of the session": func(h *hostileStreams, n int) func() {
		h.write(n, 0)
		return func() { h.c.undelivered(); h.c.failStreams(net.ErrClosed) }
	},
	"the end of the session when lifetimes are over": func(h *hostileStreams, n int) func() {
		h.write(n, time.Minute)
		h.c.setClock(h.c.ep.now() + time.Hour)
		return func() { h.c.undelivered(); h.c.failStreams(net.ErrClosed) }
	},
}

// early has n messages arrive behind a missing one.
func (h *hostileStreams) early(n int) {
	for i := range n {
		h.take(streamHeader{mid: seq(i + 1)}, 1)
	}
	h.expect()
}

// notes has n messages behind a missing one be abandoned.
func (h *hostileStreams) notes(n int) {
	h.take(streamHeader{kind: streamOpen}, 0)
	for i := range n {
		h.take(streamHeader{kind: streamAbandon, mid: seq(i + 1), size: noSegment}, 0)
	}
	h.expect()
}

// No segment of a stream, and no end of a session, costs more when streams hold
// more: neither of what has arrived, nor of what waits to be sent.
func TestStreamSegmentsCostTheSame(t *testing.T) {
	sequential(t)
	const few, many = 1024, 16 * 1024
	config := &Config{MaxStreams: 1 << 17, StreamWriteBuffer: 1 << 28, StreamReceiveBuffer: 1 << 28, ReceiveWindow: 65535}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	e, err := NewEndpoint(socket, config)
	require.NoError(t, err)
	defer e.Close()
	for name, prepare := range segmentCosts {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) time.Duration {
				least := time.Hour
				for range 5 {
					c := newConn(e, sessionKey{Conv: 1}, socket.LocalAddr())
					c.mu.Lock()
					bring := prepare(&hostileStreams{t, c}, n)
					begin := time.Now()
					bring()
					least = min(least, time.Since(begin))
					c.mu.Unlock()
				}
				return least
			}
			a, b := cost(few), cost(many)
			t.Logf("%v with %d entries, %v with %d", a, few, b, many)
			require.Less(t, b, 4*max(a, 20*time.Microsecond))
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
	segment   func(h *streamHeader, i int) (more bool)
}{
	{"open", 256, false, false, true, func(h *streamHeader, i int) bool { h.kind = streamOpen; return false }},
	{"stopped", 256, false, false, true, func(h *streamHeader, i int) bool { h.kind, h.code = streamStop, 1; return false }},
	{"unread", 16, false, false, true, func(h *streamHeader, i int) bool { h.mid, h.end = seq(i), true; return true }},
	{"a few unread", 16, false, false, true, func(h *streamHeader, i int) bool { h.mid, h.end = seq(i), true; return i < 130 }},
	{"early", 16, false, false, false, func(h *streamHeader, i int) bool { h.mid, h.end = seq(i+1), true; return true }},
	{"fragments of one message", 16, false, false, false, func(h *streamHeader, i int) bool { h.part, h.fsn = true, uint32(i+1); return true }},
	{"a fragment of each message", 16, false, false, false, func(h *streamHeader, i int) bool { h.part, h.mid, h.fsn = true, seq(i+1), 7; return true }},
	{"abandoned", 16, false, false, true, func(h *streamHeader, i int) bool {
		h.kind, h.mid, h.size = streamAbandon, seq(i+1), noSegment
		return true
	}},
	{"abandoned with their place", 16, false, false, true, func(h *streamHeader, i int) bool {
		h.kind, h.mid, h.size = streamAbandon, seq(i/2+1), noSegment
		if i%2 == 1 {
			h.size = 1
		}
		return true
	}},
	{"arrived, then abandoned", 16, false, false, false, func(h *streamHeader, i int) bool {
		if h.mid, h.part = seq(i/2+1), true; i%2 == 1 {
			h.kind, h.part, h.size = streamAbandon, false, noSegment
		}
		return true
	}},
	{"unordered, behind a missing one", 16, true, false, false, func(h *streamHeader, i int) bool { h.mid, h.end = seq(i+1), true; return true }},
	{"unordered, and read", 16, true, true, false, func(h *streamHeader, i int) bool { h.mid, h.end = seq(i+1), true; return true }},
	{"unordered, spread", 16, true, true, false, func(h *streamHeader, i int) bool { h.mid, h.end = seq(i*9+1), true; return true }},
}

// hoard has segments arrive on each stream, as many as credit allows. It returns how many did, and the most that a stream has held.
func hoard(t *testing.T, c *Conn, kind int) (arrived, most int) {
	how := hoards[kind]
	for id := uint32(1); id < 2*how.streams; id += 2 {
		for i := range 1 << 13 {
			h := streamHeader{id: id, opens: true, params: streamParams{unordered: how.unordered}}
			more := how.segment(&h, i)
			s := c.streamTable().streams[id]
			if s != nil && (s.in.credit() < 2*streamCost || h.mid-s.in.next > maxMessagesAhead) {
				break
			}
			b := h.append(nil)
			if h.kind == streamData {
				b = append(b, 1)
			}
			c.onStream(b)
			arrived++
			s = c.streams.streams[id]
			for how.read && s.in.waits() {
				s.in.bytes -= s.in.ready[s.in.head].left
				s.takenLocked()
			}
			most = max(most, s.in.held)
			if !more {
				break
			}
		}
	}
	require.Zero(t, c.drops().Stream)
	return arrived, most
}

// What a peer causes streams to hold is counted as allocated, whatever it sends,
// and a stream that the application has not read holds 64 KiB at most, unless a
// message needs more.
func TestStreamMemoryIsCounted(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	e, err := NewEndpoint(socket, &Config{ReceiveWindow: 65535})
	require.NoError(t, err)
	defer e.Close()
	for kind, how := range hoards {
		t.Run(how.name, func(t *testing.T) {
			c := newConn(e, sessionKey{Conv: 1}, socket.LocalAddr())
			c.mu.Lock()
			defer c.mu.Unlock()
			idle := c.held()
			before := memoryInUse()
			arrived, most := hoard(t, c, kind)
			heap, counted := int(memoryInUse()-before), c.held()-idle
			t.Logf("%d segments, heap %d, counted %d, a stream %d", arrived, heap, counted, most)
			require.LessOrEqual(t, heap, counted+counted/2+16<<10)
			require.LessOrEqual(t, counted, 3*heap)
			if how.little {
				require.LessOrEqual(t, most, initialCredit)
			}
			require.LessOrEqual(t, most, e.config.StreamReceiveBuffer)
			runtime.KeepAlive(c)
		})
	}
}

// Ids far ahead, and refusals that cannot be sent, hold little, and are counted.
func TestStreamIDsHoldLittle(t *testing.T) {
	if !alone(t) {
		return
	}
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	e, err := NewEndpoint(socket, &Config{MaxStreams: 1})
	require.NoError(t, err)
	defer e.Close()
	const sessions = 8
	var all [sessions]*Conn
	for i := range all {
		all[i] = newConn(e, sessionKey{Conv: 1}, socket.LocalAddr())
	}
	before, counted := memoryInUse(), 0
	for _, c := range all {
		c.mu.Lock()
		idle := c.held()
		for i := range uint32(maxIDsAhead) {
			c.onStream((&streamHeader{id: 4*i + 3, opens: true, kind: streamOpen}).append(nil))
		}
		counted += (c.held() - idle) / sessions
		require.EqualValues(t, maxIDsAhead/2, c.drops().Stream)
		c.mu.Unlock()
	}
	heap := int(memoryInUse()-before) / sessions
	t.Logf("heap %d, counted %d", heap, counted)
	require.LessOrEqual(t, heap, counted+counted/2+16<<10)
	require.LessOrEqual(t, counted, 40<<10)
	runtime.KeepAlive(all)
}
