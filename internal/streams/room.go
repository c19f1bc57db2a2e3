package streams

import "github.com/arqnet/kcp/internal/container"

// What waits in streams is bounded for all streams of a session together. Half of
// that room is for anything. The other half is for what the peer has given credit
// for: that leaves as the session goes on. So streams that nobody reads do not keep
// the others from writing.

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
)

// Writer is a call that waits for room.
type Writer struct {
	stream *Stream
	half   Half
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
// is not positive, it returns what there has to be room for.
func (s *Stream) Room(n int) (room int, half Half) {
	t := s.table
	own := t.limits.WriteBuffer - s.out.queued
	if own <= 0 || t.roomOf(ForAny) > 0 {
		return own, ForAny
	}
	credit := s.out.credit() - s.out.queued
	if credit < max(min(n, own, mostCreditNeeded), 1) {
		return 0, ForAny
	}
	return min(own, credit, t.roomOf(ForCredit)), ForCredit
}

// Wait puts a call for room of s in line, until Done. A half that has room is not
// what the call waits for: the stream itself is full then. Owner.Writable is called
// when there may be room.
func (s *Stream) Wait(half Half) *Writer {
	w := &Writer{stream: s, half: half}
	t := s.table
	t.blocked++
	s.out.blocked++
	if t.roomOf(half) <= 0 {
		t.writers[half].Add(linksOf, w, false)
	}
	return w
}

// Done takes the call out of the line. The next in turn is woken if there is room
// for both.
func (w *Writer) Done() {
	t := w.stream.table
	t.blocked--
	w.stream.out.blocked--
	t.writers[w.half].Remove(linksOf, w) // unless WakeWriter has
	t.WakeWriter()
}

// WakeWriter wakes the call that has waited longest for room of the session, if
// there is some.
func (t *Table) WakeWriter() {
	for half := range halves {
		waiting := &t.writers[half]
		if first := waiting.First(); first != nil && t.roomOf(half) > 0 {
			waiting.Remove(linksOf, first)
			first.stream.Owner.Writable()
			return
		}
	}
}
