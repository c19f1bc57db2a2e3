package kcp

import "math/bits"

// levelOf returns the index of the list for priority p; the highest is 0.
func levelOf(p int8) int { return maxPriority - int(p) }

// bulkLevel is the level of what the session itself sends.
const bulkLevel = maxPriority

// streamScheduler decides what leaves next: control first, then by priority,
// and among equals by deficit round robin (Shreedhar, Varghese 1995).
type streamScheduler struct {
	levels  [maxPriority - minPriority + 1]streamList
	control streamList
	used    uint32 // bit i: levels[i] is not empty
	unsent  int    // streams that have more to send, or FIN, be it without credit
	plain   int    // turns of streams since the session itself had one
}

// streamList is a list of streams, chained by streamOut.next and prev.
type streamList struct {
	first, last *Stream
	n           int
}

func (l *streamList) push(s *Stream) {
	l.n++
	s.out.prev = l.last
	if l.last == nil {
		l.first = s
	} else {
		l.last.out.next = s
	}
	l.last = s
}

func (l *streamList) remove(s *Stream) {
	l.n--
	if s.out.prev == nil {
		l.first = s.out.next
	} else {
		s.out.prev.out.next = s.out.next
	}
	if s.out.next == nil {
		l.last = s.out.prev
	} else {
		s.out.next.out.prev = s.out.prev
	}
	s.out.next, s.out.prev = nil, nil
}

// Values of streamOut.listed.
const (
	notListed = iota
	listedControl
	listedData
)

// remove takes s out of its list.
func (d *streamScheduler) remove(s *Stream) {
	switch s.out.listed {
	case listedControl:
		d.control.remove(s)
	case listedData:
		i := levelOf(s.params.priority)
		if d.levels[i].remove(s); d.levels[i].n == 0 {
			d.used &^= 1 << i
		}
	}
	s.out.listed = notListed
}

// unsent reports whether s has more to send, or FIN, be it without credit.
func (s *Stream) unsent() bool {
	o := &s.out
	return !s.gone && !s.conn.streams.failed && (o.first != nil || o.fin && !o.finSent && !o.reset)
}

// update puts s into the list where it belongs.
func (d *streamScheduler) update(s *Stream) {
	if unsent := s.unsent(); unsent != s.out.unsent {
		s.out.unsent = unsent
		d.unsent--
		if unsent {
			d.unsent += 2
		}
	}
	want := uint8(notListed)
	sendable := s.sendable()
	s.creditedLocked(sendable)
	switch {
	case s.gone || s.conn.streams.failed:
	case s.out.due != 0 || len(s.out.abandoned) > 0:
		want = listedControl
	case sendable:
		want = listedData
	}
	if want == s.out.listed {
		return
	}
	d.remove(s)
	s.out.listed = want
	switch want {
	case listedControl:
		d.control.push(s)
	case listedData:
		i := levelOf(s.params.priority)
		d.levels[i].push(s)
		d.used |= 1 << i
		s.out.deficit = 0
	}
}

// busy reports whether anything of a stream may be sent.
func (d *streamScheduler) busy() bool { return d.used != 0 || d.control.n > 0 }

// pick returns the stream whose segment is next; nil if that is one of the
// session itself, of which plain says whether one waits, or if there is none.
func (d *streamScheduler) pick(plain bool, quantum int32) *Stream {
	if d.control.first != nil {
		return d.control.first
	}
	i := bits.TrailingZeros32(d.used)
	if d.used == 0 || plain && i > bulkLevel {
		return nil
	}
	l := &d.levels[i]
	if plain && i == bulkLevel {
		if d.plain++; d.plain > l.n {
			d.plain = 0
			return nil
		}
	}
	for {
		s := l.first
		if s.out.deficit > 0 {
			return s
		}
		s.out.deficit += quantum
		l.remove(s)
		l.push(s)
	}
}

// streamsWait reports whether pullStream would queue a segment. Nothing may follow
// CLOSE.
func (c *Conn) streamsWait() bool {
	t := c.streams
	return t != nil && c.closing.state == stateOpen && (t.sched.busy() || len(t.refused) > 0)
}

// pullStream queues the next stream segment with the machine. After FIN, whose
// final is known to the peer, nothing may come between what the session itself
// has still to send.
func (c *Conn) pullStream(plain bool) bool {
	t := c.streams
	if plain && c.hs.finSignal != 0 || c.closing.state != stateOpen {
		return false
	}
	if len(t.openings) > 0 {
		t.announceLocked()
	}
	if n := len(t.refused); n > 0 {
		id := t.refused[n-1]
		if t.refused = t.refused[:n-1]; n == 1 {
			t.refused = nil
		}
		c.putStream(&t.control, &streamHeader{id: id, kind: streamReset, code: StreamRefused}, 0)
		return true
	}
	for t.sched.busy() {
		s := t.sched.pick(plain, int32(c.kcp.segmentPayload()))
		if s == nil {
			return false
		}
		queued := s.pullLocked()
		t.sched.update(s)
		if queued {
			return true
		}
	}
	return false
}

