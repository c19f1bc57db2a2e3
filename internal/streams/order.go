package streams

import (
	"github.com/arqnet/kcp/internal/container"
)

// What arrives on a stream out of order: messages behind a missing one, fragments,
// notes of what is not waited for. No segment walks them, whatever arrives. The
// credit of the stream bounds what they hold.

const (
	// MaxMessagesAhead is how far ahead of the oldest message that is missing
	// others may be. Fewer fit into any receive window.
	MaxMessagesAhead = 1 << 17
	// maxParts is how many fragments a message has at most. Fewer fit into
	// any receive buffer.
	maxParts = 1 << 24
	// advanceSteps is how many early messages a segment moves on past. The next
	// segment, or Read, goes on from there.
	advanceSteps = 16
)

// earlyMessage is a message that cannot be read yet, or the note of one that was
// read, or abandoned, before another that is missing. A note keeps SegmentCost of
// the credit: it takes memory.
type earlyMessage struct {
	whole     []byte    // if it has no fragments
	parts     fragments // if it has
	count     uint32    // of them
	top       uint32    // the largest number of one
	total     uint32    // how many there will be; 0: not known
	bytes     uint32    // payload
	cost      uint32    // towards the credit
	complete  bool      // or abandoned, or read
	waits     bool      // complete, and not read
	abandoned bool
}

// memory returns the bytes of memory that m takes.
func (m *earlyMessage) memory() int {
	return messageBytesHeld + int(m.bytes) + int(m.count)*fragmentBytesHeld
}

// behind reports whether advance has more to do.
func (in *receiveSide) behind() bool {
	if in.next.Before(in.skip) {
		return true
	}
	mid, m := in.early.First()
	return m != nil && m.complete && container.Serial(mid) == in.next
}

// passTo moves next on to mid.
func (in *receiveSide) passTo(mid container.Serial) {
	in.next = mid
	if in.skip.Before(mid) {
		in.skip = mid
	}
	if in.end.Before(mid) {
		in.end = mid
	}
}

// inputData takes a message, or a fragment of one.
func (s *Stream) inputData(h *Header, data []byte) {
	in := &s.in
	if !s.spend(h.MID, len(data)) {
		return
	}
	in.stats.BytesReceived += uint64(len(data))
	if h.End && h.FSN == 0 {
		h.Part = false // all of its message
	}
	ahead := h.MID - in.next
	switch {
	case h.MID.Before(in.next), h.MID.Within(in.next, in.skip):
		s.free(len(data) + SegmentCost) // of a message that was abandoned
		return
	case !s.fits(h.MID):
		return
	}
	whole := h.End && !h.Part && (ahead == 0 || s.params.Unordered) && in.early.Get(uint32(h.MID)) == nil
	switch {
	case whole && ahead == 0:
		if !s.deliverDirect(data) {
			s.becomeReady(received{data: s.keep(data), left: int32(len(data)), cost: int32(len(data) + SegmentCost)})
		}
		in.passTo(h.MID + 1)
	case whole:
		s.becomeReady(received{data: s.keep(data), left: int32(len(data)), cost: int32(len(data))})
		m := s.earlyAt(h.MID)
		m.complete, m.cost = true, SegmentCost
	case !s.inputFragment(h, data):
		return
	}
	s.advance()
	s.grow(0)
	s.makeRoom()
}

// keep returns a copy of data, in a buffer that is used again.
func (s *Stream) keep(data []byte) []byte {
	return append(s.table.segments.get(len(data)), data...)
}

// fits reports whether message mid, which is not before next, may be one of the
// stream. It resets the stream if not.
func (s *Stream) fits(mid container.Serial) bool {
	in := &s.in
	if mid-in.next > MaxMessagesAhead || in.fin && !mid.Before(in.last) {
		s.violation(Violation)
		return false
	}
	if !mid.Before(in.end) {
		in.end = mid + 1
	}
	return true
}

// earlyAt returns the message mid that cannot be read yet, which it makes.
func (s *Stream) earlyAt(mid container.Serial) *earlyMessage {
	m := s.in.early.Get(uint32(mid))
	if m == nil {
		m = s.in.early.Add(uint32(mid))
		s.hold(m.memory())
	}
	return m
}

