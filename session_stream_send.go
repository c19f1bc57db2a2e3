package kcp

import (
	"math"
	"net"
	"os"
)

const (
	// streamCost is what each segment of data counts towards the credit of its
	// stream beside its payload, in bytes: it takes memory too.
	streamCost = messageBytesHeld + fragmentBytesHeld
	// initialCredit is the credit of a new stream, in bytes.
	initialCredit = 64 << 10
	// streamChunk is how many bytes of several Writes are queued in one piece.
	streamChunk = 16 << 10
)

// What a stream has to send besides data, as bits of streamOut.control.
const (
	ctlOpen   = 1 << iota // its options
	ctlCredit             // more credit
	ctlReset              // RESET
	ctlStop               // STOP
)

// streamOut is the sending side of a stream. Conn.mu guards it.
type streamOut struct {
	first, last *outMessage // waiting
	latest      int64       // no deadline of those is later; on the machine's clock
	begun       outMessages // messages of which something was sent, from the oldest that may yet be delivered on
	queued      int         // bytes of them
	memory      int         // bytes of memory that they take
	flight      int         // segments with the machine
	control     *outMessage // of segments without data; nil: none yet
	chunks      *outMessage // of bytes; nil: none yet
	awaited     *awaited    // messages that await a receipt; nil: none yet
	err         error       // why nothing more can be written; nil: it can
	abandoned   []seq       // messages to be announced as abandoned
	used        seq         // cost of all data sent
	limit       seq         // of used, as the peer allows
	mid         seq         // of the next message
	code        uint64      // of RESET
	stopCode    uint64      // of STOP

	next, prev *Stream // in a list of the scheduler
	deficit    int32   // bytes that may be sent in this round
	due        uint8   // ctl bits
	listed     uint8   // in which list of the scheduler
	unsent     bool    // counted in streamScheduler.unsent
	announced  bool    // a segment with the options has been queued
	known      bool    // and acknowledged
	fin        bool    // FIN is to follow the data
	finSent    bool
	reset      bool // RESET was, or is to be, sent; or the peer has refused the stream
	ready      bool // memory is in streamTable.ready
}

// over reports whether the peer has all that this end will send.
func (o *streamOut) over() bool {
	return (o.finSent || o.reset) && o.due == 0 && o.flight == 0 && len(o.abandoned) == 0
}

// outMessage is a message to be sent, or a chunk of bytes.
type outMessage struct {
	streamTag
	stream *Stream
	next   *outMessage
	later  *outMessage // in streamOut.begun
	data   []byte
	off    int // bytes that are with the machine
	mid    seq // valid once begun
	fsn    uint32
	begun  bool
	sent   bool // all of it is with the machine
	chunk  bool // of bytes: each segment is a message of its own
	awaited
}

// outMessages is a list of messages, chained by later, in the order of mid.
type outMessages struct{ first, last *outMessage }

func (l *outMessages) push(m *outMessage) {
	if l.first == nil {
		l.first = m
	} else {
		l.last.later = m
	}
	l.last = m
}

// pop removes the first message.
func (l *outMessages) pop() {
	m := l.first
	if l.first = m.later; l.first == nil {
		l.last = nil
	}
	m.later = nil
}

// memory returns the bytes of memory that m takes while it waits.
func (m *outMessage) memory() int { return messageBytesQueued + cap(m.data) }

// over reports whether nothing more is to be delivered of m.
func (m *outMessage) over() bool { return m.abandoned || m.sent && m.flight == 0 }

// abandonedUpTo is the machine's hook for how far messages are delivered or given
// up. It gives up those in flight whose lifetime is over. Bytes are not among the
// messages of streamOut.begun, so while some are in flight it knows nothing.
func (c *Conn) abandonedUpTo(tag *streamTag) (mid seq, ok bool) {
	s := tag.owner.(*outMessage).stream
	if s == nil || c.streams.failed || s.out.reset || s.out.chunks != nil && s.out.chunks.flight > 0 {
		return 0, false
	}
	begun := &s.out.begun
	for m := begun.first; m != nil; m = begun.first {
		if !m.over() && m.spent(c.kcp.micros(), 0) {
			s.abandonLocked(m)
		}
		if !m.over() {
			return m.mid - 1, true
		}
		begun.pop()
	}
	return s.out.mid - 1, true
}

// segmentAcked is the machine's hook for a segment with a tag that was
// acknowledged.
func (c *Conn) segmentAcked(tag *streamTag) {
	if tag.message {
		c.messageAcked(tag)
		return
	}
	m := tag.owner.(*outMessage)
	s := m.stream
	if s == nil || c.streams.failed {
		return
	}
	s.out.flight--
	s.out.known = true
	if m.sent && m.flight == 0 && !m.abandoned && !s.out.reset {
		c.finish(&m.awaited, nil)
	}
	for b := &s.out.begun; b.first != nil && b.first.over(); {
		b.pop()
	}
	if s.out.flight == 0 {
		c.streams.retireLocked(s)
	}
}

