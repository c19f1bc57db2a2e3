package streams

import (
	"io"
	"net"

	"github.com/arqnet/kcp/internal/container"
)

const (
	// messageBytesHeld and fragmentBytesHeld are what a message, and each of
	// its fragments, takes in memory beside its payload. Together that is
	// SegmentCost: a stream holds no more than its credit.
	messageBytesHeld  = 80
	fragmentBytesHeld = 48
	// MaxGrowth is how many bytes the receive buffers of a session's streams
	// together may have beyond Limits.ReceiveBuffer.
	MaxGrowth = 32 << 20
	// creditParts is into how many parts a receive buffer is divided: as soon as
	// one of them is free, the sender gets credit for it.
	creditParts = 16
)

// receiveSide is the receiving side of a stream.
type receiveSide struct {
	ready  []received                        // to be read; from head on
	head   int                               // in ready
	lent   []byte                            // what is left of the buffer of a Read that waits
	early  container.SparseMap[earlyMessage] // by message: incomplete, or behind a missing one
	next   container.Serial                  // below it all messages are read, ready or abandoned
	skip   container.Serial                  // below it none is waited for; not below next
	end    container.Serial                  // one more than the last known, read, early or abandoned
	got    container.Serial                  // cost of all data that has arrived
	owed   int                               // cost of what is to arrive of messages of which only ABANDON has
	freed  container.Serial                  // that part of got that holds nothing any more
	limit  container.Serial                  // of got, as the peer knows it
	window int                               // how far limit may be ahead of freed, in bytes
	meter  BufferMeter                       // of what is read
	bytes  int                               // payload held
	held   int                               // memory held, in bytes
	last   container.Serial                  // number of messages, if fin
	lags   bool                              // counted in Table.lagging
	fin    bool                              // the peer's FIN has arrived
	reset  bool                              // RESET has arrived, or this end has ended the stream
	stop   bool                              // this end reads no more
	err    error                             // why nothing more is read; nil: it is
	stats  Stats                             // of both directions
}

// fragments are the fragments of one message, by number.
type fragments = container.SparseMap[[]byte]

// received is a message that can be read.
type received struct {
	data  []byte    // in front of parts
	parts fragments // what follows data
	left  int32     // bytes of both that Read has not taken yet
	off   int32     // bytes of data that it has
	cost  int32     // towards the credit
	held  int32     // memory, in bytes
}

// take moves bytes of m to b, and returns their number.
func (m *received) take(b []byte) (n int) {
	for m.left > 0 && n < len(b) {
		if int(m.off) == len(m.data) {
			_, data := m.parts.First()
			m.data, m.off = *data, 0
			m.parts.RemoveFirst()
		}
		k := copy(b[n:], m.data[m.off:])
		n, m.off, m.left = n+k, m.off+int32(k), m.left-int32(k)
	}
	return n
}

// over reports whether nothing more is expected of the peer.
func (in *receiveSide) over() bool {
	return in.reset || in.stop || in.fin && in.next == in.last && in.early.Empty()
}

// Lend lets what arrives be moved to b at once, in place of Read, until TakeBack.
func (s *Stream) Lend(b []byte) { s.in.lent = b }

// TakeBack ends what Lend began, and returns how many bytes of b are not filled.
func (s *Stream) TakeBack() (left int) {
	left = len(s.in.lent)
	s.in.lent = nil
	return left
}

// deliverDirect moves a message that is next to the buffer of a Read that waits, and
// reports whether it did. It saves a copy, and the memory for it.
func (s *Stream) deliverDirect(data []byte) bool {
	in := &s.in
	if len(data) > len(in.lent) || len(data) == 0 || in.waits() {
		return false
	}
	in.lent = in.lent[copy(in.lent, data):]
	in.stats.MessagesReceived++
	s.consumed(len(data) + SegmentCost)
	s.Owner.Readable()
	return true
}

// waits reports whether something can be read.
func (in *receiveSide) waits() bool { return in.head < len(in.ready) }

// hold adds n to the memory that s holds.
func (s *Stream) hold(n int) {
	s.in.held += n
	s.table.held += n
}

