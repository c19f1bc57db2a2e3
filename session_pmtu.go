package kcp

import "time"

// The search for the largest packet that a path takes, after RFC 8899 (DPLPMTUD),
// whose terms are in brackets. Sizes are those of UDP payloads. Like the state
// machine this knows no clock, socket or lock; discovery.go drives it.

const (
	// basePMTU is a size that next to every path takes [BASE_PLPMTU].
	basePMTU = 1200
	// etherIPv4 and etherIPv6 fill a packet of 1500 bytes.
	etherIPv4 = 1472
	etherIPv6 = 1452
	// pmtuStep is how exact the search is.
	pmtuStep = 20
	// maxProbes is how many lost probes show that a size does not pass
	// [MAX_PROBES].
	maxProbes = 3
	// maxUnheard is how many probes are sent into silence, which tells nothing
	// of their size, before the search waits for better times.
	maxUnheard = 10
	// minPMTUWait and maxPMTUWait bound the time that a probe is given
	// [PROBE_TIMER].
	minPMTUWait = 200 * time.Millisecond
	maxPMTUWait = 2 * time.Second
	// minPMTUTrust and maxPMTUTrust bound for how long losses raise no doubt about
	// a size after a probe of it was answered. It doubles with each such answer:
	// a peer that acknowledges only small packets would cause probes without end.
	minPMTUTrust = time.Second
	maxPMTUTrust = 8 * time.Second
	// raiseAfter is when a search is repeated: the path may have become better
	// [PMTU_RAISE_TIMER].
	raiseAfter = 10 * time.Minute
	// searchAfter is how many segments of full size have to be sent before a
	// search, so that those who have little to send are not made to pay for it.
	searchAfter = 64
)

// pmtuState is what a search is at.
type pmtuState uint8

const (
	pmtuIdle       pmtuState = iota // not begun, or complete
	pmtuSearching                   // tries sizes above the one in use
	pmtuConfirming                  // tries the one in use, which seems not to pass any more
)

// pmtuSearch is the search on one path.
type pmtuSearch struct {
	base, limit, ether int
	size               int // in use [PLPMTU]
	high               int // the least that does not pass, as far as is known

	state   pmtuState
	tries   uint8 // probes of size probe that were lost
	unheard uint8 // and those about which nothing is known
	probe   int   // size that is being tried
	out     bool  // a probe is on its way
	heard   bool  // and the small packet that left with it was answered
	nonce   uint32
	next    time.Duration // when the next one leaves

	trusted time.Duration // until then losses raise no doubt
	trust   time.Duration // for how long that was

	again time.Duration // when to search next,
	after uint64        // once so many full segments were sent
}

// newPMTUSearch returns the search on a path whose packets have had size bytes
// and may have up to limit.
func newPMTUSearch(base, size, limit, ether int) *pmtuSearch {
	return &pmtuSearch{base: base, size: size, limit: max(limit, size), ether: ether, after: searchAfter}
}

// active reports whether there is something to be found out.
func (p *pmtuSearch) active() bool { return p.state != pmtuIdle }

// begin begins a search for more, if it is time for one. full is how many full
// segments have been sent in all; those sent before it is time do not count.
func (p *pmtuSearch) begin(now time.Duration, full uint64) {
	switch {
	case p.active() || p.size >= p.limit:
	case now < p.again:
		p.after = full + searchAfter
	case full >= p.after:
		p.high = p.limit + 1
		p.search(now)
	}
}

// suspect has the size in use confirmed.
func (p *pmtuSearch) suspect(now time.Duration) {
	p.state = pmtuConfirming
	p.try(p.size, now)
}

// search goes on to the next size, or comes to its end.
func (p *pmtuSearch) search(now time.Duration) {
	p.state = pmtuSearching
	switch {
	case p.high-p.size <= pmtuStep && p.high <= p.limit, p.size >= p.limit:
		p.complete(now)
	case p.limit < p.high:
		p.try(p.limit, now)
	case p.ether > p.size && p.ether < p.high:
		p.try(p.ether, now)
	default:
		p.try((p.size+p.high)/2, now)
	}
}

func (p *pmtuSearch) try(size int, now time.Duration) {
	p.probe, p.tries, p.unheard, p.out, p.next = size, 0, 0, false, now
}

// complete ends the search for a while.
func (p *pmtuSearch) complete(now time.Duration) {
	p.state, p.out = pmtuIdle, false
	p.again = now + raiseAfter
}

// due reports whether a probe is to be sent, after expire if one is out.
func (p *pmtuSearch) due(now time.Duration) bool { return p.active() && now >= p.next }

// sent notes that a probe with a nonce leaves, which is given a time.
func (p *pmtuSearch) sent(nonce uint32, now, wait time.Duration) {
	wait = max(wait, minPMTUWait) << min(p.unheard, 4)
	p.out, p.heard, p.nonce, p.next = true, false, nonce, now+min(wait, maxPMTUWait)
}

// ping returns the small packet that leaves with a probe.
func (p *pmtuSearch) ping() signal { return signal{sigPing, p.nonce, ^p.nonce} }

// revive sends the next probe at once, as the path takes packets again after an
// outage, in which probes were sent for nothing.
func (p *pmtuSearch) revive(now time.Duration) {
	if p.active() && p.unheard > 0 {
		p.unheard, p.out, p.next = 0, false, now
	}
}

// answered takes the answer to a probe, and is false where it is none. The size
// probed is in use from then on.
func (p *pmtuSearch) answered(nonce uint32, size int, now time.Duration) bool {
	if !p.active() || !p.out || nonce != p.nonce || size != p.probe {
		return false
	}
	if p.state == pmtuConfirming {
		p.confirmed()
		p.trust = min(max(2*p.trust, minPMTUTrust), maxPMTUTrust)
		p.trusted = now + p.trust
		return true
	}
	p.size = size
	p.search(now)
	return true
}

// confirmedByData is confirmed where data of that size was acknowledged.
func (p *pmtuSearch) confirmedByData() {
	p.confirmed()
	p.trust = 0
}

// confirmed ends the doubts about the size in use.
func (p *pmtuSearch) confirmed() { p.state, p.out = pmtuIdle, false }

// expire notes that a probe was not answered in time. Where the small packet
// was not either, that says nothing of sizes. It is true where the size in use
// has shrunk.
func (p *pmtuSearch) expire(now time.Duration) (shrunk bool) {
	p.out = false
	if !p.heard {
		p.unheard = min(p.unheard+1, maxUnheard)
		if p.unheard == maxUnheard && p.state == pmtuSearching {
			p.complete(now)
		}
		return false
	}
	if p.tries++; p.tries < maxProbes {
		return false
	}
	return p.refuse(now)
}

// refuse notes that the size tried does not pass. It is true where that is the
// size in use, which shrinks then.
func (p *pmtuSearch) refuse(now time.Duration) (shrunk bool) {
	p.high = p.probe
	shrunk = p.state == pmtuConfirming
	if shrunk {
		p.size = p.base
	}
	p.search(now)
	return shrunk
}
