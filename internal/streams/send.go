package streams

import (
	"math"
	"net"

	"github.com/arqnet/kcp/internal/list"
	"github.com/arqnet/kcp/internal/serial"
)

const (
	// SegmentCost is what each segment of data counts towards the credit of its
	// stream beside its payload, in bytes: it takes memory too.
	SegmentCost = messageBytesHeld + fragmentBytesHeld
	// InitialCredit is the credit of a new stream, in bytes.
	InitialCredit = 64 << 10
	// bytesHeader is the size of the header of a segment of bytes, but for the first.
	bytesHeader = MaxHeader - OptionBytes - 4
	// segmentHeader is the header of a segment in the state machine, in bytes.
	segmentHeader = 24
)

// What a stream has to send besides data, as bits of sendSide.due.
const (
	dueOpen   = 1 << iota // its options
	dueCredit             // more credit
	dueReset              // RESET
	dueStop               // STOP
)

// sendSide is the sending side of a stream.
type sendSide struct {
	first, last *message        // waiting
	latest      int64           // no deadline of those is later; on the machine's clock
	begun       messages        // of which something was sent, from the oldest that may yet be delivered on
	queued      int             // bytes of what waits
	memory      int             // bytes of memory that it takes
	inFlight    int             // segments with the machine
	control     *message        // of segments without data; nil: none yet
	chunks      *message        // of bytes; nil: none yet
	awaiting    Awaiting        // messages that await a receipt
	err         error           // why nothing more can be written; nil: it can
	abandoned   []serial.Number // messages to be announced as abandoned
	used        serial.Number   // cost of all data sent
	limit       serial.Number   // of used, as the peer allows
	mid         serial.Number   // of the next message
	code        uint64          // of RESET
	stopCode    uint64          // of STOP

	turn      list.Links[Stream] // in a queue of the scheduler
	deficit   int32              // bytes that may be sent in this round
	due       uint8              // due bits
	listed    uint8              // in which queue of the scheduler
	unsent    bool               // counted in scheduler.unsent
	announced bool               // a segment with the options has been queued
	known     bool               // and acknowledged
	fin       bool               // FIN is to follow the data, unless reset
	finSent   bool
	reset     bool // RESET was, or is to be, sent; or the peer has refused the stream
	ready     bool // memory is in Table.ready
	partial   bool // a message that was written may be given up
	blocked   int  // calls that wait for room
}

// over reports whether the peer has all that this end will send.
func (o *sendSide) over() bool {
	return (o.finSent || o.reset) && o.due == 0 && o.inFlight == 0 && len(o.abandoned) == 0
}

// credit returns how many bytes of data the peer takes in one more segment; < 0:
// not even an empty message.
func (o *sendSide) credit() int {
	return int(min(uint32(o.limit-o.used), 1<<30)) - SegmentCost
}

// message is a message to be sent, or a chunk of bytes: those of a segment, which is
// sent from the buffer in which they are queued.
type message struct {
	Tag
	stream *Stream
	next   *message
	later  *message      // in sendSide.begun
	data   []byte        // of a chunk: from Host.NewSegment, with room for bytesHeader
	off    int           // bytes that are with the machine, or of a chunk's headers
	mid    serial.Number // valid once begun
	fsn    uint32
	begun  bool
	sent   bool // all of it is with the machine
	chunk  bool // of bytes: each segment is a message of its own
}

// memory returns the bytes of memory that m takes while it waits.
func (m *message) memory() int { return MessageBytesQueued + cap(m.data) }

// over reports whether nothing more is to be delivered of m.
func (m *message) over() bool { return m.Abandoned || m.sent && m.InFlight == 0 }

// messages is a list of messages, chained by later, in the order of mid.
type messages struct{ first, last *message }

func (l *messages) push(m *message) {
	if l.first == nil {
		l.first = m
	} else {
		l.last.later = m
	}
	l.last = m
}

// pop removes the first message.
func (l *messages) pop() {
	m := l.first
	if l.first = m.later; l.first == nil {
		l.last = nil
	}
	m.later = nil
}

// CannotWrite returns why nothing more may be written; nil if it may.
func (s *Stream) CannotWrite() error {
	if s.out.fin {
		return net.ErrClosed
	}
	return s.out.err
}

// Write queues what the write buffer has room for of b, at least one byte, as bytes. It
// returns their number. The segments in which they wait take room, too.
func (s *Stream) Write(b []byte) (n int) {
	t := s.table
	size := t.host.SegmentPayload() - bytesHeader
	for n < len(b) && (n == 0 || s.out.queued < t.limits.WriteBuffer) {
		m, have := s.out.last, size // bytes in m
		if m != nil && m.chunk {
			have = len(m.data) - t.chunkHead
		}
		if have >= size {
			m, have = t.newChunk(s, min(len(b)-n, size)), 0
			s.enqueue(m)
		}
		k := min(len(b)-n, size-have)
		s.waiting(-cap(m.data))
		m.data = t.host.GrowSegment(m.data, len(m.data)+k)
		copy(m.data[t.chunkHead+have:], b[n:n+k])
		s.waiting(cap(m.data))
		s.out.queued += k
		n += k
	}
	t.sched.update(s)
	return n
}