// input takes a segment of the stream.
func (s *Stream) input(h *Header, data []byte) {
	in := &s.in
	switch h.Kind {
	case Data:
		s.inputData(h, data)
	case Abandon:
		s.inputAbandon(h)
	case Fin:
		if in.fin && in.last == h.MID {
			return
		}
		if in.fin || h.MID-in.next > MaxMessagesAhead || h.MID.Before(in.end) {
			s.violation(Violation)
			return
		}
		in.fin, in.last = true, h.MID
	case Reset:
		s.broken = s.broken || h.Code != 0
		s.inputReset(h.Code)
	case Stop:
		s.broken = s.broken || h.Code != 0
		err := s.table.host.Error(h.Code, true)
		if h.Code == 0 && !in.reset { // RESET leaves before STOP
			err = s.table.host.Closed()
			s.out.needless = s.out.first == nil && s.out.err == nil
		}
		s.resetWrite(h.Code, err)
	case Credit:
		if h.Limit.After(s.out.limit) {
			s.out.limit = h.Limit
			s.table.shown = max(s.table.shown, min(int(int32(h.Limit-s.out.used)), s.table.limits.MostShown))
			s.table.sched.update(s)
			s.Owner.Writable()
		}
	}
	if in.fin {
		s.Owner.Readable()
	}
	s.table.retire(s)
}

// inputReset takes RESET. What was not read is dropped.
func (s *Stream) inputReset(code uint64) {
	err := s.table.host.Error(code, true)
	if !s.in.over() || s.in.waits() {
		s.in.reset = true
		s.endReading(err)
	}
	if code == Refused && !s.out.reset {
		s.out.reset, s.out.err = true, err
		s.dropUnsent(err)
		s.table.sched.update(s)
		s.Owner.Writable()
	}
}

// endReading drops what was not read, and lets ReadEnd return err.
func (s *Stream) endReading(err error) {
	in := &s.in
	if in.err == nil {
		in.err = err
	}
	in.ready, in.head, in.early, in.bytes = nil, 0, container.SparseMap[earlyMessage]{}, 0
	in.skip = in.next
	s.hold(-in.held)
	if in.lags {
		s.lag(false)
	}
	s.table.read(s)
	s.Owner.Readable()
}

// StopReading drops what was not read, and lets the peer know that this end reads
// no more. It reports false if that was done before.
func (s *Stream) StopReading(code uint64) bool {
	s.ReadDone()
	return s.stopReading(code)
}

// stopReading is StopReading, be it not of the application.
func (s *Stream) stopReading(code uint64) bool {
	if s.in.stop {
		return false
	}
	if !s.in.over() {
		s.out.stopCode = code
		s.control(dueStop)
	}
	s.in.stop = true
	s.endReading(net.ErrClosed)
	s.table.retire(s)
	return true
}

// violation resets the stream because the peer breaks its rules.
func (s *Stream) violation(code uint64) {
	s.table.host.Dropped()
	if s.in.err == nil {
		s.in.err = s.table.host.Error(code, false)
	}
	s.reset(code)
}

// credit returns how much more may arrive. For what is passed over, nothing is set
// aside: it may have arrived as part of another ABANDON.
func (in *receiveSide) credit() int {
	left := int(in.limit.Diff(in.got))
	if in.owed > 0 && !in.behind() {
		left -= in.owed
	}
	return left
}

// spend counts a segment with n bytes of message mid towards the credit. It resets
// the stream, and reports false, if that exceeds the credit.
func (s *Stream) spend(mid container.Serial, n int) bool {
	in := &s.in
	if in.stop || in.reset {
		return false // dropped
	}
	if in.owed > 0 { // this may be what is owed
		if m := in.early.Get(uint32(mid)); m != nil && m.cost == 0 {
			m.cost = SegmentCost
			in.owed -= SegmentCost
			in.freed -= SegmentCost // the note keeps it
		}
	}
	if n+SegmentCost > in.credit() {
		s.violation(Violation)
		return false
	}
	in.got += container.Serial(n + SegmentCost)
	return true
}

// grow doubles the receive buffer if it limits the sender, or soon will, now that data of
// this cost was read; 0: it has arrived. While a lost segment is sent again what follows
// it fills the buffer, and the reader waits. All streams of a session together grow by
// MaxGrowth.
func (s *Stream) grow(cost int) {
	in, t := &s.in, s.table
	if in.window < t.limits.ReceiveBuffer || in.window >= t.limits.MostReceiveBuffer || s.gone || in.over() {
		return
	}
	double := false
	if cost > 0 {
		last, rtt := t.host.RoundTrip()
		double = in.meter.Read(cost, in.window, last, rtt)
	} else if !in.waits() {
		double = in.meter.Early(in.window-in.credit(), in.window)
	}
	if !double || t.host.MemoryIsShort() {
		return
	}
	if more := min(in.window, t.limits.MostReceiveBuffer-in.window); t.grown+more <= MaxGrowth {
		in.window += more
		t.grown += more
	}
}

// free gives the peer credit again for data of this cost, which is held no longer.
// Credit leaves in parts of the buffer that are small enough for the sender to use
// nearly all of it in a round trip.
func (s *Stream) free(cost int) {
	in := &s.in
	in.freed += container.Serial(cost)
	if in.stop || in.reset || in.fin {
		return
	}
	if limit := in.freed + container.Serial(in.window); limit.Diff(in.limit) >= int32(in.window/creditParts) {
		in.limit = limit
		s.control(dueCredit)
	}
}

