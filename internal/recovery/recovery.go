// Package recovery has what the state machine stands on for loss, rate and
// acknowledgement: what retransmissions have shown of the path, and how much may be sent
// again; redundant copies; delayed ACKs, and who waits for the peer's; the delivery rate,
// pacing, and what limits sending; segments in pieces.
//
// It has no clock, lock or socket. Times are in milliseconds on the clock of the state
// machine, or in microseconds where that is said.
package recovery

import (
	"github.com/arqnet/kcp/internal/container"
)

const (
	// The reordering window (RFC 8985 §6.2) is how late a packet may be without
	// being declared lost, once a later one is acknowledged. It is the part
	// 1/windowFraction of a round trip, and grows by the same up to
	// maxMult times.
	windowFraction = 4
	maxMult        = 3
	// persistRounds is after how many round trips without a spurious
	// retransmission the reordering window shrinks. RFC 8985 §6.2 counts as
	// many recoveries.
	persistRounds = 16
	// leastSpurious is by how many the spurious retransmissions must
	// outnumber the genuine ones to show reordering. mostSpurious is the most
	// counted.
	leastSpurious = 6
	mostSpurious  = 12
	// memory is how many segments are remembered after una passed
	// them.
	memory = 8
	// OutageFirst is how many segments are retransmitted at the first
	// packet after an outage. OutageGrowth is how many more for each
	// segment then acknowledged: a slow start through what was in flight.
	OutageFirst  = 16
	OutageGrowth = 2
)

// Retransmission is a segment that was sent again and that only una has acknowledged:
// which of its transmissions arrived is not known yet.
type Retransmission struct {
	SN, TS container.Serial
	Early  bool // it was not retransmitted by a time-out
	Second bool // the last transmission was the second one
	open   bool
	Tx     Transmission // of the last transmission
}

// Retransmissions are the last of them that may turn out to have been spurious.
type Retransmissions struct {
	records *[memory]Retransmission // nil before the first
	next    int                     // index of the next record
	Open    int                     // records that are open
}

// Remember adds a record, in place of the oldest.
func (m *Retransmissions) Remember(r Retransmission) {
	if m.records == nil {
		m.records = new([memory]Retransmission)
	}
	p := &m.records[m.next]
	if !p.open {
		m.Open++
	}
	*p = r
	p.open = true
	m.next = (m.next + 1) % memory
}

// Acked returns a record of segment sn, of which an ACK has come, and closes it; nil if
// there is none, or no further.
func (m *Retransmissions) Acked(sn container.Serial) *Retransmission {
	for i := range m.records {
		if p := &m.records[i]; p.open && p.SN == sn {
			p.open = false
			m.Open--
			return p
		}
	}
	return nil
}

// Reordering is what spurious retransmissions have shown of reordering on the path, and
// the reordering window that follows from it (RFC 8985 §6.2).
type Reordering struct {
	mult         uint32           // reo_wnd_mult - 1; 0: no reordering was seen lately
	Spurious     int32            // grows with every spurious retransmission, shrinks with every genuine one
	raisedAt     container.Serial // when mult last grew
	persistUntil container.Serial // when mult shrinks
}

// Found records that a segment was declared lost, or was retransmitted, and had arrived.
// If widen is set, the reordering window grows, at most once a round trip. Times are in
// milliseconds.
func (r *Reordering) Found(widen bool, now, srtt container.Serial) {
	r.Spurious = min(r.Spurious+1, mostSpurious)
	if !widen {
		return
	}
	if r.mult == 0 || !now.Before(r.raisedAt+srtt) {
		r.mult = min(r.mult+1, maxMult)
		r.raisedAt = now
	}
	r.persistUntil = now + persistRounds*srtt
}

// Genuine records a retransmission that has arrived, and nothing before it.
func (r *Reordering) Genuine() { r.Spurious = max(r.Spurious-1, 0) }

// Dominates reports whether spurious retransmissions outnumber genuine ones: packets
// overtake each other, rather than that acknowledgements are lost.
func (r *Reordering) Dominates() bool { return r.Spurious >= leastSpurious }

