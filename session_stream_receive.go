package kcp

import (
	"io"
	"net"
	"os"
	"time"

	"github.com/arqnet/kcp/internal/rightsize"
	"github.com/arqnet/kcp/internal/sparse"
)

const (
	// messageBytesHeld and fragmentBytesHeld are what a message, and each of
	// its fragments, takes in memory beside its payload. Together that is
	// streamCost: a stream holds no more than its credit.
	messageBytesHeld  = 80
	fragmentBytesHeld = 48
	// maxMessagesAhead is how far ahead of the oldest message that is missing
	// others may be. Fewer fit into any receive window.
	maxMessagesAhead = 1 << 17
	// maxParts is how many fragments a message has at most. Fewer fit into
	// any receive buffer.
	maxParts = 1 << 24
	// advanceSteps is how many early messages a segment moves on past. The next
	// segment, or Read, goes on from there.
	advanceSteps = 16
	// maxStreamGrowth is how many bytes the receive buffers of a session's streams
	// together may have beyond Config.StreamReceiveBuffer.
	maxStreamGrowth = 16 << 20
	// creditParts is into how many parts a receive buffer is divided: as soon as
	// one of them is free, the sender gets credit for it.
	creditParts = 16
)

// streamIn is the receiving side of a stream. Conn.mu guards it.
type streamIn struct {
	ready  []received               // to be read; from head on
	head   int                      // in ready
	early  sparse.Map[earlyMessage] // by message: incomplete, or behind a missing one
	next   seq                      // below it all messages are read, ready or abandoned
	skip   seq                      // below it none is waited for; not below next
	end    seq                      // one more than the last known, read, early or abandoned
	got    seq                      // cost of all data that has arrived
	owed   int                      // cost of what is to arrive of messages of which only ABANDON has
	freed  seq                      // that part of got that holds nothing any more
	limit  seq                      // of got, as the peer knows it
	window int                      // how far limit may be ahead of freed, in bytes
	meter  rightsize.Meter          // of what is read
	bytes  int                      // payload held
	held   int                      // memory held, in bytes
	last   seq                      // number of messages, if fin
	fin    bool                     // the peer's FIN has arrived
	reset  bool                     // RESET has arrived, or this end has ended the stream
	stop   bool                     // this end reads no more
	err    error                    // why nothing more is read; nil: it is
	stats  StreamStats              // of both directions
}

// fragments are those of one message, by number.
type fragments = sparse.Map[[]byte]

// received is a message that can be read.
type received struct {
	data  []byte    // what Read has not taken yet, but for parts
	parts fragments // what follows data
	left  int       // bytes of both
	cost  int32     // towards the credit
	held  int32     // memory, in bytes
}

// take moves bytes of m to b, and returns their number.
func (m *received) take(b []byte) (n int) {
	for m.left > 0 && n < len(b) {
		if len(m.data) == 0 {
			_, data := m.parts.First()
			m.data = *data
			m.parts.RemoveFirst()
		}
		k := copy(b[n:], m.data)
		n, m.data, m.left = n+k, m.data[k:], m.left-k
	}
	return n
}

// over reports whether nothing more is expected of the peer.
func (in *streamIn) over() bool {
	return in.reset || in.stop || in.fin && in.next == in.last && in.early.Empty()
}

// behind reports whether advanceLocked has more to do.
func (in *streamIn) behind() bool {
	if in.next.before(in.skip) {
		return true
	}
	mid, m := in.early.First()
	return m != nil && m.complete && seq(mid) == in.next
}

// passTo moves next on to mid.
func (in *streamIn) passTo(mid seq) {
	in.next = mid
	if in.skip.before(mid) {
		in.skip = mid
	}
	if in.end.before(mid) {
		in.end = mid
	}
}

// waits reports whether something can be read.
func (in *streamIn) waits() bool { return in.head < len(in.ready) }

// holdLocked adds n to the memory that s holds.
func (s *Stream) holdLocked(n int) {
	s.in.held += n
	s.conn.streams.held += n
}

// takeLocked takes a segment of the stream.
func (s *Stream) takeLocked(h *streamHeader, data []byte) {
	in := &s.in
	switch h.kind {
	case streamData:
		s.takeDataLocked(h, data)
	case streamAbandon:
		s.takeAbandonedLocked(h)
	case streamFin:
		if in.fin && in.last == h.mid {
			return
		}
		if in.fin || h.mid-in.next > maxMessagesAhead || h.mid.before(in.end) {
			s.violationLocked(StreamViolation)
			return
		}
		in.fin, in.last = true, h.mid
	case streamReset:
		s.takeResetLocked(h.code)
	case streamStop:
		if !s.out.reset && !(s.out.finSent && s.out.flight == 0) {
			s.resetWriteLocked(&StreamError{Code: h.code, Remote: true})
		}
	case streamCredit:
		if h.limit.after(s.out.limit) {
			s.out.limit = h.limit
			s.conn.streams.sched.update(s)
			s.canWrite.Broadcast()
		}
	}
	if in.fin {
		s.canRead.Broadcast()
	}
	s.conn.streams.retireLocked(s)
}