// newChunk returns an empty chunk of s, for n bytes at first.
func (t *Table) newChunk(s *Stream, n int) *message {
	m := t.spareChunk
	if m == nil {
		m = new(message)
	} else {
		t.spareChunk, m.next = m.next, nil
		t.spareChunks--
	}
	buf := t.host.NewSegment(bytesHeader + n)
	t.chunkHead = len(buf) - n
	m.stream, m.chunk, m.data, m.off = s, true, buf[:t.chunkHead], t.chunkHead
	return m
}

// Send queues b as one message. A segment of it may be transmitted limit times
// until deadline on the machine's clock, in microseconds; 0: any number, and
// always. done is called at its end, unless it is nil.
func (s *Stream) Send(b []byte, limit uint32, deadline int64, done func(error)) {
	m := &message{stream: s, data: append(make([]byte, 0, len(b)), b...)}
	m.Limit, m.Deadline = limit, deadline
	if deadline > 0 {
		s.out.partial = true
		s.Purge()
	}
	if done != nil {
		s.out.awaiting.Add(&m.Tag, done)
	}
	s.enqueue(m)
	s.out.queued += len(b)
	s.table.sched.update(s)
}

// enqueue appends m to what waits. What m.data holds counts already, but for
// SegmentCost.
func (s *Stream) enqueue(m *message) {
	m.message = m
	deadline := m.Deadline
	if deadline == 0 {
		deadline = math.MaxInt64
	}
	if s.out.latest = max(s.out.latest, deadline); s.out.last == nil {
		s.out.first, s.out.latest = m, deadline
	} else {
		s.out.last.next = m
	}
	s.out.last = m
	s.out.queued += SegmentCost
	s.waiting(m.memory())
}

// dequeue takes the first waiting message out of the queue.
func (s *Stream) dequeue() {
	m := s.out.first
	s.out.queued -= len(m.data) - m.off + SegmentCost
	s.waiting(-m.memory())
	if s.out.first = m.next; s.out.first == nil {
		s.out.last = nil
	}
	m.next, m.sent, m.data = nil, true, nil
	if m.chunk {
		*m = message{next: s.table.spareChunk}
		s.table.spareChunk = m
		s.table.spareChunks++
	}
	if s.out.blocked > 0 && 2*s.out.queued <= s.table.limits.WriteBuffer {
		s.Owner.Writable()
	}
}

// Finish lets FIN follow what waits.
func (s *Stream) Finish() {
	if !s.out.fin && !s.out.reset && !s.table.failed {
		s.out.fin = true
		s.table.sched.update(s)
	}
}

// Reset resets both directions with code.
func (s *Stream) Reset(code uint64) {
	s.broken = s.broken || code != 0
	s.StopReading(code)
	s.resetWrite(code, s.table.host.Error(code, false))
}

// CancelWrite drops what is not delivered, and sends RESET. Nothing more can be
// written, as after Finish. It reports false if there is nothing to reset, or it
// was done before.
func (s *Stream) CancelWrite(code uint64) bool {
	if !s.resetWrite(code, s.table.host.Error(code, false)) {
		return false
	}
	s.out.fin = true
	return true
}

// resetWrite drops what is not delivered, because of err, and sends RESET. It
// reports false if there is nothing to reset, or it was done before.
func (s *Stream) resetWrite(code uint64, err error) bool {
	if s.out.reset || s.table.failed || s.out.finSent && s.out.inFlight == 0 {
		return false
	}
	s.out.reset, s.out.err, s.out.code = true, err, code
	s.dropUnsent(err)
	s.control(dueReset)
	s.Owner.Writable()
	return true
}

// control lets bits of sendSide.due be sent.
func (s *Stream) control(what uint8) {
	if !s.gone && !s.table.failed {
		s.out.due |= what
		s.table.sched.update(s)
	}
}

// dropUnsent drops all that waits; what is in flight has the same fate. Its work
// does not depend on how much that is.
func (s *Stream) dropUnsent(err error) {
	o := &s.out
	if m := o.first; m != nil && m.begun {
		m.Abandoned, m.sent, m.data = true, true, nil
	}
	o.first, o.last, o.queued, o.abandoned = nil, nil, 0, nil
	s.waiting(-o.memory)
	s.Owner.Writable()
	s.table.host.Fail(&o.awaiting, Failure{Err: err, Begun: true, Unsent: true})
}

// pull queues the next segment of s with the host. It reports false if there is
// none.
func (s *Stream) pull() bool {
	o := &s.out
	h := Header{ID: s.id}
	if !o.known && s.table.ours(s.id) {
		h.Opens, h.Params, o.announced = true, s.params, true
	}
	if s.pullControl(&h) {
		return true
	}
	if o.reset {
		return false
	}
	if o.partial {
		s.Purge()
	}
	if len(o.abandoned) > 0 {
		return s.pullControl(&h)
	}
	if !s.sendable() {
		return false
	}
	if o.first == nil {
		o.finSent = true
		h.Kind, h.MID = Fin, o.mid
		s.put(s.controlMessage(), &h, 0)
		return true
	}
	s.pullData(&h)
	return true
}