// Seen reports whether counts of acknowledgements prove no loss, as packets overtake each
// other.
func (r *Reordering) Seen() bool { return r.mult > 0 || r.Spurious >= leastSpurious }

// Decay makes the window smaller if there was no spurious retransmission for a while.
func (r *Reordering) Decay(now, srtt container.Serial) {
	if r.mult > 0 && now.After(r.persistUntil) {
		r.mult /= 2
		r.persistUntil = now + persistRounds*srtt
	}
}

// Window returns the reordering window in milliseconds, a round trip at most.
func (r *Reordering) Window(srtt uint32) container.Serial {
	return container.Serial(min((1+r.mult)*srtt/windowFraction, srtt))
}

// Episode is the present loss episode: until all of the segments that were declared lost
// are acknowledged.
type Episode struct {
	Lost              int              // segments declared lost
	Spurious, genuine int              // of those, how many are acknowledged
	Ambiguous         int              // acknowledged by the present input, without showing which transmission arrived
	since             container.Serial // when the first of them was declared lost
	echo              container.Serial // newest transmission that the present input shows
	echoed            bool             // it shows one
}

// First reports whether a transmission at a time was the first of its segment.
func (e *Episode) First(at container.Serial) bool { return e.Lost > 0 && at.Before(e.since) }

// Echoed records the ACK, as sent at a time, of a segment that una has acknowledged in the
// present input. What arrived with it left no later: if none of the ambiguous ones had left
// again by then, they were not lost (Eifel detection, RFC 3522).
func (e *Episode) Echoed(at container.Serial) {
	if e.Ambiguous > 0 && (!e.echoed || at.After(e.echo)) {
		e.echo, e.echoed = at, true
	}
}

// Resolve counts a segment that the present input acknowledged ambiguously.
func (e *Episode) Resolve(spurious bool) {
	if e.Ambiguous == 0 {
		return // it was an earlier input
	}
	e.Ambiguous--
	e.Count(spurious)
}

// Count counts a segment that was retransmitted and is acknowledged now.
func (e *Episode) Count(spurious bool) {
	if spurious {
		e.Spurious++
	} else {
		e.genuine++
	}
}

// End ends the episode, after an input, if nothing that was declared lost is left in
// flight, and reports whether it does. spurious says that no retransmission was
// necessary.
func (e *Episode) End() (spurious, ok bool) {
	if e.echoed && e.echo.Before(e.since) {
		e.Spurious += e.Ambiguous
	} else {
		e.genuine += e.Ambiguous
	}
	e.Ambiguous, e.echoed = 0, false
	if e.Lost == 0 || e.Spurious+e.genuine < e.Lost {
		return false, false
	}
	spurious = e.genuine == 0
	*e = Episode{}
	return spurious, true
}

// Outage is an outage of the path, and the recovery from it: segments time out, and no
// packet arrives. Times are in milliseconds.
type Outage struct {
	On      bool
	aliveAt container.Serial // when the last good packet arrived
	ProbeAt container.Serial // when the next probe leaves, while on
	From    container.Serial // [from, end) was in flight in an outage
	End     container.Serial // and is not yet retransmitted
	budget  int              // how many of these segments may be retransmitted
}

// Detect begins an outage when a segment has timed out again, and no packet at all has
// arrived. Time-outs back off, so its end might go unnoticed for seconds without probes,
// of which one leaves every so many milliseconds.
func (o *Outage) Detect(now container.Serial, rto, every uint32) {
	if !o.On && uint32(now-o.aliveAt) >= max(2*rto, every) {
		o.Begin(now + container.Serial(every))
	}
}

// Begin begins an outage, in which the first probe leaves at a time.
func (o *Outage) Begin(probeAt container.Serial) { o.On, o.ProbeAt = true, probeAt }

// Alive records a good packet. After an outage what was in flight, [una, nxt), leaves
// again in growing numbers: acked is how many segments the packet has acknowledged.
func (o *Outage) Alive(now, una, nxt container.Serial, acked int) {
	o.aliveAt = now
	if o.On {
		o.On = false
		o.From, o.End, o.budget = una, nxt, OutageFirst
	}
	if o.From == o.End {
		return
	}
	o.budget += OutageGrowth * acked
	if o.From.Before(una) {
		o.From = una
	}
}