// pullLocked queues the next segment of s with the machine. It reports false if
// there is none.
func (s *Stream) pullLocked() bool {
	o := &s.out
	h := streamHeader{id: s.id}
	if !o.known && s.conn.streams.oursLocked(s.id) {
		h.opens, h.params, o.announced = true, s.params, true
	}
	if s.pullControlLocked(&h) {
		return true
	}
	if o.reset {
		return false
	}
	s.purgeLocked(s.conn.kcp.micros())
	if len(o.abandoned) > 0 {
		return s.pullControlLocked(&h)
	}
	if !s.sendable() {
		return false
	}
	if o.first == nil {
		o.finSent = true
		h.kind, h.mid = streamFin, o.mid
		s.putLocked(s.controlTag(), &h, nil)
		return true
	}
	s.pullDataLocked(&h)
	return true
}

// pullControlLocked queues a segment of control, if one is due. What the peer has to
// know of a new stream goes with data, if there is some.
func (s *Stream) pullControlLocked(h *streamHeader) bool {
	o := &s.out
	switch {
	case o.due&ctlReset != 0:
		o.due &^= ctlReset | ctlOpen
		h.kind, h.code = streamReset, o.code
	case o.due&ctlStop != 0:
		o.due &^= ctlStop | ctlOpen
		h.kind, h.code = streamStop, o.stopCode
	case len(o.abandoned) > 0:
		o.due &^= ctlOpen
		h.kind, h.mid, h.size = streamAbandon, o.abandoned[0], noSegment
		if o.abandoned = o.abandoned[1:]; len(o.abandoned) == 0 {
			o.abandoned = nil
		}
	case o.due&ctlCredit != 0:
		o.due &^= ctlCredit | ctlOpen
		h.kind, h.limit = streamCredit, s.in.limit
	case o.due&ctlOpen != 0:
		o.due &^= ctlOpen
		if o.known || s.sendable() {
			return false
		}
		h.kind = streamOpen
	default:
		return false
	}
	s.putLocked(s.controlTag(), h, nil)
	return true
}

// putLocked queues a segment with the machine.
func (s *Stream) putLocked(m *outMessage, h *streamHeader, data []byte) {
	copy(s.spaceLocked(m, h, len(data)), data)
}

// spaceLocked queues a segment with n bytes of data, which it returns for the caller to
// fill in.
func (s *Stream) spaceLocked(m *outMessage, h *streamHeader, n int) []byte {
	s.out.flight++
	s.in.stats.BytesSent += uint64(n)
	b := s.conn.putStream(m, h, n)
	s.out.deficit -= int32(n + headerSize)
	return b
}

// putStream queues a segment with the machine, and returns its n bytes of data.
func (c *Conn) putStream(m *outMessage, h *streamHeader, n int) []byte {
	var room [maxStreamHeader]byte
	header := h.append(room[:0])
	c.watch.overtaken(c.kcp.sendEnd() - seq(c.kcp.unsent()))
	b := c.kcp.queueStream(&m.streamTag, len(header)+n)
	return b[copy(b, header):]
}

// controlTag returns the tag of segments without data.
func (s *Stream) controlTag() *outMessage {
	if s.out.control == nil {
		s.out.control = &outMessage{stream: s}
		s.out.control.owner = s.out.control
	}
	return s.out.control
}

// chunkTag returns the tag of segments of bytes.
func (s *Stream) chunkTag() *outMessage {
	if s.out.chunks == nil {
		s.out.chunks = &outMessage{stream: s}
		s.out.chunks.owner = s.out.chunks
	}
	return s.out.chunks
}

// pullDataLocked queues the next segment of the first waiting message.
func (s *Stream) pullDataLocked(h *streamHeader) {
	o, m := &s.out, s.out.first
	h.kind = streamData
	left := len(m.data) - m.off
	header := maxStreamHeader - 4 // without fsn
	if !h.opens {
		header -= streamOptionBytes
	}
	room := min(s.conn.kcp.segmentPayload()-header, o.credit())
	if m.chunk {
		s.pullBytesLocked(h, max(room, 1))
		return
	}
	if !m.begun {
		m.begun, m.mid = true, o.mid
		o.mid++
		o.begun.push(m)
	}
	if h.part = m.fsn > 0 || left > room; h.part {
		room = min(room, s.conn.kcp.segmentPayload()-header-4)
		h.fsn = m.fsn
	}
	n := min(left, max(room, 1))
	h.mid, h.end = m.mid, n == left
	m.fsn++
	data := m.data[m.off : m.off+n]
	m.off += n
	o.queued -= n
	o.used += seq(n + streamCost)
	s.putLocked(m, h, data)
	if h.end {
		s.in.stats.MessagesSent++
		s.popLocked()
	}
}

// pullBytesLocked queues up to room of the waiting bytes as one message.
func (s *Stream) pullBytesLocked(h *streamHeader, room int) {
	o := &s.out
	n := 0
	for m := o.first; m != nil && m.chunk && n < room; m = m.next {
		n = min(n+len(m.data)-m.off, room)
	}
	h.end, h.mid = true, o.mid
	o.mid++
	o.used += seq(n + streamCost)
	s.in.stats.MessagesSent++
	b := s.spaceLocked(s.chunkTag(), h, n)
	for n > 0 {
		m := o.first
		c := copy(b, m.data[m.off:])
		b, n = b[c:], n-c
		m.off += c
		o.queued -= c
		if m.off == len(m.data) {
			s.popLocked()
		}
	}
}