// pullControl queues a segment of control, if one is due. What the peer has to
// know of a new stream goes with data, if there is some.
func (s *Stream) pullControl(h *Header) bool {
	o := &s.out
	switch {
	case o.due&dueReset != 0:
		o.due &^= dueReset | dueOpen
		h.Kind, h.Code = Reset, o.code
	case o.due&dueStop != 0:
		o.due &^= dueStop | dueOpen
		h.Kind, h.Code = Stop, o.stopCode
	case len(o.abandoned) > 0:
		o.due &^= dueOpen
		h.Kind, h.MID, h.Size = Abandon, o.abandoned[0], NoSegment
		if o.abandoned = o.abandoned[1:]; len(o.abandoned) == 0 {
			o.abandoned = nil
		}
	case o.due&dueCredit != 0:
		o.due &^= dueCredit | dueOpen
		h.Kind, h.Limit = Credit, s.in.limit
	case o.due&dueOpen != 0:
		o.due &^= dueOpen
		if o.known || s.sendable() {
			return false
		}
		h.Kind = Open
	default:
		return false
	}
	s.put(s.controlMessage(), h, 0)
	return true
}

// put queues a segment of m with n bytes of data, which it returns for the caller
// to fill in.
func (s *Stream) put(m *message, h *Header, n int) []byte {
	s.sent(n)
	return s.table.queue(&m.Tag, h, n)
}

// sent counts a segment with n bytes of data.
func (s *Stream) sent(n int) {
	s.out.inFlight++
	s.in.stats.BytesSent += uint64(n)
	s.out.deficit -= int32(n + segmentHeader)
}

// controlMessage returns the message of segments without data.
func (s *Stream) controlMessage() *message {
	if s.out.control == nil {
		s.out.control = &message{stream: s}
		s.out.control.message = s.out.control
	}
	return s.out.control
}

// chunkMessage returns the message of segments of bytes.
func (s *Stream) chunkMessage() *message {
	if s.out.chunks == nil {
		s.out.chunks = &message{stream: s}
		s.out.chunks.message = s.out.chunks
	}
	return s.out.chunks
}

// pullData queues the next segment of the first waiting message.
func (s *Stream) pullData(h *Header) {
	o, m := &s.out, s.out.first
	h.Kind = Data
	left := len(m.data) - m.off
	header := MaxHeader - 4 // without FSN
	if !h.Opens {
		header -= OptionBytes
	}
	payload := s.table.host.SegmentPayload()
	room := min(payload-header, o.credit())
	if m.chunk {
		s.pullBytes(h, max(room, 1))
		return
	}
	if !m.begun {
		m.begun, m.mid = true, o.mid
		o.mid++
		o.begun.push(m)
	}
	if h.Part = m.fsn > 0 || left > room; h.Part {
		room = min(room, payload-header-4)
		h.FSN = m.fsn
	}
	n := min(left, max(room, 1))
	h.MID, h.End = m.mid, n == left
	m.fsn++
	data := m.data[m.off : m.off+n]
	m.off += n
	o.queued -= n
	o.used += serial.Number(n + SegmentCost)
	copy(s.put(m, h, n), data)
	if h.End {
		s.in.stats.MessagesSent++
		s.dequeue()
	}
}

// pullBytes queues up to room of the waiting bytes as one message. A chunk that was not
// begun goes on in its own buffer, without a copy.
func (s *Stream) pullBytes(h *Header, room int) {
	o, t := &s.out, s.table
	m, head := o.first, t.chunkHead
	n := min(len(m.data)-m.off, room)
	whole := n == len(m.data)-head && !h.Opens
	for next := m.next; !whole && next != nil && next.chunk && n < room; next = next.next {
		n = min(n+len(next.data)-next.off, room)
	}
	h.End, h.MID = true, o.mid
	o.mid++
	o.used += serial.Number(n + SegmentCost)
	s.in.stats.MessagesSent++
	if whole {
		o.queued -= n
		m.off += n
		buf := m.data
		s.dequeue()
		h.Append(buf[:head-bytesHeader])
		s.sent(n)
		t.host.QueueSegment(&s.chunkMessage().Tag, buf)
		return
	}
	b := s.put(s.chunkMessage(), h, n)
	for n > 0 {
		m := o.first
		c := copy(b, m.data[m.off:])
		b, n = b[c:], n-c
		m.off += c
		o.queued -= c
		if m.off == len(m.data) {
			buf := m.data
			s.dequeue()
			t.host.FreeSegment(buf)
		}
	}
}

// MaxMessage returns how many bytes of a message fit into a receive buffer such as this
// end has, or into the largest that the peer has shown.
func (s *Stream) MaxMessage() int {
	buffer := max(s.table.limits.ReceiveBuffer, s.table.shown)
	n := s.table.host.SegmentPayload() - MaxHeader
	return buffer/(n+SegmentCost)*n + max(buffer%(n+SegmentCost)-SegmentCost, 0)
}
