package kcp

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