// takeResetLocked takes RESET. What was not read is dropped.
func (s *Stream) takeResetLocked(code uint64) {
	err := &StreamError{Code: code, Remote: true}
	if !s.in.over() || s.in.waits() {
		s.in.reset = true
		s.endReadingLocked(err)
	}
	if code == StreamRefused && !s.out.reset {
		s.out.reset, s.out.err = true, err
		s.dropUnsentLocked(err)
		s.conn.streams.sched.update(s)
		s.canWrite.Broadcast()
	}
}

// endReadingLocked drops what was not read, and lets Read return err.
func (s *Stream) endReadingLocked(err error) {
	in := &s.in
	if in.err == nil {
		in.err = err
	}
	in.ready, in.head, in.early, in.bytes = nil, 0, sparse.Map[earlyMessage]{}, 0
	in.skip = in.next
	s.holdLocked(-in.held)
	s.conn.streams.readLocked(s)
	s.canRead.Broadcast()
}

// stopReadingLocked drops what was not read, and lets the peer know that this end
// reads no more.
func (s *Stream) stopReadingLocked(code uint64) {
	if s.in.stop {
		return
	}
	if !s.in.over() {
		s.out.stopCode = code
		s.controlLocked(ctlStop)
	}
	s.in.stop = true
	s.endReadingLocked(net.ErrClosed)
	s.conn.streams.retireLocked(s)
}

// violationLocked resets the stream because the peer breaks its rules.
func (s *Stream) violationLocked(code uint64) {
	s.conn.drops().Stream++
	err := &StreamError{Code: code}
	if s.in.err == nil {
		s.in.err = err
	}
	s.resetLocked(err)
}

// credit returns how much more may arrive. Of what is passed over, nothing is set
// aside: it may have arrived as part of another ABANDON.
func (in *streamIn) credit() int {
	left := int(in.limit.diff(in.got))
	if in.owed > 0 && !in.behind() {
		left -= in.owed
	}
	return left
}

// spendLocked counts a segment with n bytes of message mid towards the credit. It
// resets the stream, and reports false, if that exceeds the credit.
func (s *Stream) spendLocked(mid seq, n int) bool {
	in := &s.in
	if in.stop || in.reset {
		return false // dropped
	}
	if in.owed > 0 { // this may be what is owed
		if m := in.early.Get(uint32(mid)); m != nil && m.cost == 0 {
			m.cost = streamCost
			in.owed -= streamCost
			in.freed -= streamCost // the note keeps it
		}
	}
	if n+streamCost > in.credit() {
		s.violationLocked(StreamViolation)
		return false
	}
	in.got += seq(n + streamCost)
	return true
}

// growLocked doubles the receive buffer if it limits the sender, now that data of
// this cost was read. All streams of a session together grow by maxStreamGrowth.
func (s *Stream) growLocked(cost int) {
	in, c := &s.in, s.conn
	if in.window < c.ep.config.StreamReceiveBuffer || in.window >= c.ep.mostStreamBuffer || s.gone || in.over() {
		return
	}
	rtt := time.Duration(c.rtt.smoothed) * time.Microsecond
	if !in.meter.Read(cost, in.window, c.live.lastInput, rtt) || c.ep.overMemoryLimit() {
		return
	}
	if more := min(in.window, c.ep.mostStreamBuffer-in.window); c.streams.grown+more <= maxStreamGrowth {
		in.window += more
		c.streams.grown += more
	}
}

// freeLocked gives the peer credit again for data of this cost, which is held no
// longer. The buffer has its default size from the first time on. Credit leaves
// in parts of the buffer that are small enough for the sender to use nearly all
// of it in a round trip.
func (s *Stream) freeLocked(cost int) {
	in := &s.in
	in.freed += seq(cost)
	if s.in.stop || s.in.reset || s.in.fin {
		return
	}
	if limit := in.freed + seq(in.window); limit.diff(in.limit) >= int32(in.window/creditParts) {
		in.limit = limit
		s.controlLocked(ctlCredit)
	}
}

// makeRoomLocked lets a message that is not complete have the whole buffer. If
// that is not enough the stream is reset: nothing more could ever arrive. A
// sender uses its credit up, so that then all of it has.
func (s *Stream) makeRoomLocked() {
	in := &s.in
	left := int(uint32(in.limit - in.got))
	if in.waits() || in.behind() || left >= in.window/2 {
		return
	}
	if full := s.conn.ep.config.StreamReceiveBuffer; in.window < full {
		in.window = full
		in.limit = in.freed + seq(in.window)
		s.controlLocked(ctlCredit)
	} else if mid, m := in.early.First(); left <= streamCost && m != nil && seq(mid) == in.next {
		s.violationLocked(StreamTooLarge)
	}
}

