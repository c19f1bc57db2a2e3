package machine

// Retransmission time-outs of the reference (RFC 6298), in milliseconds.
const (
	rtoNoDelay = 30 // minimum with NoDelayOn and NoDelayTurbo
	rtoMin     = 100
	rtoInitial = 200
	MaxRTO     = 60000

	// wireMaxRTO bounds the back-off of one segment. The reference has no
	// bound, but two time-outs of more than 2^31 ms could no longer be
	// compared.
	wireMaxRTO = 1 << 30
)

// rttEstimator smooths round-trip samples into a retransmission time-out, as
// the reference does: RFC 6298 in integer milliseconds, with the flush interval
// in place of the clock granularity. All its fields are in milliseconds.
type rttEstimator struct {
	srtt   int32 // 0 before the first sample
	rttvar int32
	rto    uint32
	minRTO uint32

	weighed weighedRTT // of sampleWeighed
}

// sample adds a round-trip sample of rtt milliseconds.
func (e *rttEstimator) sample(rtt int32, interval uint32) {
	if e.srtt == 0 {
		e.srtt = rtt
		e.rttvar = rtt / 2
	} else {
		delta := int64(rtt) - int64(e.srtt)
		if delta < 0 {
			delta = -delta
		}
		e.rttvar = int32((3*int64(e.rttvar) + delta) / 4)
		e.srtt = max(int32((7*int64(e.srtt)+int64(rtt))/8), 1)
	}
	rto := int64(e.srtt) + max(int64(interval), 4*int64(e.rttvar))
	e.rto = uint32(min(max(int64(e.minRTO), rto), MaxRTO))
}

// weighedRTT is an estimator whose samples count by their number in a round trip (RFC
// 7323 appendix G). Otherwise a path that delivers in bunches gives dozens of samples
// that are short at once, and the time-out falls below the time to the next bunch. All
// its times are in milliseconds.
type weighedRTT struct {
	mean, deviation float32
	round           Seq    // samples of what left from here on begin the next round trip
	samples         uint32 // in this round trip
	before          uint32 // in the one before
	bulk            bool   // more than thinFlight segments were in flight at the last sample
}

// sampleWeighed adds a sample of what has left at a time, while flight segments are in
// flight. One beyond the time-out counts as if it were alone: the path has become longer.
// The peer may claim any sample; it is a minute at most.
func (e *rttEstimator) sampleWeighed(rtt int32, sent, now Seq, flight int, interval uint32) {
	w := &e.weighed
	rtt = min(rtt, MaxRTO)
	if e.srtt == 0 {
		*w = weighedRTT{mean: float32(rtt), deviation: float32(rtt) / 2, round: now}
	} else {
		if !sent.Before(w.round) {
			w.round, w.before, w.samples = now, w.samples, 0
		}
		w.samples++
		off := float32(rtt) - w.mean
		n := float32(max(w.before, 1))
		if off > max(4*w.deviation, float32(interval)) {
			n = 1
		}
		w.mean += off / (8 * n)
		w.deviation += (max(off, -off) - w.deviation) / (4 * n)
	}
	w.bulk = flight > thinFlight
	e.srtt, e.rttvar = max(int32(w.mean), 1), int32(w.deviation)
	e.rto = uint32(min(max(int32(e.minRTO), e.srtt+max(int32(interval), e.variation())), MaxRTO))
}

const (
	// weighedVariations is how many mean deviations a round trip may be longer than the
	// mean: K of RFC 6298. thinVariations is the same while thinFlight segments are in
	// flight at most, as of messages: the application waits for them, and a spurious
	// retransmission costs little. The reference has 4 for both, but of integers that
	// are rounded down with each sample, by 1.5 ms on average; so is its srtt, by 3.5 ms.
	weighedVariations = 4
	thinVariations    = 3
	thinFlight        = 6
)

