package streams

import "github.com/arqnet/kcp/internal/container"

// What waits in streams is bounded for all streams of a session together. Half of
// that room is for anything. The other half is for what the peer has given credit
// for: that leaves as the session goes on. So streams that nobody reads do not keep
// the others from writing. The first half is exceeded by a quarter of all room at most, unless
// a message is larger. A stream of which nothing waits may queue a segment while there is any
// room: what says little does not wait for those that say much.

const (
	// MessageBytesQueued is what a waiting message takes in memory beside its
	// pieces.
	MessageBytesQueued = 96
	// pieceBytesQueued is what a waiting piece takes in memory beside its buffer.
	pieceBytesQueued = 64
	// mostCreditNeeded is the most credit, in bytes, that a message waits for
	// to be queued beyond the half for anything. The receiver gives a message
	// that is begun the rest of its buffer.
	mostCreditNeeded = InitialCredit / 2
)

// Half is which half of the room of a session a write waits for.
type Half uint8

const (
	ForAny    Half = iota // the half for anything
	ForCredit             // the half for what there is credit for
	halves
	queues = 2 * halves // of calls, and then of events
)

// Writer is a call that waits for room.
type Writer struct {
	stream *Stream
	half   Half
	event  bool   // an event says that there is room
	place  uint64 // in the order in which calls have begun to wait
	links  container.Links[Writer]
}

func linksOf(w *Writer) *container.Links[Writer] { return &w.links }

// waiting adds n, which may be negative, to the memory of what waits.
func (s *Stream) waiting(n int) {
	t := s.table
	s.out.memory += n
	t.queued += n
	if s.out.ready {
		t.ready += n
	}
	if n < 0 && t.blocked > 0 {
		t.WakeWriter()
	}
}

// credited records whether the stream has credit for some of what waits.
func (s *Stream) credited(ready bool) {
	if ready == s.out.ready {
		return
	}
	t := s.table
	if s.out.ready = ready; ready {
		t.ready += s.out.memory
		return
	}
	if t.ready -= s.out.memory; t.blocked > 0 {
		t.WakeWriter()
	}
	if s.out.blocked > 0 && s.out.queued < t.limits.WriteBuffer {
		s.Owner.Writable() // no more room is to come soon
	}
}

// roomOf returns how many bytes of a half are free. What has credit is not kept
// out by what has none, however much that is: the room may have been larger.
func (t *Table) roomOf(half Half) int {
	if half == ForCredit {
		return t.host.WriteBuffer()/2 - t.ready
	}
	return t.host.WriteBuffer()/2 - t.queued
}

// Room returns how many bytes of a message of n may be written to s now. If that
// is not positive, it returns what there has to be room for. While calls wait, room is no
// more than there is, so that they take it in turns whatever they write.
func (s *Stream) Room(n int) (room int, half Half) {
	t := s.table
	own := t.limits.WriteBuffer - s.out.queued
	if room := t.roomOf(ForAny); own <= 0 || room > 0 {
		if t.blocked == 0 {
			room += t.host.WriteBuffer() / 4 // one wake-up for many segments
		}
		return min(own, max(room, n)), ForAny
	}
	credit := s.out.credit() - s.out.queued
	if segment := t.host.SegmentPayload() - MaxHeader; s.out.queued == 0 && n <= min(segment, credit) && t.queued < t.host.WriteBuffer() {
		return min(segment, credit), ForAny
	}
	if credit < max(min(n, own, mostCreditNeeded), 1) {
		return 0, ForAny
	}
	return min(own, credit, t.roomOf(ForCredit)), ForCredit
}

// Wait puts a call for room of s in line, until Done, or an event that says so. A half
// that has room is not what the call waits for: the stream itself is full then.
// Owner.Writable is called when there may be room.
func (s *Stream) Wait(half Half, event bool) *Writer {
	t := s.table
	t.waits++
	w := &Writer{stream: s, half: half, event: event, place: t.waits}
	t.blocked++
	s.out.blocked++
	if t.roomOf(half) <= 0 {
		t.queue(w).Add(linksOf, w, false)
	}
	return w
}

// queue returns the queue of w.
func (t *Table) queue(w *Writer) *container.List[Writer] {
	if w.event {
		return &t.writers[halves+w.half]
	}
	return &t.writers[w.half]
}

// Done takes the call out of the line. The next in turn is woken if there is room
// for both.
func (w *Writer) Done() {
	t := w.stream.table
	t.blocked--
	w.stream.out.blocked--
	t.queue(w).Remove(linksOf, w) // unless WakeWriter has
	t.WakeWriter()
}

// WakeWriter wakes the call that has waited longest for room of the session, if there is
// some, and no other: both halves may be the same room, of which the one that runs first
// would take all. After an event it wakes a call as well: nobody may take the event until
// that has returned.
func (t *Table) WakeWriter() {
	next := t.wake(t.writers[:])
	if next != nil && next.event {
		t.wake(t.writers[:halves])
	}
}

// wake wakes what has waited longest in some queues, if there is room for it.
func (t *Table) wake(among []container.List[Writer]) (next *Writer) {
	for i := range among {
		first := among[i].First()
		if first != nil && t.roomOf(first.half) > 0 && (next == nil || first.place < next.place) {
			next = first
		}
	}
	if next != nil {
		t.queue(next).Remove(linksOf, next)
		next.stream.Owner.Writable()
	}
	return next
}