// abandonedMessage is the machine's hook for a message that is given up.
func (c *Conn) abandonedMessage(tag *streamTag) {
	if tag.message {
		c.messageAbandoned(tag)
		return
	}
	m := tag.owner.(*outMessage)
	if m.stream != nil && !c.streams.failed {
		m.stream.abandonLocked(m)
	}
}

// abandonLocked gives up m, of which something has been sent. Of a message of
// one segment, that segment itself shows it.
func (s *Stream) abandonLocked(m *outMessage) {
	m.abandoned = true
	s.conn.finish(&m.awaited, ErrMessageAbandoned)
	s.in.stats.Abandoned++
	if !m.sent || m.fsn > 1 {
		s.out.abandoned = append(s.out.abandoned, m.mid)
	}
	if !m.sent {
		s.popLocked()
	}
	s.conn.streams.sched.update(s)
}

// popLocked takes the first waiting message out of the queue.
func (s *Stream) popLocked() {
	m := s.out.first
	s.out.queued -= len(m.data) - m.off + streamCost
	s.waitingLocked(-m.memory())
	if s.out.first = m.next; s.out.first == nil {
		s.out.last = nil
	}
	m.next, m.sent = nil, true
	if m.data = nil; 2*s.out.queued <= s.conn.ep.config.StreamWriteBuffer {
		s.canWrite.Broadcast()
	}
	s.conn.streams.wakeWriterLocked()
}

// purgeLocked gives up waiting messages whose lifetime is over.
func (s *Stream) purgeLocked(now int64) {
	for m := s.out.first; m != nil && m.spent(now, 0); m = s.out.first {
		if m.begun {
			s.abandonLocked(m)
			continue
		}
		m.abandoned = true
		s.conn.finish(&m.awaited, ErrMessageAbandoned)
		s.in.stats.Abandoned++
		if s.popLocked(); s.out.first == nil {
			s.conn.streams.sched.update(s)
		}
	}
}

// dropUnsentLocked drops all that waits; what is in flight has the same fate. Its
// work does not depend on how much that is. It runs with Conn.mu held.
func (s *Stream) dropUnsentLocked(err error) {
	o := &s.out
	if m := o.first; m != nil && m.begun {
		m.abandoned, m.sent, m.data = true, true, nil
	}
	o.first, o.last, o.queued, o.abandoned = nil, nil, 0, nil
	s.waitingLocked(-o.memory)
	s.canWrite.Broadcast()
	s.conn.failAll(&o.awaited, failedMessages{err: err, begun: true, unsent: true})
}

// cannotWriteLocked returns why nothing more may be written; nil if it may.
func (s *Stream) cannotWriteLocked() error {
	c := s.conn
	switch {
	case s.closed, c.closing.closed, s.out.fin:
		return net.ErrClosed
	case s.writeDeadline.expired:
		return os.ErrDeadlineExceeded
	case s.out.err != nil:
		return s.out.err
	case c.hs.peerClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	}
	return nil
}

// partial reports whether each Write is a message, as some may not arrive, or in
// another order.
func (p *streamParams) partial() bool { return p.unordered || p.lifetime > 0 || p.retransmits > 0 }

// Write queues b, and sends at once as much as may leave. It blocks while
// Config.StreamWriteBuffer bytes of the stream wait to be sent. On an ordered and
// reliable stream, writes are a stream of bytes; otherwise, each is one message,
// as with WriteMessage.
//
// Errors are os.ErrDeadlineExceeded when the write deadline has passed,
// net.ErrClosed after Close, CloseWrite or Reset, a *StreamError if the stream
// was reset or the peer reads no more, ErrPeerClosed when the peer has closed the
// session, and the error with which the session ended.
func (s *Stream) Write(b []byte) (n int, err error) {
	if s.params.partial() {
		if err := s.WriteMessage(b); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		room, err := s.waitRoomLocked(1)
		if err != nil {
			return n, c.opError("write", err)
		}
		if n < len(b) {
			m := min(len(b)-n, room)
			s.appendLocked(b[n : n+m])
			n += m
			c.streams.sched.update(s)
			c.push() // releases c.mu: the peer may have read it, and reset the stream
		}
		if n == len(b) {
			return n, nil
		}
	}
}

// appendLocked queues b, at least one byte, as bytes.
func (s *Stream) appendLocked(b []byte) {
	for len(b) > 0 {
		m := s.out.last
		if m == nil || !m.chunk || len(m.data) >= streamChunk {
			m = &outMessage{stream: s, chunk: true}
			s.enqueueLocked(m)
		}
		n := min(len(b), streamChunk-len(m.data))
		s.waitingLocked(-cap(m.data))
		m.data = append(m.data, b[:n]...)
		s.waitingLocked(cap(m.data))
		s.out.queued += n
		b = b[n:]
	}
}