// makeRoom lets a message that is not complete have the whole buffer. If that is
// not enough the stream is reset: nothing more could ever arrive. A sender uses its
// credit up, so that then all of it has.
func (s *Stream) makeRoom() {
	in := &s.in
	left := int(uint32(in.limit - in.got))
	if in.waits() || in.behind() || left >= in.window/2 {
		return
	}
	if full := s.table.limits.ReceiveBuffer; in.window < full {
		in.window = full
		in.limit = in.freed + container.Serial(in.window)
		s.control(dueCredit)
	} else if mid, m := in.early.First(); left <= SegmentCost && m != nil && container.Serial(mid) == in.next {
		s.violation(TooLarge)
	}
}

// becomeReady lets a message be read.
func (s *Stream) becomeReady(m received) {
	in := &s.in
	in.stats.MessagesReceived++
	m.held += m.left + fragmentBytesHeld
	if n := len(in.ready); n == cap(in.ready) {
		list := s.table.list
		if s.table.list = nil; cap(list) <= n {
			list = make([]received, 0, n+n/4+2) // append would double it
		}
		in.ready = append(list, in.ready...)
	}
	in.ready = append(in.ready, m)
	in.bytes += int(m.left)
	s.hold(int(m.held))
	if !in.lags && 2*int(uint32(in.got-in.freed)) > in.window {
		s.lag(true)
	}
	s.Owner.Readable()
}

// lag records whether what was not read takes more than half of the buffer.
func (s *Stream) lag(on bool) {
	if s.in.lags = on; on {
		s.table.lagging++
	} else {
		s.table.lagging--
	}
}

// taken removes the first message that can be read.
func (s *Stream) taken() {
	in := &s.in
	m := &in.ready[in.head]
	s.hold(-int(m.held))
	cost := int(m.cost)
	if !s.table.failed {
		s.table.segments.put(m.data)
	}
	*m = received{}
	if in.head++; in.head == len(in.ready) {
		in.ready, in.head = in.ready[:0], 0
		if n := cap(in.ready); n > 16 {
			if n > cap(s.table.list) && !s.table.failed {
				s.table.list = in.ready
			}
			in.ready = nil
		}
		s.table.read(s)
	} else if in.head >= 64 && 2*in.head >= len(in.ready) {
		n := copy(in.ready, in.ready[in.head:])
		clear(in.ready[n:])
		in.ready, in.head = in.ready[:n], 0
	}
	s.consumed(cost)
}

// consumed records that the application has a message of this cost. The buffer has
// its full size from the first time on.
func (s *Stream) consumed(cost int) {
	s.in.window = max(s.in.window, s.table.limits.ReceiveBuffer)
	s.grow(cost)
	s.free(cost)
	if in := &s.in; in.lags && 2*int(uint32(in.got-in.freed)) <= in.window {
		s.lag(false)
	}
}

// readable reports whether a message can be read. It moves on past early messages
// as far as it takes.
func (s *Stream) readable() bool {
	in := &s.in
	if in.waits() || !in.behind() {
		return in.waits()
	}
	for !in.waits() && in.behind() {
		s.advance()
	}
	s.table.retire(s)
	return in.waits()
}

// Read moves bytes that have arrived to b, and returns their number.
func (s *Stream) Read(b []byte) (n int) {
	for n < len(b) && s.readable() {
		m := &s.in.ready[s.in.head]
		k := m.take(b[n:])
		n, s.in.bytes = n+k, s.in.bytes-k
		if m.left == 0 {
			s.taken()
		}
	}
	return n
}

// NextMessage returns the bytes of the message, or of the rest of one, that is next
// to be read. ok is false if there is none.
func (s *Stream) NextMessage() (n int, ok bool) {
	if !s.readable() {
		return 0, false
	}
	return int(s.in.ready[s.in.head].left), true
}

// ReadMessage moves the message that NextMessage has told of to b, which is large
// enough.
func (s *Stream) ReadMessage(b []byte) int {
	n := s.in.ready[s.in.head].take(b)
	s.in.bytes -= n
	s.taken()
	return n
}

// CreditDue reports whether reading has made credit for the peer due, or a new limit of
// streams.
func (s *Stream) CreditDue() bool { return s.out.due&dueCredit != 0 || s.table.tell }

// ReadEnd returns why nothing more can be read, once nothing can: io.EOF after
// FIN; nil if more may arrive.
func (s *Stream) ReadEnd() error {
	if s.in.err == nil && s.in.fin && s.in.over() {
		return io.EOF
	}
	return s.in.err
}
