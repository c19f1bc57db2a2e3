package netpath

import "time"

// doubtTime is for how long the answer to Ping counts.
const doubtTime = 15 * time.Second

// Do is what has to be done: any of the constants below. Besides, packets are to have
// Size.
type Do uint8

const (
	Probe  Do = 1 << iota // a probe is sent, which Sent is told of
	Ping                  // the peer is asked for a sign of life
	Forget                // the losses of large packets do not count
	Watch                 // large packets are watched again, as on another path
	Resend                // what the system has refused leaves again
)

// Watched is what large packets have shown.
type Watched struct {
	Full    uint64        // segments of full size sent
	Lost    int           // large packets lost since one as large has arrived
	Suspect bool          // so many, for so long, that the path may drop them
	Arrived bool          // one has arrived on this path; counts if none is lost, without probes
	Small   bool          // those up to the base size, too
	BySize  bool          // many are lost, and few smaller ones
	Recent  int           // bytes of the largest packet with data that has arrived lately
	Heard   time.Duration // when the peer gave a sign of life last
	Probes  bool          // the peer answers probes, and takes segments in pieces
}

// Counts are figures for statistics.
type Counts struct{ Sent, Lost, BlackHoles uint32 }

// doubt is how far losses show a black hole if the peer answers no probes.
type doubt uint8

const (
	none     doubt = iota
	asked          // the peer was sent a PING
	answered       // it has given a sign of life after that, so this is not an outage
)

// PathMTU is what a session knows of the sizes that its path takes. Begun, Restart,
// Counts, Confirming, Awaits and Answered may have a nil receiver.
type PathMTU struct {
	search Search
	since  time.Duration // when doubt changed last
	counts Counts
	whole  uint16
	doubt  doubt

	// Packets that nobody acknowledges need a size that is confirmed (RFC 8899 §5.1.1).
	wanted bool          // such packets leave, or are asked about
	left   bool          // and have since passes was confirmed
	passes int           // the largest size known to pass; 0: none
	check  time.Duration // when passes is confirmed again, if any have left
	full   uint64        // how many have left of the size in use
}

// Want tells that packets of size bytes leave which nobody acknowledges, or that their
// largest size is asked for, with size 0. Then that is confirmed. due reports that Next
// may have changed.
func (p *PathMTU) Want(size int) (due bool) {
	p.wanted = true
	if size > 0 && size >= p.search.size {
		p.full++
	}
	if p.left || size <= FloorMTU && (size > 0 || p.passes > 0 || p.whole > 0) {
		return false
	}
	p.left = true
	return true
}

// Wanted reports whether Want was called.
func (p *PathMTU) Wanted() bool { return p.wanted }

// Promised returns the largest size, up to most, that is known to pass. Until anything
// is, that is the base size, or least if that is more. known reports whether there was a
// verdict about this path. p may be nil.
func (p *PathMTU) Promised(least, most int) (size int, known bool) {
	size = min(most, max(BaseMTU, least))
	if p == nil {
		return size, false
	}
	if p.passes > 0 {
		size = min(most, p.passes)
	}
	if p.whole > 0 {
		size = min(size, int(p.whole))
	}
	return size, p.passes > 0 || p.whole > 0
}

// Begun reports whether Begin was called for this path.
func (p *PathMTU) Begun() bool { return p != nil && p.search.size > 0 }

// Begin begins with a search as NewSearch returns it.
func (p *PathMTU) Begin(s *Search) { p.search = *s }

// Restart forgets all but the counts, as it is of another path.
func (p *PathMTU) Restart() {
	if p != nil {
		*p = PathMTU{counts: p.counts, wanted: p.wanted, left: p.wanted}
	}
}

// Size returns the size in use.
func (p *PathMTU) Size() int { return p.search.size }

// ProbeSize returns the size that the next probe has.
func (p *PathMTU) ProbeSize() int { return p.search.probe }

// Nonce returns the nonce of the last probe.
func (p *PathMTU) Nonce() uint32 { return p.search.nonce }

// Whole returns the size above which packets may be fragmented, as they cannot be
// smaller; most: none may.
func (p *PathMTU) Whole(most int) int {
	if p.whole == 0 {
		return most
	}
	return int(p.whole)
}

// Counts returns the figures so far.
func (p *PathMTU) Counts() Counts {
	if p == nil {
		return Counts{}
	}
	return p.counts
}

// Next returns when the next probe is due, if the peer answers them; 0: never.
func (p *PathMTU) Next() time.Duration {
	switch {
	case p.search.Active():
		return max(p.search.next, 1)
	case p.left:
		return max(p.check, 1)
	}
	return 0
}

// Confirming reports whether a probe is to confirm the size in use.
func (p *PathMTU) Confirming() bool { return p != nil && p.search.Confirming() }

// Revive is Search.Revive.
func (p *PathMTU) Revive(now time.Duration) { p.search.Revive(now) }

