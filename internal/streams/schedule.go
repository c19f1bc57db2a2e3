package streams

import (
	"math/bits"

	"github.com/arqnet/kcp/internal/container"
)

// scheduler decides which stream sends next: control first, then by priority, and
// among equals by deficit round robin (Shreedhar, Varghese 1995).
type scheduler struct {
	levels  [MaxPriority - MinPriority + 1]queue
	control queue
	used    uint32 // bit i: levels[i] is not empty
	unsent  int    // streams that have more to send, or FIN, be it without credit
	plain   int    // turns of streams since the session itself had one
}

// queue is the streams that wait for their turn.
type queue struct {
	container.List[Stream]
	n int
}

func turnOf(s *Stream) *container.Links[Stream] { return &s.out.turn }

func (q *queue) push(s *Stream) {
	q.n++
	q.Add(turnOf, s, false)
}

func (q *queue) remove(s *Stream) {
	q.n--
	q.Remove(turnOf, s)
}

// bulkLevel is the level of what the session itself sends.
const bulkLevel = MaxPriority

// levelOf returns the index of the queue for priority p; the highest is 0.
func levelOf(p int8) int { return MaxPriority - int(p) }

// Values of sendSide.listed.
const (
	notListed = iota
	listedControl
	listedData
)

// remove takes s out of its queue.
func (d *scheduler) remove(s *Stream) {
	switch s.out.listed {
	case listedControl:
		d.control.remove(s)
	case listedData:
		i := levelOf(s.params.Priority)
		if d.levels[i].remove(s); d.levels[i].n == 0 {
			d.used &^= 1 << i
		}
	}
	s.out.listed = notListed
}

// update puts s into the queue where it belongs.
func (d *scheduler) update(s *Stream) {
	if unsent := s.unsent(); unsent != s.out.unsent {
		s.out.unsent = unsent
		d.unsent--
		if unsent {
			d.unsent += 2
		}
	}
	want := uint8(notListed)
	sendable := s.sendable()
	s.credited(sendable)
	if !sendable {
		s.awaitExpiry()
	}
	switch {
	case s.gone || s.table.failed:
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
		i := levelOf(s.params.Priority)
		d.levels[i].push(s)
		d.used |= 1 << i
		s.out.deficit = 0
	}
}

// busy reports whether anything of a stream may be sent.
func (d *scheduler) busy() bool { return d.used != 0 || d.control.n > 0 }

// pick returns the stream whose segment is next; nil if that is one of the
// session itself, of which plain says whether one waits, or if there is none.
func (d *scheduler) pick(plain bool, quantum int32) *Stream {
	if d.control.n > 0 {
		return d.control.First()
	}
	i := bits.TrailingZeros32(d.used)
	if d.used == 0 || plain && i > bulkLevel {
		return nil
	}
	q := &d.levels[i]
	if plain && i == bulkLevel {
		if d.plain++; d.plain > q.n {
			d.plain = 0
			return nil
		}
	}
	for {
		s := q.First()
		if s.out.deficit > 0 {
			return s
		}
		s.out.deficit += quantum
		q.remove(s)
		q.push(s)
	}
}

// unsent reports whether s has more to send, or FIN, be it without credit.
func (s *Stream) unsent() bool {
	o := &s.out
	return !s.gone && !s.table.failed && (o.first != nil || o.fin && !o.finSent && !o.reset)
}

// sendable reports whether a segment of s may be sent that is not of control.
func (s *Stream) sendable() bool {
	o := &s.out
	switch {
	case o.reset:
		return false
	case o.first != nil:
		return o.credit() >= min(o.first.left(), 1)
	}
	return o.fin && !o.finSent
}