// enqueueLocked appends m to what waits. What m.data holds counts already, but
// for streamCost.
func (s *Stream) enqueueLocked(m *outMessage) {
	m.owner = m
	deadline := m.deadline
	if deadline == 0 {
		deadline = math.MaxInt64
	}
	if s.out.latest = max(s.out.latest, deadline); s.out.last == nil {
		s.out.first, s.out.latest = m, deadline
	} else {
		s.out.last.next = m
	}
	s.out.last = m
	s.out.queued += streamCost
	s.waitingLocked(m.memory())
}

// waitRoomLocked waits until the write buffers of the stream and of the session
// have room for a message of n bytes, which it returns, or returns the error of
// Write.
func (s *Stream) waitRoomLocked(n int) (room int, err error) {
	for {
		if err := s.cannotWriteLocked(); err != nil {
			return 0, err
		}
		room, _ := s.roomLocked(n)
		if room <= 0 {
			s.purgeLocked(s.conn.machineTimeLocked())
		}
		room, class := s.roomLocked(n)
		if room > 0 {
			return room, nil
		}
		s.awaitRoomLocked(class)
	}
}

// machineTimeLocked returns the present on the machine's clock, in microseconds.
func (c *Conn) machineTimeLocked() int64 {
	c.setClock(c.ep.now())
	return c.kcp.micros()
}

// WriteMessage queues b as one message of any size up to the peer's
// Config.StreamReceiveBuffer; it may be empty. It blocks as Write does. Its
// errors are those of Write.
func (s *Stream) WriteMessage(b []byte) error { return s.SendMessage(b, nil) }

// SendMessage is WriteMessage with options for this message; nil means those of
// the stream.
func (s *Stream) SendMessage(b []byte, options *MessageOptions) error {
	c := s.conn
	lifetime, retransmits := s.params.lifetime, s.params.retransmits
	var done func(error)
	if options != nil {
		ms, err := lifetimeMillis(options.Lifetime)
		if err != nil || options.MaxRetransmits > maxRetransmitLimit {
			return opError("write", c.LocalAddr(), s.RemoteAddr(), errStreamOptions)
		}
		if ms > 0 {
			lifetime = ms
		}
		if options.MaxRetransmits != 0 {
			retransmits = transmissions(options.MaxRetransmits)
		}
		done = options.Done
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := c.ep.now()
	if _, err := s.waitRoomLocked(len(b)); err != nil {
		return c.opError("write", err)
	}
	m := &outMessage{stream: s, data: append(make([]byte, 0, len(b)), b...)}
	m.limit = uint32(retransmits)
	if lifetime > 0 {
		m.deadline = c.deadlineLocked(lifetime, begun)
		s.purgeLocked(c.kcp.micros())
	}
	if done != nil {
		m.tag, m.done = &m.streamTag, done
		m.append(&s.out.awaited)
	}
	s.enqueueLocked(m)
	s.out.queued += len(b)
	c.streams.sched.update(s)
	c.push()
	return nil
}

// finishLocked lets FIN follow what waits.
func (s *Stream) finishLocked() {
	if !s.out.fin && !s.out.reset && !s.conn.streams.failed {
		s.out.fin = true
		s.conn.streams.sched.update(s)
	}
}

// resetLocked resets both directions, because of err.
func (s *Stream) resetLocked(err *StreamError) {
	s.stopReadingLocked(err.Code)
	s.resetWriteLocked(err)
}

// resetWriteLocked drops what is not delivered, and sends RESET.
func (s *Stream) resetWriteLocked(err *StreamError) {
	if s.out.reset || s.conn.streams.failed || s.out.finSent && s.out.flight == 0 {
		return
	}
	s.out.reset, s.out.err, s.out.code = true, err, err.Code
	s.dropUnsentLocked(err)
	s.controlLocked(ctlReset)
	s.canWrite.Broadcast()
}

// controlLocked lets bits of streamOut.control be sent.
func (s *Stream) controlLocked(what uint8) {
	if !s.gone && !s.conn.streams.failed {
		s.out.due |= what
		s.conn.streams.sched.update(s)
	}
}

// credit returns how many bytes of data the peer takes in one more segment; < 0:
// not even an empty message.
func (o *streamOut) credit() int {
	return int(min(uint32(o.limit-o.used), 1<<30)) - streamCost
}

// sendable reports whether a segment of s may be sent that is not of control.
func (s *Stream) sendable() bool {
	o := &s.out
	switch {
	case o.reset:
		return false
	case o.first != nil:
		left := len(o.first.data) - o.first.off
		return o.credit() >= min(left, 1)
	}
	return o.fin && !o.finSent
}
