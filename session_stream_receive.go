package kcp

import (
	"io"
	"net"
	"os"
	"slices"
)

const (
	// messageBytesHeld and fragmentBytesHeld are what a message, and each of
	// its fragments, takes in memory beside its payload.
	messageBytesHeld  = 160
	fragmentBytesHeld = 64
	// maxMessagesAhead is how far ahead of the oldest message that is missing
	// others may be. Fewer fit into any receive window.
	maxMessagesAhead = 1 << 17
)

// streamIn is the receiving side of a stream. Conn.mu guards it.
type streamIn struct {
	ready  []received            // to be read; from head on
	head   int                   // in ready
	early  map[seq]*earlyMessage // incomplete, or behind a missing one; nil: none
	next   seq                   // below it all messages are read, ready or abandoned
	got    seq                   // cost of all data that has arrived
	freed  seq                   // that part of it that holds nothing any more
	limit  seq                   // of got, as the peer knows it
	window int                   // how far limit may be ahead of freed, in bytes
	bytes  int                   // payload held
	held   int                   // memory held, in bytes
	last   seq                   // number of messages, if fin
	fin    bool                  // the peer's FIN has arrived
	reset  bool                  // RESET has arrived, or this end has ended the stream
	stop   bool                  // this end reads no more
	err    error                 // why nothing more is read; nil: it is
	stats  StreamStats           // of both directions
}

// received is a message that can be read.
type received struct {
	data []byte
	read int // bytes that Read has taken
	cost int // towards the credit
}

// earlyMessage is a message that cannot be read yet.
type earlyMessage struct {
	fragments map[uint32][]byte // nil: it is whole
	whole     []byte
	total     uint32 // number of fragments; 0: not known
	bytes     int
	cost      int
	complete  bool // or abandoned
	abandoned bool
}

// memory returns the bytes of memory that m takes.
func (m *earlyMessage) memory() int {
	return messageBytesHeld + m.bytes + len(m.fragments)*fragmentBytesHeld
}