// readyLocked lets a message be read.
func (s *Stream) readyLocked(m received) {
	in := &s.in
	in.stats.MessagesReceived++
	m.held += int32(m.left + fragmentBytesHeld)
	if n := len(in.ready); n == cap(in.ready) { // append would double it
		in.ready = append(make([]received, 0, n+n/4+2), in.ready...)
	}
	in.ready = append(in.ready, m)
	in.bytes += m.left
	s.holdLocked(int(m.held))
	s.canRead.Broadcast()
}

// takenLocked removes the first message that can be read. The buffer has its full
// size from the first time on.
func (s *Stream) takenLocked() {
	in := &s.in
	m := &in.ready[in.head]
	s.holdLocked(-int(m.held))
	cost := int(m.cost)
	*m = received{}
	in.window = max(in.window, s.conn.ep.config.StreamReceiveBuffer)
	if in.head++; in.head == len(in.ready) {
		in.ready, in.head = in.ready[:0], 0
		if cap(in.ready) > 16 {
			in.ready = nil
		}
		s.conn.streams.readLocked(s)
	} else if in.head >= 64 && 2*in.head >= len(in.ready) {
		n := copy(in.ready, in.ready[in.head:])
		clear(in.ready[n:])
		in.ready, in.head = in.ready[:n], 0
	}
	s.growLocked(cost)
	s.freeLocked(cost)
}

// readableLocked reports whether a message can be read. It moves on past early
// messages as far as it takes.
func (s *Stream) readableLocked() bool {
	in := &s.in
	if in.waits() || !in.behind() {
		return in.waits()
	}
	for !in.waits() && in.behind() {
		s.advanceLocked()
	}
	s.conn.streams.retireLocked(s)
	return in.waits()
}

// cannotReadLocked returns why a call that reads fails at once; nil if it does
// not.
func (s *Stream) cannotReadLocked() error {
	switch {
	case s.closed, s.conn.closing.closed:
		return net.ErrClosed
	case s.readDeadline.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// readEndLocked returns why nothing more can be read, once nothing can; nil if
// more may arrive.
func (s *Stream) readEndLocked() error {
	in, c := &s.in, s.conn
	switch {
	case in.err != nil:
		return in.err
	case in.fin && in.over():
		return io.EOF
	case c.closing.state == stateEnded && c.closing.err == nil:
		return net.ErrClosed
	}
	return c.reason(c.closing.err)
}

// afterReadLocked sends the credit that a call has made due, which has read n bytes.
func (s *Stream) afterReadLocked(n int) {
	c := s.conn
	c.accountRead(n)
	if s.out.due&ctlCredit != 0 && c.closing.state == stateOpen {
		c.push()
	}
}

// Read reads up to len(b) bytes, and waits until there are some. It ignores
// message boundaries: the rest of a message that does not fit into b is for the
// next Read.
//
// Read fails at once with os.ErrDeadlineExceeded when the read deadline has
// passed, and net.ErrClosed after Close or Reset. After all that has arrived, it
// returns io.EOF if the peer has closed its side, a *StreamError if the stream was
// reset, which also drops what was not read, and otherwise the error with which
// the session ended.
func (s *Stream) Read(b []byte) (n int, err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := s.cannotReadLocked(); err != nil {
			return 0, c.opError("read", err)
		}
		if len(b) == 0 {
			return 0, nil
		}
		for n < len(b) && s.readableLocked() {
			m := &s.in.ready[s.in.head]
			k := m.take(b[n:])
			n, s.in.bytes = n+k, s.in.bytes-k
			if m.left == 0 {
				s.takenLocked()
			}
		}
		if n > 0 {
			s.afterReadLocked(n)
			return n, nil
		}
		if err := s.readEndLocked(); err != nil {
			return 0, c.opError("read", err)
		}
		s.canRead.block(rankStream + 2*uint64(s.id))
	}
}

// ReadMessage reads the next message into b and returns its size in bytes, which
// may be 0. Of a message that Read has begun, it returns the rest. A stream of
// bytes has no boundaries to rely on. It returns io.ErrShortBuffer if b is too
// small; the message stays queued. Its other errors are those of Read.
func (s *Stream) ReadMessage(b []byte) (int, error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := s.cannotReadLocked(); err != nil {
			return 0, c.opError("read", err)
		}
		if s.readableLocked() {
			m := &s.in.ready[s.in.head]
			if m.left > len(b) {
				return 0, c.opError("read", io.ErrShortBuffer)
			}
			n := m.take(b)
			s.in.bytes -= n
			s.takenLocked()
			s.afterReadLocked(n)
			return n, nil
		}
		if err := s.readEndLocked(); err != nil {
			return 0, c.opError("read", err)
		}
		s.canRead.block(rankStream + 2*uint64(s.id))
	}
}
