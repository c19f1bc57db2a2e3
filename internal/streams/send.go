package streams

import (
	"math"
	"net"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/wire"
)

const (
	// SegmentCost is what each segment of data counts towards the credit of its
	// stream beside its payload, in bytes: it takes memory too.
	SegmentCost = messageBytesHeld + fragmentBytesHeld
	// InitialCredit is the credit of a new stream, in bytes.
	InitialCredit = 64 << 10
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
	first, last *piece             // waiting
	latest      int64              // no deadline of those is later; on the machine's clock
	begun       messages           // of which something was sent, from the oldest that may yet be delivered on
	queued      int                // bytes of what waits
	memory      int                // bytes of memory that it takes
	inFlight    int                // segments with the machine
	control     *message           // of segments without data; nil: none yet
	bytes       *message           // of all that is written as bytes; nil: none yet
	awaiting    Awaiting           // messages that await a receipt
	err         error              // why nothing more can be written; nil: it can
	abandoned   []container.Serial // messages to be announced as abandoned
	used        container.Serial   // cost of all data sent
	limit       container.Serial   // of used, as the peer allows
	mid         container.Serial   // of the next message
	code        uint64             // of RESET
	stopCode    uint64             // of STOP

	turn      container.Links[Stream] // in a queue of the scheduler
	deficit   int32                   // bytes that may be sent in this round
	due       uint8                   // due bits
	listed    uint8                   // in which queue of the scheduler
	unsent    bool                    // counted in scheduler.unsent
	announced bool                    // a segment with the options has been queued
	known     bool                    // and acknowledged
	fin       bool                    // FIN is to follow the data, unless reset
	finSent   bool
	reset     bool // RESET was, or is to be, sent; or the peer has refused the stream
	needless  bool // the peer has closed the stream, and nothing that waited was dropped
	ready     bool // memory is in Table.ready
	partial   bool // a message that was written may be given up
	written   bool // something was
	cut       bool // by SetCut
	implied   bool // fin was set by Table.Close
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

// message is a message to be sent. The one of all bytes has no end, and no mid: each of
// its segments is a message of its own.
type message struct {
	Tag
	stream *Stream
	later  *message         // in sendSide.begun
	mid    container.Serial // valid once begun
	fsn    uint32           // of the next segment
	begun  bool
	sent   bool // all of it is with the machine
}

// piece is what waits of a message in the buffer of one segment, from which it is sent
// unless the segment has to be of another size.
type piece struct {
	of   *message
	next *piece
	data []byte // from Host.NewSegment, with room for a header
	head int32  // where the payload begins in data
	off  int32  // where what is not with the machine begins
	last bool   // of a message that has an end
}

// left returns the bytes that are not with the machine.
func (p *piece) left() int { return len(p.data) - int(p.off) }

// memory returns the bytes of memory that p takes while it waits.
func (p *piece) memory() int {
	n := pieceBytesQueued + cap(p.data)
	if p.last {
		n += MessageBytesQueued
	}
	return n
}

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

// NeedsNoFin reports whether the peer has closed the stream after all that was written
// had left, and before Finish.
func (s *Stream) NeedsNoFin() bool { return s.out.needless && !s.out.fin }

// dataHeader returns the size of the header of a segment of data that is sent now.
func (s *Stream) dataHeader(part bool) int {
	n := MaxHeader
	if !s.opens() {
		n -= OptionBytes
	}
	if !part {
		n -= 4
	}
	return n
}

// opens reports whether segments that are sent now carry the options of the stream.
func (s *Stream) opens() bool { return !s.out.known && s.table.ours(s.id) }

// Write queues what the write buffer has room for of b, at least one byte, as bytes. It
// returns their number. The segments in which they wait take room, too.
func (s *Stream) Write(b []byte) (n int) {
	t := s.table
	header := s.dataHeader(false)
	size, m := t.host.SegmentPayload()-header, s.bytesMessage()
	for n < len(b) && (n == 0 || s.out.queued < t.limits.WriteBuffer) {
		p, have := s.out.last, size // bytes in p
		if p != nil && p.of == m {
			have = len(p.data) - int(p.head)
		}
		if have >= size {
			k := min(len(b)-n, size)
			p, have = t.newPiece(m, header, k), 0
			p.data = p.data[:p.head]
			s.enqueue(p)
		}
		k := min(len(b)-n, size-have)
		s.waiting(-cap(p.data))
		p.data = t.host.GrowSegment(p.data, len(p.data)+k)
		copy(p.data[int(p.head)+have:], b[n:n+k])
		s.waiting(cap(p.data))
		s.out.queued += k
		n += k
	}
	t.sched.update(s)
	return n
}

// newPiece returns a piece of m with a payload of n bytes, to be filled in, behind a
// header of so many bytes.
func (t *Table) newPiece(m *message, header, n int) *piece {
	p := t.sparePiece
	if p == nil {
		p = new(piece)
	} else {
		t.sparePiece, p.next = p.next, nil
		t.sparePieces--
	}
	p.of, p.data = m, t.host.NewSegment(header+n)
	p.head = int32(len(p.data) - n)
	p.off, t.headroom = p.head, int(p.head)-header
	return p
}

// Send queues b as one message. A segment of it may be transmitted limit times
// until deadline on the machine's clock, in microseconds; 0: any number, and
// always. done is called at its end, unless it is nil.
func (s *Stream) Send(b []byte, limit uint32, deadline int64, done func(error)) {
	m := &message{stream: s}
	m.message, m.Limit, m.Deadline = m, limit, deadline
	if deadline > 0 {
		s.out.partial = true
		s.Purge()
	}
	if done != nil {
		s.out.awaiting.Add(&m.Tag, done)
	}
	payload := s.table.host.SegmentPayload()
	header := s.dataHeader(len(b) > payload-s.dataHeader(false))
	for last := false; !last; {
		n := min(len(b), payload-header)
		p := s.table.newPiece(m, header, n)
		copy(p.data[p.head:], b)
		last = n == len(b)
		p.last, b = last, b[n:]
		s.out.queued += n
		s.enqueue(p)
	}
	s.table.sched.update(s)
}

// enqueue appends p to what waits. Its payload counts already.
func (s *Stream) enqueue(p *piece) {
	deadline := p.of.Deadline
	if deadline == 0 {
		deadline = math.MaxInt64
	}
	if s.out.latest = max(s.out.latest, deadline); s.out.last == nil {
		s.out.first, s.out.latest = p, deadline
	} else {
		s.out.last.next = p
	}
	s.out.last, s.out.written = p, true
	s.out.queued += SegmentCost
	s.waiting(p.memory())
}

// dequeue takes the first waiting piece out of the queue, and returns its buffer.
func (s *Stream) dequeue() []byte {
	t, p := s.table, s.out.first
	s.out.queued -= p.left() + SegmentCost
	s.waiting(-p.memory())
	if s.out.first = p.next; s.out.first == nil {
		s.out.last = nil
	}
	p.of.sent = p.last
	buf := p.data
	*p = piece{next: t.sparePiece}
	t.sparePiece = p
	t.sparePieces++
	if s.out.blocked > 0 && 2*s.out.queued <= t.limits.WriteBuffer {
		s.Owner.Writable()
	}
	return buf
}

// dropFirst takes the rest of the first waiting message out of the queue.
func (s *Stream) dropFirst() {
	for last := false; !last; {
		last = s.out.first.last
		s.table.host.FreeSegment(s.dequeue())
	}
}

// Finish lets FIN follow what waits, unless the stream was reset, or Table.Close came
// before.
func (s *Stream) Finish() {
	s.WriteDone()
	if !s.out.fin && (s.out.err == nil || s.out.needless) && !s.table.failed {
		s.out.fin = true
		s.table.sched.update(s)
	}
}

// endWriting is Table.Close for what s sends.
func (s *Stream) endWriting(whole bool) {
	o := &s.out
	if o.fin || o.err != nil {
		return
	}
	if whole && o.written && !o.cut {
		s.Finish()
		o.implied = true
	}
	o.err = net.ErrClosed
}

// SetCut says whether the application's last call that writes has left something that was
// not queued, because it waits or has failed. After Table.Close, that takes FIN back if
// it has not left.
func (s *Stream) SetCut(cut bool) {
	o := &s.out
	if o.cut = cut; cut && o.implied && !o.finSent {
		o.fin, o.implied = false, false
		s.table.sched.update(s)
	}
}

// Reset resets both directions with code.
func (s *Stream) Reset(code uint64) {
	s.readDone, s.writeDone = true, true
	s.reset(code)
	s.table.settle(s)
}

// reset is Reset, be it not of the application.
func (s *Stream) reset(code uint64) {
	s.broken = s.broken || code != 0
	s.stopReading(code)
	s.resetWrite(code, s.table.host.Error(code, false))
}

// CancelWrite drops what is not delivered, and sends RESET. Nothing more can be
// written, as after Finish. It reports false if there is nothing to reset, or it
// was done before.
func (s *Stream) CancelWrite(code uint64) bool {
	s.WriteDone()
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
	if o.first != nil && o.first.of.begun {
		m := o.first.of
		m.Abandoned, m.sent = true, true
	}
	o.first, o.last, o.queued, o.abandoned = nil, nil, 0, nil
	s.waiting(-o.memory)
	s.Owner.Writable()
	s.table.host.Fail(&o.awaiting, Failure{Err: err, Begun: true, Unsent: true})
}

// pull lets Table.Pull return the next segment of s, if there is one.
func (s *Stream) pull() {
	o := &s.out
	h := Header{ID: s.id}
	if s.opens() {
		h.Opens, h.Params, o.announced = true, s.params, true
	}
	if s.pullControl(&h) || o.reset {
		return
	}
	if o.partial {
		s.Purge()
	}
	switch {
	case len(o.abandoned) > 0:
		s.pullControl(&h)
	case !s.sendable():
	case o.first == nil:
		o.finSent = true
		h.Kind, h.MID = Fin, o.mid
		s.put(s.controlMessage(), &h, 0)
	default:
		s.pullData(&h)
	}
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

// put lets Table.Pull return a segment of m with n bytes of data, which it returns for
// the caller to fill in.
func (s *Stream) put(m *message, h *Header, n int) []byte {
	s.sent(n)
	return s.table.segment(&m.Tag, h, n)
}

// sent counts a segment with n bytes of data.
func (s *Stream) sent(n int) {
	s.out.inFlight++
	s.in.stats.BytesSent += uint64(n)
	s.out.deficit -= int32(n + wire.HeaderSize)
}

// controlMessage returns the message of segments without data.
func (s *Stream) controlMessage() *message {
	if s.out.control == nil {
		s.out.control = &message{stream: s}
		s.out.control.message = s.out.control
	}
	return s.out.control
}

// bytesMessage returns the message of all bytes.
func (s *Stream) bytesMessage() *message {
	if s.out.bytes == nil {
		s.out.bytes = &message{stream: s}
		s.out.bytes.message = s.out.bytes
	}
	return s.out.bytes
}

// pullData queues the next segment of the first waiting message, or of the bytes that
// wait first. A piece that was not begun, and fits, goes in its own buffer, without a
// copy.
func (s *Stream) pullData(h *Header) {
	o, t := &s.out, s.table
	p := o.first
	m, payload := p.of, t.host.SegmentPayload()
	h.Kind = Data
	room := min(payload-s.dataHeader(false), o.credit())
	switch {
	case m == o.bytes:
		h.MID = o.mid
		o.mid++
	case !m.begun:
		m.begun, m.mid = true, o.mid
		o.mid++
		o.begun.push(m)
		fallthrough
	default:
		if h.MID, h.FSN = m.mid, m.fsn; m.fsn > 0 || !p.last || p.left() > room {
			h.Part, room = true, min(room, payload-s.dataHeader(true))
		}
		m.fsn++
	}
	room = max(room, 1)
	whole := p.off == p.head && p.left() <= room && int(p.head) == t.headroom+s.dataHeader(h.Part)
	n, end := p.left(), p.last
	for q := p.next; !whole && n < room && q != nil && q.of == m; q = q.next {
		n, end = n+q.left(), q.last
	}
	if n > room {
		n, end = room, false
	}
	if h.End = end || m == o.bytes; h.End {
		s.in.stats.MessagesSent++
	}
	o.used += container.Serial(n + SegmentCost)
	if !whole {
		s.copyData(s.put(m, h, n))
		return
	}
	buf := s.dequeue()
	h.Append(buf[:t.headroom])
	s.sent(n)
	t.pulled, t.pulledBuf = &m.Tag, buf
}

// copyData moves what waits into b, which is not more.
func (s *Stream) copyData(b []byte) {
	for o := &s.out; ; {
		p := o.first
		n := copy(b, p.data[p.off:])
		b = b[n:]
		p.off += int32(n)
		o.queued -= n
		if p.left() == 0 {
			s.table.host.FreeSegment(s.dequeue())
		}
		if len(b) == 0 {
			return
		}
	}
}

// PeerTakesMore reports whether the peer has shown a larger receive buffer than this end
// has.
func (s *Stream) PeerTakesMore() bool { return s.table.shown > s.table.limits.ReceiveBuffer }

// MaxMessage returns how many bytes of a message fit into a receive buffer such as this
// end has, or into the largest that the peer has shown.
func (s *Stream) MaxMessage() int {
	buffer := max(s.table.limits.ReceiveBuffer, s.table.shown)
	n := s.table.host.SegmentPayload() - MaxHeader
	return buffer/(n+SegmentCost)*n + max(buffer%(n+SegmentCost)-SegmentCost, 0)
}
