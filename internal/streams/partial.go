package streams

import (
	"cmp"
	"slices"

	"github.com/arqnet/kcp/internal/container"
)

// Partial reliability (RFC 3758): messages that are given up when their lifetime or
// their retransmissions are used up.

// AbandonedUpTo returns a message of the stream of tag. All up to it are delivered
// or given up; ok is false if some that precede tag are not. It gives up those in
// flight whose lifetime is over. Bytes are not among the messages of
// sendSide.begun, so while some are in flight it knows nothing.
func (t *Table) AbandonedUpTo(tag *Tag) (mid container.Serial, ok bool) {
	if tag.message == nil || t.failed {
		return 0, false
	}
	s := tag.message.stream
	if s.out.reset || s.out.bytes != nil && s.out.bytes.InFlight > 0 {
		return 0, false
	}
	begun := &s.out.begun
	for m := begun.first; m != nil; m = begun.first {
		if !m.over() && m.Spent(t.host.Now(), 0) {
			s.abandon(m)
		}
		if !m.over() {
			return m.mid - 1, true
		}
		begun.pop()
	}
	return s.out.mid - 1, true
}

// Acked records that a segment of tag was acknowledged.
func (t *Table) Acked(tag *Tag) {
	m := tag.message
	if m == nil || t.failed {
		return
	}
	s := m.stream
	s.out.inFlight--
	s.out.known = true
	if m.done != nil && m.sent && m.InFlight == 0 && !m.Abandoned && !s.out.reset {
		t.host.Finish(tag, nil)
	}
	for b := &s.out.begun; b.first != nil && b.first.over(); {
		b.pop()
	}
	if s.out.inFlight == 0 {
		t.retire(s)
	}
}

// GivenUp records that the lifetime or the retransmissions of tag are used up.
func (t *Table) GivenUp(tag *Tag) {
	if m := tag.message; m != nil && !t.failed {
		m.stream.abandon(m)
	}
}

// abandon gives up m, of which something has been sent. For a message of one
// segment, that segment itself shows it.
func (s *Stream) abandon(m *message) {
	s.drop(m)
	if !m.sent || m.fsn > 1 {
		s.out.abandoned = append(s.out.abandoned, m.mid)
	}
	if !m.sent {
		s.dropFirst()
	}
	s.table.sched.update(s)
}

// drop records that m is given up.
func (s *Stream) drop(m *message) {
	m.Abandoned = true
	s.table.host.Finish(&m.Tag, ErrAbandoned)
	s.in.stats.Abandoned++
}

// Purge gives up waiting messages whose lifetime is over.
func (s *Stream) Purge() {
	if !s.out.partial {
		return
	}
	now := s.table.host.Now()
	for p := s.out.first; p != nil && p.of.Spent(now, 0); p = s.out.first {
		if p.of.begun {
			s.abandon(p.of)
			continue
		}
		s.drop(p.of)
		if s.dropFirst(); s.out.first == nil {
			s.table.sched.update(s)
		}
	}
}

// awaitExpiry records when the first waiting message of s expires. s is not
// sendable: it waits for credit, which may never come.
func (s *Stream) awaitExpiry() {
	o, t := &s.out, s.table
	if !o.partial || o.first == nil || s.gone || t.failed {
		return
	}
	if at := o.first.of.Deadline; at > 0 && (t.expires == 0 || at < t.expires) {
		t.expires = at
	}
}

// Expires returns when Purge has to be called next, on the machine's clock in
// microseconds, or earlier; 0: it has not.
func (t *Table) Expires() int64 { return t.expires }

// Purge gives up the messages of all streams whose lifetime is over. What has no
// credit is not pulled. Streams are in the order of their ids, as packets follow.
func (t *Table) Purge() {
	t.expires = 0
	var partial []*Stream
	for _, s := range t.streams {
		if s.out.partial && s.out.first != nil {
			partial = append(partial, s)
		}
	}
	slices.SortFunc(partial, func(a, b *Stream) int { return cmp.Compare(a.id, b.id) })
	for _, s := range partial {
		if s.Purge(); !s.sendable() {
			s.awaitExpiry()
		}
	}
}

// Owes reports whether the peer lacks something of what was written, and not given
// up.
func (t *Table) Owes() bool {
	if t.failed {
		return false
	}
	now := t.host.Now()
	for _, s := range t.streams {
		if s.owes(now) {
			return true
		}
	}
	return false
}

// owes reports whether the peer lacks something of what was written to s, and not
// given up at the time now.
func (s *Stream) owes(now int64) bool {
	o := &s.out
	if o.reset {
		return false
	}
	if o.bytes != nil && o.bytes.InFlight > 0 {
		return true
	}
	for m := o.begun.first; m != nil; m = m.later {
		if !m.over() && !m.Spent(now, 0) {
			return true
		}
	}
	if o.first == nil || o.latest <= now {
		return false // they may be many
	}
	if !o.last.of.Spent(now, 0) {
		return true
	}
	for p := o.first; p != nil; p = p.next {
		if !p.of.Spent(now, 0) {
			return true
		}
	}
	return false
}