// Next returns the next segment to look at of those that were in flight, while there is
// budget; ok is false if there is none.
func (o *Outage) Next() (sn container.Serial, ok bool) {
	if !o.From.Before(o.End) {
		o.From = o.End
		return 0, false
	}
	if o.budget <= 0 {
		return 0, false
	}
	o.From++
	return o.From - 1, true
}

// Resent records that the segment that next has returned is sent again.
func (o *Outage) Resent() { o.budget-- }

const (
	// SpareCopies is how many redundant copies leave with a retransmission if new data
	// cannot leave. All that follows a segment waits for it. If a path loses the share p,
	// the longest of n chains of losses has log(n)/log(1/p) round trips, and copies
	// divide that by their number.
	SpareCopies = 2
	// SpareShare is the part of the congestion window, 1/SpareShare, that must not be
	// filled if such copies are to leave.
	SpareShare = 2
)

const (
	// FreeResends is how many segments may be retransmitted in each round trip,
	// whatever congestion control says: as many as the least window of BBR has. Many
	// sessions on a narrow link would take all of it for retransmissions
	// otherwise (congestion collapse, RFC 2914 §5). ResendGrowth is how many more
	// for each segment acknowledged.
	FreeResends  = 4
	ResendGrowth = 1
	// MaxResendCredit is how many of these may be saved up while nothing is lost.
	MaxResendCredit = 64
	// minRound is the shortest time that counts as a round trip, in
	// milliseconds.
	minRound = 10
	// mostRound is the longest, while nothing arrives.
	mostRound = 5000
)

// Credit is what may be retransmitted whatever congestion control says. Its
// zero value is ready.
type Credit struct {
	Left int              // segments
	last container.Serial // when refill last added some
}

// Earn adds what the acknowledgement of acked segments allows.
func (c *Credit) Earn(acked int) { c.Left += ResendGrowth * acked }

// Round returns what counts as a round trip, in milliseconds. srtt is 0 before the first
// sample. If nothing has arrived since before the last refill it is longer, as time-outs
// back off (RFC 6298 §5.5).
func (c *Credit) Round(o *Outage, srtt int32, rto uint32) uint32 {
	round := max(rto, minRound)
	if srtt != 0 {
		round = min(max(uint32(srtt), minRound), rto)
	}
	return uint32(min(max(c.last.Diff(o.aliveAt), int32(min(round, mostRound))), mostRound))
}

// Refill adds what the time since the last call allows, if acknowledgements
// have not allowed as much. round is the round trip in milliseconds.
func (c *Credit) Refill(now container.Serial, round uint32) {
	n := min(uint64(uint32(now-c.last))*FreeResends/uint64(round), FreeResends)
	if n > 0 {
		c.last = now
		c.Left = max(c.Left, min(c.Left+int(n), FreeResends))
	}
}

// Spend counts a segment that leaves. If congestion control allows it, that is free.
func (c *Credit) Spend(free bool) {
	if !free {
		c.Left--
	}
}

// Wait returns the milliseconds until there is credit.
func (c *Credit) Wait(now container.Serial, round uint32) uint32 {
	if c.Left > 0 {
		return 0
	}
	next := (round + FreeResends - 1) / FreeResends
	return next - min(next, uint32(now-c.last))
}

// State is the state of Extensions.EarlyRetransmit, TailProbe and
// OutageProbe, and of retransmission credit.
type State struct {
	Reordering      Reordering
	Retransmissions Retransmissions
	Episode         Episode
	Outage          Outage
	Credit          Credit
}

// Lost records that a segment was declared lost. first says that it was sent once. Times
// are in milliseconds.
func (s *State) Lost(now, srtt container.Serial, first bool) {
	s.Reordering.Decay(now, srtt)
	if !first {
		return
	}
	if s.Episode.Lost == 0 {
		s.Episode.since = now
	}
	s.Episode.Lost++
}