// Step takes what large packets have shown until now, and returns what is to be done.
func (p *PathMTU) Step(now time.Duration, w Watched) (do Do) {
	s := &p.search
	if !w.Probes {
		return p.judge(now, w)
	}
	if w.Suspect && s.Trusts(now) {
		w.Suspect, do = false, Forget
	}
	if w.Recent >= s.size && p.wanted {
		p.passed(now)
	}
	switch {
	case w.BySize:
		p.counts.BlackHoles++
		s.Fall(now)
		p.fell(now, false)
		return Forget
	case s.Doubted() && w.Lost == 0, s.Confirming() && w.Recent >= s.size:
		s.ConfirmedByData(now)
	case w.Suspect && !s.Confirming():
		s.Suspect(now)
	case p.left && now >= p.check && !s.Confirming():
		p.confirm(now)
	default:
		s.Begin(now, w.Full+p.full)
	}
	if !s.Due(now) {
		return do
	}
	if s.Outstanding() {
		p.counts.Lost++
		if was := s.size; s.Expire(now) {
			do |= p.blackHole(was, FloorMTU)
			p.fell(now, w.Small)
		}
	}
	if s.Active() {
		do |= Probe
	}
	return do
}

// confirm starts to confirm the size in use.
func (p *PathMTU) confirm(now time.Duration) {
	p.search.Confirm(now)
	p.left, p.check = false, now+ConfirmAfter
}

// passed records that a packet of the size in use has arrived.
func (p *PathMTU) passed(now time.Duration) {
	p.passes, p.left, p.check = p.search.size, false, now+ConfirmAfter
}

// fell is called when the size in use has turned out not to pass. If that was not the
// last, the one that is left is confirmed before a larger one is tried, if it is wanted
// or in doubt.
func (p *PathMTU) fell(now time.Duration, doubted bool) {
	switch p.passes = 0; {
	case !p.wanted && !doubted:
	case p.whole > 0:
		p.left, p.check = true, now+RaiseAfter
	default:
		p.confirm(now)
	}
}

// judge is Step for a peer that answers no probes. Losses show a black hole if the peer
// has given a sign of life, and all large packets are lost again after that. In an
// outage it gives none.
func (p *PathMTU) judge(now time.Duration, w Watched) Do {
	switch {
	case w.Lost == 0:
		if p.doubt == asked || w.Arrived {
			p.doubt = none
		}
	case p.doubt == asked && w.Heard > p.since:
		p.doubt, p.since = answered, now
		return Watch
	case p.doubt == asked || !w.Suspect:
	case p.doubt == answered && now-p.since < doubtTime:
		p.doubt = none
		p.counts.BlackHoles++
		return p.fallBack(FloorMTU, false)
	default:
		p.doubt, p.since = asked, now
		return Ping
	}
	return 0
}

// Sent is Search.Sent.
func (p *PathMTU) Sent(nonce uint32, now, wait time.Duration) {
	p.search.Sent(nonce, now, wait)
	p.counts.Sent++
}

// Awaits reports whether the probe with the nonce is neither answered nor expired.
func (p *PathMTU) Awaits(nonce uint32) bool {
	return p != nil && p.search.out && p.search.nonce == nonce
}

// Heard is Search.Heard.
func (p *PathMTU) Heard(now time.Duration) { p.search.Heard(now) }

// Answered is Search.Answered. The path takes packets of the size in use then.
func (p *PathMTU) Answered(nonce uint32, size int, now time.Duration) bool {
	if p == nil || !p.search.Answered(nonce, size, now) {
		return false
	}
	p.whole = 0
	p.passed(now)
	return true
}

// ProbeRefused tells that the system does not send the probe that Awaits reports: the
// path need not be tried.
func (p *PathMTU) ProbeRefused(now time.Duration) Do {
	s := &p.search
	p.counts.Lost++
	if was, size := s.size, s.probe; s.Refuse(now) {
		do := p.blackHole(was, size-1)
		p.fell(now, false)
		return do
	}
	return 0
}

// Refused tells that the system does not send packets of size bytes to the peer, which
// probes says of what Watched.Probes does: the interface takes less.
func (p *PathMTU) Refused(size int, now time.Duration, probes bool) (do Do) {
	s := &p.search
	was, whole := s.size, p.whole
	switch {
	case size > s.size:
		do = p.stuck(size - 1)
	case size > s.least && probes:
		s.Lower(size, now)
	default:
		do = p.fallBack(size-1, probes)
	}
	if s.size != was || p.whole != whole {
		do |= Resend
	}
	return do
}

// blackHole is called when the size in use seems to pass no longer. It was more, or what
// is larger than fits may be fragmented.
func (p *PathMTU) blackHole(was, fits int) Do {
	p.counts.BlackHoles++
	if p.search.size < was {
		return 0
	}
	return p.stuck(fits)
}

// fallBack makes the least size that in use. Segments of a peer that takes no pieces may
// be larger; then these packets may be fragmented. If not even the least size passes,
// those may be that are larger than fits.
func (p *PathMTU) fallBack(fits int, pieces bool) Do {
	s := &p.search
	if s.size <= s.least {
		return p.stuck(fits)
	}
	s.size = s.least
	if !pieces {
		p.whole = uint16(s.least)
	}
	return 0
}

// stuck lets packets be fragmented that are larger than fits.
func (p *PathMTU) stuck(fits int) Do {
	if p.whole == 0 || fits < int(p.whole) {
		p.whole = uint16(fits)
	}
	return Forget
}
