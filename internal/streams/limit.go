package streams

import "github.com/arqnet/kcp/internal/container"

// How many streams an end may open (MAX_STREAMS, RFC 9000 §19.11). Each end tells its
// peer how many streams it takes in all since the session began, those that are over
// included. INFO has the first such number. A later one is larger, so loss and another
// order do no harm. A peer that tells none refuses what is too much.

const (
	// MostAtFirst is the largest limit that INFO has room for.
	MostAtFirst = 1<<16 - 1
	// mostStreams is more than an end can open in a session: it has fewer ids.
	mostStreams = 1 << 31
)

// Opener is a call that waits until this end may open a stream.
type Opener struct {
	Wake  func() // lets the call try again
	links container.Links[Opener]
}

func openerLinks(o *Opener) *container.Links[Opener] { return &o.links }

// begun returns how many streams this end has opened.
func (t *Table) begun() uint32 {
	t.decide()
	return (t.next - 1) / 2
}

// limit returns how many streams this end may open in all.
func (t *Table) limit() uint32 {
	first := t.host.PeerLimit()
	if first == 0 {
		return mostStreams // the peer tells no limit
	}
	return max(uint32(first), t.allowed)
}

// MayOpen reports whether Open may be called now. Calls that wait come first, in the
// order in which they came. o is the one that asks; nil: one that does not wait.
func (t *Table) MayOpen(o *Opener) bool {
	first := t.openers.First()
	return (first == nil || first == o) && t.begun() < t.limit()
}

// Await puts o in line, until Leave. It is woken when it may open a stream.
func (t *Table) Await(o *Opener) { t.openers.Add(openerLinks, o, false) }

// Leave takes o out of the line, if it is in it. The next is woken if there is room for
// both.
func (t *Table) Leave(o *Opener) {
	t.openers.Remove(openerLinks, o)
	t.wakeOpener()
}

// wakeOpener wakes the call that has waited longest, if it may open a stream.
func (t *Table) wakeOpener() {
	if o := t.openers.First(); o != nil && t.MayOpen(o) {
		o.Wake()
	}
}

// wakeOpeners wakes all calls that wait. Those that go on to wait line up again.
func (t *Table) wakeOpeners() {
	for o := t.openers.First(); o != nil; o = t.openers.First() {
		t.openers.Remove(openerLinks, o)
		o.Wake()
	}
}

// inputLimit takes the number of streams that the peer takes in all.
func (t *Table) inputLimit(limit uint32) {
	if limit > t.allowed {
		t.allowed = limit
		t.wakeOpener()
	}
}

// taken returns how many streams of the peer this end takes in all: those that it has
// seen and that are over, and as many as it takes at a time.
func (t *Table) taken() uint32 {
	over := t.Counts.Accepted + t.Counts.Refused - uint64(t.fromPeer)
	return uint32(min(over+uint64(t.limits.Streams), mostStreams))
}

// noteLimit decides whether the peer is to be told a new limit: there is one, and the
// peer has half of its streams open at most. So one segment serves many streams that are
// short, and the peer of an end that takes one stream learns of each that is over.
func (t *Table) noteLimit() {
	seen := t.Counts.Accepted + t.Counts.Refused
	told := max(t.told, uint32(min(t.limits.Streams, MostAtFirst)))
	left := max(int64(told)-int64(seen), 0)
	t.tell = !t.closed && t.host.PeerLimit() > 0 && t.taken() > told && 2*left <= int64(t.limits.Streams)
}

// pullLimit lets Pull return the segment that tells the limit.
func (t *Table) pullLimit() {
	t.tell, t.told = false, t.taken()
	t.segment(&t.control, &Header{Kind: MaxStreams, Streams: t.told}, 0)
}