// inputFragment keeps a fragment, or a message that is too early. It reports false
// if the stream was reset because of it.
func (s *Stream) inputFragment(h *Header, data []byte) bool {
	m := s.earlyAt(h.MID)
	cost := len(data) + SegmentCost
	if m.abandoned {
		s.free(cost)
		return true
	}
	if m.complete || m.total > 0 && (h.End || h.FSN >= m.total) || m.count > 0 && (!h.Part || h.End && h.FSN < m.top) ||
		h.FSN >= maxParts || m.parts.Get(h.FSN) != nil {
		s.violation(Violation)
		return false
	}
	s.hold(-m.memory())
	m.bytes += uint32(len(data))
	m.cost += uint32(cost)
	s.in.bytes += len(data)
	data = s.keep(data)
	if !h.Part {
		m.whole, m.complete, m.waits = data, true, true
	} else {
		*m.parts.Add(h.FSN) = data
		if m.count++; h.End {
			m.total = h.FSN + 1
		}
		m.top = max(m.top, h.FSN)
		m.complete = m.count == m.total
		m.waits = m.complete
	}
	s.hold(m.memory())
	if m.waits && s.params.Unordered {
		s.give(m, SegmentCost) // whatever is missing before it
	}
	return true
}

// inputAbandon drops a message of which nothing more is sent; or all up to it that
// are not complete. What the segment itself counts comes after that: it may take
// the sn of DATA of one of them, which a note has counted before.
func (s *Stream) inputAbandon(h *Header) {
	in := &s.in
	if in.stop || in.reset {
		return
	}
	if !h.MID.Before(in.next) && !h.MID.Within(in.next, in.skip) {
		if !s.fits(h.MID) {
			return
		}
		if h.End {
			in.skip = h.MID + 1
		} else if !s.noteAbandoned(h.MID) {
			return
		}
		s.advance()
	}
	if h.Size != NoSegment && s.spend(h.MID, int(h.Size)) {
		s.free(int(h.Size) + SegmentCost)
	}
}

// noteAbandoned drops message mid, of which nothing more is sent, and records
// that. If nothing of it has arrived, SegmentCost is set aside for what will, in
// its place if nothing else: the sender has counted that, so the credit bounds the
// notes. It reports false if the stream was reset because of it.
func (s *Stream) noteAbandoned(mid container.Serial) bool {
	in := &s.in
	m := in.early.Get(uint32(mid))
	switch {
	case m == nil && mid == in.next:
		in.stats.Skipped++
		in.passTo(mid + 1)
		return true
	case m == nil && SegmentCost > in.credit():
		s.violation(Violation)
		return false
	case m == nil:
		in.owed += SegmentCost
		m = s.earlyAt(mid)
	}
	s.dropEarly(m)
	return true
}

// dropEarly drops m, of which nothing more is sent, unless it is complete.
func (s *Stream) dropEarly(m *earlyMessage) {
	if m.complete {
		return // it has arrived all the same
	}
	in := &s.in
	s.hold(-m.memory())
	in.bytes -= int(m.bytes)
	cost := m.cost
	*m = earlyMessage{complete: true, abandoned: true, cost: min(cost, SegmentCost)}
	s.hold(m.memory())
	in.stats.Skipped++
	s.free(int(cost - m.cost))
}

// advance moves on past what is complete or abandoned, by a few messages.
func (s *Stream) advance() {
	in := &s.in
	for range advanceSteps {
		mid, m := in.early.First()
		switch {
		case m != nil && container.Serial(mid) == in.next && (m.complete || in.next.Before(in.skip)):
			s.passEarly(m)
		case in.next.Before(in.skip):
			to := in.skip
			if m != nil && container.Serial(mid).Before(to) {
				to = container.Serial(mid)
			}
			in.stats.Skipped += uint64(to - in.next)
			in.passTo(to)
		default:
			return
		}
	}
	s.Owner.Readable() // for Read to go on from here
}

// passEarly moves on past m, which is the next message: it can be read, or is given
// up.
func (s *Stream) passEarly(m *earlyMessage) {
	in := &s.in
	s.dropEarly(m)
	if m.waits {
		s.give(m, 0)
	}
	if m.cost == 0 && m.abandoned {
		in.owed -= SegmentCost
	}
	s.hold(-m.memory())
	cost := int(m.cost)
	in.early.RemoveFirst()
	in.passTo(in.next + 1)
	if cost > 0 {
		s.free(cost)
	}
}

// give lets m, which is complete, be read. The note that remains keeps some of its
// cost.
func (s *Stream) give(m *earlyMessage, keep uint32) {
	s.hold(-m.memory())
	s.in.bytes -= int(m.bytes)
	r := received{data: m.whole, parts: m.parts, left: int32(m.bytes), cost: int32(m.cost - keep)}
	r.held = int32(m.count) * fragmentBytesHeld
	*m = earlyMessage{complete: true, cost: keep}
	s.hold(m.memory())
	s.becomeReady(r)
}
