package kcp

// What arrives on a stream out of order: messages behind a missing one, fragments,
// notes of what is not waited for. No segment walks them, whatever arrives. The
// credit of the stream bounds what they hold.

// earlyMessage is a message that cannot be read yet, or the note of one that was
// read, or abandoned, before another that is missing. A note keeps streamCost of
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

// takeDataLocked takes a message, or a fragment of one.
func (s *Stream) takeDataLocked(h *streamHeader, data []byte) {
	in := &s.in
	if !s.spendLocked(h.mid, len(data)) {
		return
	}
	in.stats.BytesReceived += uint64(len(data))
	ahead := h.mid - in.next
	switch {
	case h.mid.before(in.next), h.mid.within(in.next, in.skip):
		s.freeLocked(len(data) + streamCost) // of a message that was abandoned
		return
	case !s.fitsLocked(h.mid):
		return
	}
	whole := h.end && !h.part
	if whole && (ahead == 0 || s.params.unordered) && in.early.Get(uint32(h.mid)) == nil {
		data = append(make([]byte, 0, len(data)), data...)
		if ahead == 0 {
			s.readyLocked(received{data: data, left: len(data), cost: int32(len(data) + streamCost)})
			in.passTo(h.mid + 1)
		} else {
			s.readyLocked(received{data: data, left: len(data), cost: int32(len(data))})
			m := s.earlyLocked(h.mid)
			m.complete, m.cost = true, streamCost
		}
	} else if !s.takeFragmentLocked(h, data) {
		return
	}
	s.advanceLocked()
	s.makeRoomLocked()
}

// fitsLocked reports whether message mid, which is not before next, may be one of
// the stream. It resets the stream if not.
func (s *Stream) fitsLocked(mid seq) bool {
	in := &s.in
	if mid-in.next > maxMessagesAhead || in.fin && !mid.before(in.last) {
		s.violationLocked(StreamViolation)
		return false
	}
	if !mid.before(in.end) {
		in.end = mid + 1
	}
	return true
}

// earlyLocked returns the message mid that cannot be read yet, which it makes.
func (s *Stream) earlyLocked(mid seq) *earlyMessage {
	m := s.in.early.Get(uint32(mid))
	if m == nil {
		m = s.in.early.Add(uint32(mid))
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
	if m.complete || m.total > 0 && (h.end || h.fsn >= m.total) || m.count > 0 && (!h.part || h.end && h.fsn < m.top) ||
		h.fsn >= maxParts || m.parts.Get(h.fsn) != nil {
		s.violationLocked(StreamViolation)
		return false
	}
	s.holdLocked(-m.memory())
	m.bytes += uint32(len(data))
	m.cost += uint32(cost)
	s.in.bytes += len(data)
	data = append(make([]byte, 0, len(data)), data...)
	if !h.part {
		m.whole, m.complete, m.waits = data, true, true
	} else {
		*m.parts.Add(h.fsn) = data
		if m.count++; h.end {
			m.total = h.fsn + 1
		}
		m.top = max(m.top, h.fsn)
		m.complete = m.count == m.total
		m.waits = m.complete
	}
	s.holdLocked(m.memory())
	if m.waits && s.params.unordered {
		s.giveLocked(m, streamCost) // whatever is missing before it
	}
	return true
}

// takeAbandonedLocked drops a message of which nothing more is sent; or all up to
// it that are not complete. What the segment itself counts comes after that: it may
// be in the place of DATA of one of them, which a note has counted before.
func (s *Stream) takeAbandonedLocked(h *streamHeader) {
	in := &s.in
	if in.stop || in.reset {
		return
	}
	if !h.mid.before(in.next) && !h.mid.within(in.next, in.skip) {
		if !s.fitsLocked(h.mid) {
			return
		}
		if h.end {
			in.skip = h.mid + 1
		} else if !s.noteAbandonedLocked(h.mid) {
			return
		}
		s.advanceLocked()
	}
	if h.size != noSegment && s.spendLocked(h.mid, int(h.size)) {
		s.freeLocked(int(h.size) + streamCost)
	}
}

// noteAbandonedLocked drops message mid, of which nothing more is sent, and takes
// note of that. If nothing of it has arrived, streamCost is set aside for what
// will, in its place if nothing else: the sender has counted that, so the credit
// bounds the notes. It reports false if the stream was reset because of it.
func (s *Stream) noteAbandonedLocked(mid seq) bool {
	in := &s.in
	m := in.early.Get(uint32(mid))
	switch {
	case m == nil && mid == in.next:
		in.stats.Skipped++
		in.passTo(mid + 1)
		return true
	case m == nil && streamCost > in.credit():
		s.violationLocked(StreamViolation)
		return false
	case m == nil:
		in.owed += streamCost
		m = s.earlyLocked(mid)
	}
	s.dropEarlyLocked(m)
	return true
}

// dropEarlyLocked drops m, of which nothing more is sent, unless it is complete.
func (s *Stream) dropEarlyLocked(m *earlyMessage) {
	if m.complete {
		return // it has arrived all the same
	}
	in := &s.in
	s.holdLocked(-m.memory())
	in.bytes -= int(m.bytes)
	cost := m.cost
	*m = earlyMessage{complete: true, abandoned: true, cost: min(cost, streamCost)}
	s.holdLocked(m.memory())
	in.stats.Skipped++
	s.freeLocked(int(cost - m.cost))
}

// advanceLocked moves on past what is complete or abandoned, by a few messages.
func (s *Stream) advanceLocked() {
	in := &s.in
	for range advanceSteps {
		mid, m := in.early.First()
		switch {
		case m != nil && seq(mid) == in.next && (m.complete || in.next.before(in.skip)):
			s.passEarlyLocked(m)
		case in.next.before(in.skip):
			to := in.skip
			if m != nil && seq(mid).before(to) {
				to = seq(mid)
			}
			in.stats.Skipped += uint64(to - in.next)
			in.passTo(to)
		default:
			return
		}
	}
	s.canRead.Broadcast() // for Read to go on from here
}

// passEarlyLocked moves on past m, which is the next message: it can be read, or
// is given up.
func (s *Stream) passEarlyLocked(m *earlyMessage) {
	in := &s.in
	s.dropEarlyLocked(m)
	if m.waits {
		s.giveLocked(m, 0)
	}
	if m.cost == 0 && m.abandoned {
		in.owed -= streamCost
	}
	s.holdLocked(-m.memory())
	cost := int(m.cost)
	in.early.RemoveFirst()
	in.passTo(in.next + 1)
	if cost > 0 {
		s.freeLocked(cost)
	}
}

// giveLocked lets m, which is complete, be read. The note that remains keeps some
// of its cost.
func (s *Stream) giveLocked(m *earlyMessage, keep uint32) {
	s.holdLocked(-m.memory())
	s.in.bytes -= int(m.bytes)
	r := received{data: m.whole, parts: m.parts, left: int(m.bytes), cost: int32(m.cost - keep)}
	r.held = int32(m.count) * fragmentBytesHeld
	*m = earlyMessage{complete: true, cost: keep}
	s.holdLocked(m.memory())
	s.readyLocked(r)
}