// variation returns by how much an acknowledgement that is not late may take longer than
// srtt, in milliseconds.
func (e *rttEstimator) variation() int32 {
	switch w := &e.weighed; {
	case w.mean == 0:
		return 4 * e.rttvar
	case !w.bulk:
		return int32(thinVariations * w.deviation)
	default:
		return int32(weighedVariations * w.deviation)
	}
}

// backoff returns the time-out that follows rto for a segment that timed out,
// limit at most.
func (e *rttEstimator) backoff(rto uint32, mode NoDelay, limit uint32) uint32 {
	switch mode {
	case NoDelayOff:
		rto += max(rto, e.rto)
	case NoDelayOn:
		rto += rto / 2
	default:
		rto += e.rto / 2
	}
	return min(rto, limit)
}

// timeoutGroup holds the segments in flight whose time-out is at the same
// millisecond, mostly those that one flush sent.
type timeoutGroup struct {
	at         Seq
	head       *Segment // chained by sendSegment.timer
	prev, next *timeoutGroup
}

// timeouts is the ordered set of all time-outs: a list of groups by time. A new
// time-out is close to the one added before it, so the search starts there.
// Adding and removing do not depend on how many segments are in flight.
type timeouts struct {
	first, last *timeoutGroup
	recent      *timeoutGroup // of the last time-out added; nil: search from last
	spare       *timeoutGroup // emptied groups, chained by next
}

// next returns the earliest time-out; false if none is scheduled.
func (d *timeouts) next() (Seq, bool) {
	if d.first == nil {
		return 0, false
	}
	return d.first.at, true
}

// add schedules s at s.resendTS.
func (d *timeouts) add(s *Segment) {
	at := s.resendTS
	g := d.recent
	if g == nil {
		g = d.last
	}
	for g != nil && g.at.After(at) {
		g = g.prev
	}
	// g is the last group known not to be later than at; walk on to the last.
	for g != nil && g.at != at && g.next != nil && !g.next.at.After(at) {
		g = g.next
	}
	if g == nil || g.at != at {
		g = d.insertAfter(g, at)
	}
	d.recent = g
	s.group = g
	s.timer = link{next: g.head}
	if g.head != nil {
		g.head.timer.prev = s
	}
	g.head = s
}

// insertAfter adds a group behind g, or in front of all others if g is nil.
func (d *timeouts) insertAfter(g *timeoutGroup, at Seq) *timeoutGroup {
	n := d.spare
	if n == nil {
		n = new(timeoutGroup)
	} else {
		d.spare = n.next
	}
	next := d.first
	if g != nil {
		next = g.next
	}
	*n = timeoutGroup{at: at, prev: g, next: next}
	if g == nil {
		d.first = n
	} else {
		g.next = n
	}
	if next == nil {
		d.last = n
	} else {
		next.prev = n
	}
	return n
}

// remove unschedules s, if it is scheduled.
func (d *timeouts) remove(s *Segment) {
	g := s.group
	if g == nil {
		return
	}
	if s.timer.prev == nil {
		g.head = s.timer.next
	} else {
		s.timer.prev.timer.next = s.timer.next
	}
	if s.timer.next != nil {
		s.timer.next.timer.prev = s.timer.prev
	}
	s.timer, s.group = link{}, nil
	if g.head == nil {
		d.drop(g)
	}
}

// drop unlinks the empty group g.
func (d *timeouts) drop(g *timeoutGroup) {
	if g.prev == nil {
		d.first = g.next
	} else {
		g.prev.next = g.next
	}
	if g.next == nil {
		d.last = g.prev
	} else {
		g.next.prev = g.prev
	}
	if d.recent == g {
		d.recent = g.prev
	}
	*g = timeoutGroup{next: d.spare}
	d.spare = g
}

// expire moves the segments whose time-out is at or before now to expired.
func (d *timeouts) expire(now Seq, expired []*Segment) []*Segment {
	for d.first != nil && !d.first.at.After(now) {
		s := d.first.head
		d.remove(s)
		expired = append(expired, s)
	}
	return expired
}