// over reports whether nothing more is expected of the peer.
func (in *streamIn) over(s *Stream) bool {
	return in.reset || in.stop || in.fin && in.next == in.last && len(in.early) == 0
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
		if h.size != noSegment && !s.spendLocked(int(h.size)) {
			return
		}
		if h.size != noSegment {
			s.freeLocked(int(h.size) + streamCost)
		}
		s.takeAbandonedLocked(h.mid, h.end)
	case streamFin:
		if in.fin && in.last != h.mid || h.mid-in.next > maxMessagesAhead || !s.fitsFinLocked(h.mid) {
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

// fitsFinLocked reports whether no message at or behind mid has arrived.
func (s *Stream) fitsFinLocked(mid seq) bool {
	if mid.before(s.in.next) {
		return false
	}
	for m := range s.in.early {
		if !m.before(mid) {
			return false
		}
	}
	return true
}

// takeResetLocked takes RESET. What was not read is dropped.
func (s *Stream) takeResetLocked(code uint64) {
	err := &StreamError{Code: code, Remote: true}
	if !s.in.over(s) || s.in.waits() {
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
	in.ready, in.head, in.early, in.bytes = nil, 0, nil, 0
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
	if !s.in.over(s) {
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

// spendLocked counts a segment of n bytes towards the credit. It resets the
// stream, and reports false, if that exceeds the credit.
func (s *Stream) spendLocked(n int) bool {
	in := &s.in
	if in.stop || in.reset {
		return false // dropped
	}
	if uint32(n+streamCost) > uint32(in.limit-in.got) {
		s.violationLocked(StreamViolation)
		return false
	}
	in.got += seq(n + streamCost)
	return true
}

// freeLocked gives the peer credit again for data of this cost, which is held no
// longer. The buffer has its full size from the first time on.
func (s *Stream) freeLocked(cost int) {
	in := &s.in
	in.freed += seq(cost)
	in.window = max(in.window, s.conn.ep.config.StreamReceiveBuffer)
	if s.in.stop || s.in.reset || s.in.fin {
		return
	}
	if limit := in.freed + seq(in.window); limit.diff(in.limit) >= int32(in.window/2) {
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
	if in.waits() || left >= in.window/2 {
		return
	}
	if full := s.conn.ep.config.StreamReceiveBuffer; in.window < full {
		in.window = full
		in.limit = in.freed + seq(in.window)
		s.controlLocked(ctlCredit)
	} else if left <= streamCost {
		s.violationLocked(StreamTooLarge)
	}
}

// takeDataLocked takes a message, or a fragment of one.
func (s *Stream) takeDataLocked(h *streamHeader, data []byte) {
	in := &s.in
	if !s.spendLocked(len(data)) {
		return
	}
	in.stats.BytesReceived += uint64(len(data))
	ahead := h.mid - in.next
	switch {
	case h.mid.before(in.next):
		s.freeLocked(len(data) + streamCost) // of a message that was abandoned
		return
	case ahead > maxMessagesAhead || in.fin && !h.mid.before(in.last):
		s.violationLocked(StreamViolation)
		return
	}
	whole := h.end && !h.part
	if m := in.early[h.mid]; m == nil && whole && (ahead == 0 || s.params.unordered) {
		s.readyLocked(append(make([]byte, 0, len(data)), data...), len(data)+streamCost)
		if ahead > 0 {
			s.earlyLocked(h.mid).complete = true
		} else {
			in.next++
		}
	} else if !s.takeFragmentLocked(h, data) {
		return
	} else if m := in.early[h.mid]; s.params.unordered && m.whole != nil {
		s.giveLocked(m) // whatever is missing before it
	}
	s.advanceLocked()
	s.makeRoomLocked()
}

// earlyLocked returns the message mid that cannot be read yet, which it makes.
func (s *Stream) earlyLocked(mid seq) *earlyMessage {
	m := s.in.early[mid]
	if m == nil {
		if s.in.early == nil {
			s.in.early = make(map[seq]*earlyMessage)
		}
		m = new(earlyMessage)
		s.in.early[mid] = m
		s.holdLocked(m.memory())
	}
	return m
}

// takeFragmentLocked keeps a fragment, or a message that is too early. It reports
// false if the stream was reset because of it.
func (s *Stream) takeFragmentLocked(h *streamHeader, data []byte) bool {
	m := s.earlyLocked(h.mid)
	cost := len(data) + streamCost
	if m.abandoned {
		s.freeLocked(cost)
		return true
	}
	_, again := m.fragments[h.fsn]
	if m.complete || again || m.whole != nil || m.total > 0 && (h.end || h.fsn >= m.total) ||
		!h.part && m.fragments != nil || h.fsn == 1<<32-1 {
		s.violationLocked(StreamViolation)
		return false
	}
	s.holdLocked(-m.memory())
	defer func() { s.holdLocked(m.memory()) }()
	m.bytes += len(data)
	s.in.bytes += len(data)
	m.cost += cost
	data = append(make([]byte, 0, len(data)), data...)
	if !h.part {
		m.whole, m.complete = data, true
		return true
	}
	if m.fragments == nil {
		m.fragments = make(map[uint32][]byte)
	}
	m.fragments[h.fsn] = data
	if h.end {
		m.total = h.fsn + 1
	}
	if m.total > 0 && uint32(len(m.fragments)) == m.total {
		m.assemble()
	}
	return true
}

// assemble puts the fragments together, of which there are as many as the message
// has. If one of them lies behind its end, the message is left incomplete.
func (m *earlyMessage) assemble() {
	whole := make([]byte, 0, m.bytes)
	for i := range m.total {
		f, ok := m.fragments[i]
		if !ok {
			return
		}
		whole = append(whole, f...)
	}
	m.whole, m.fragments, m.complete = whole, nil, true
}

// takeAbandonedLocked drops message mid, of which nothing more is sent. With
// before it drops all before it that are not complete, too.
func (s *Stream) takeAbandonedLocked(mid seq, before bool) {
	in := &s.in
	if in.stop || in.reset || mid.before(in.next) {
		return
	}
	if mid-in.next > maxMessagesAhead || in.fin && !mid.before(in.last) {
		s.violationLocked(StreamViolation)
		return
	}
	if before {
		s.skipLocked(mid)
	} else {
		s.dropEarlyLocked(s.earlyLocked(mid))
	}
	s.advanceLocked()
}

// dropEarlyLocked drops m, of which nothing more is sent, unless it is complete.
func (s *Stream) dropEarlyLocked(m *earlyMessage) {
	if m.complete {
		return // it has arrived all the same
	}
	in := &s.in
	s.holdLocked(-m.memory())
	in.bytes -= m.bytes
	cost := m.cost
	*m = earlyMessage{complete: true, abandoned: true}
	s.holdLocked(m.memory())
	in.stats.Skipped++
	s.freeLocked(cost)
}

// skipLocked moves on past mid: what is complete up to there can be read, all
// else is given up.
func (s *Stream) skipLocked(mid seq) {
	in := &s.in
	for _, n := range in.earlyUpTo(mid) {
		if n.before(in.next) {
			continue // advanceLocked has moved past it
		}
		in.stats.Skipped += uint64(n - in.next)
		in.next = n
		s.dropEarlyLocked(in.early[n])
		s.advanceLocked()
	}
	if !mid.before(in.next) {
		in.stats.Skipped += uint64(mid + 1 - in.next)
		in.next = mid + 1
	}
}

// earlyUpTo returns the numbers of the early messages up to mid, which is not
// before next, in order. It looks at each number or at each message, whichever
// are fewer.
func (in *streamIn) earlyUpTo(mid seq) (held []seq) {
	if uint32(mid-in.next) < uint32(len(in.early)) {
		for n := in.next; !n.after(mid); n++ {
			if in.early[n] != nil {
				held = append(held, n)
			}
		}
		return held
	}
	for n := range in.early {
		if !n.after(mid) {
			held = append(held, n)
		}
	}
	slices.SortFunc(held, func(a, b seq) int { return int(a.diff(b)) })
	return held
}

// advanceLocked moves on past what is complete or abandoned.
func (s *Stream) advanceLocked() {
	in := &s.in
	for len(in.early) > 0 {
		m := in.early[in.next]
		if m == nil || !m.complete {
			return
		}
		if m.whole != nil {
			s.giveLocked(m)
		}
		s.holdLocked(-m.memory())
		delete(in.early, in.next)
		in.next++
	}
	in.early = nil
}

// giveLocked lets m, which is complete, be read.
func (s *Stream) giveLocked(m *earlyMessage) {
	s.holdLocked(-m.memory())
	s.in.bytes -= m.bytes
	s.readyLocked(m.whole, m.cost)
	*m = earlyMessage{complete: true}
	s.holdLocked(m.memory())
}

// readyLocked lets a message be read.
func (s *Stream) readyLocked(data []byte, cost int) {
	in := &s.in
	in.stats.MessagesReceived++
	in.ready = append(in.ready, received{data: data, cost: cost})
	in.bytes += len(data)
	s.holdLocked(len(data) + fragmentBytesHeld)
	s.canRead.Broadcast()
}

// takenLocked removes the first message that can be read.
func (s *Stream) takenLocked() {
	in := &s.in
	m := &in.ready[in.head]
	s.holdLocked(-len(m.data) - fragmentBytesHeld)
	cost := m.cost
	*m = received{}
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
	s.freeLocked(cost)
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
	case in.fin && in.over(s):
		return io.EOF
	case c.closing.state == stateEnded && c.closing.err == nil:
		return net.ErrClosed
	}
	return c.reason(c.closing.err)
}

// afterReadLocked sends the credit that a call has made due.
func (s *Stream) afterReadLocked() {
	c := s.conn
	c.account()
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
		for n < len(b) && s.in.waits() {
			m := &s.in.ready[s.in.head]
			k := copy(b[n:], m.data[m.read:])
			n, m.read, s.in.bytes = n+k, m.read+k, s.in.bytes-k
			if m.read == len(m.data) {
				s.takenLocked()
			}
		}
		if n > 0 {
			s.afterReadLocked()
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
		if s.in.waits() {
			m := &s.in.ready[s.in.head]
			if len(m.data)-m.read > len(b) {
				return 0, c.opError("read", io.ErrShortBuffer)
			}
			n := copy(b, m.data[m.read:])
			s.in.bytes -= n
			s.takenLocked()
			s.afterReadLocked()
			return n, nil
		}
		if err := s.readEndLocked(); err != nil {
			return 0, c.opError("read", err)
		}
		s.canRead.block(rankStream + 2*uint64(s.id))
	}
}
