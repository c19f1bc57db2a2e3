// Package netpath has what a session knows of the path to its peer, and finds out: the
// largest packet that it takes, round trips, losses in each direction, and whether the
// peer receives what is sent to its address.
//
// It is told what happens, and when. It has no clock, socket or lock: times are since any
// epoch.
package netpath

import "time"

// Search searches for the largest packet that a path takes: Datagram Packetization Layer
// Path MTU Discovery, DPLPMTUD (RFC 8899). Terms of the RFC are in brackets.
//
// It decides what is probed and when, and what an answer or a loss means. It knows no
// packet format. The caller sends the probes, and reports what became of them.
//
// Sizes are sizes of UDP payloads, in bytes. Times are since an epoch of the
// caller's choice.

const (
	// BaseMTU is a size that nearly every path takes [BASE_PLPMTU].
	BaseMTU = 1200
	// FloorMTU is the payload of the smallest packet that every host takes (RFC 1122
	// §3.3.3). A search does not go below BaseMTU, or where it has begun. The caller
	// takes sizes up to FloorMTU to arrive.
	FloorMTU = 548
	// EtherIPv4 and EtherIPv6 fill a packet of 1500 bytes.
	EtherIPv4 = 1472
	EtherIPv6 = 1452
	// Step is how exact the search is.
	Step = 20
	// MaxWait bounds the doubled time that a probe is given [PROBE_TIMER].
	MaxWait = 2 * time.Second
	// RaiseAfter is when a search is repeated, as the path may have become
	// better [PMTU_RAISE_TIMER].
	RaiseAfter = 10 * time.Minute
	// SearchAfter is how many segments of full size are sent before a search.
	// So applications that send little do not pay for one.
	SearchAfter = 64

	// ConfirmAfter is for how long a size counts as confirmed while packets leave that
	// nobody acknowledges [CONFIRMATION_TIMER].
	ConfirmAfter = 2 * time.Second

	// minWait is the shortest time that a probe is given [PROBE_TIMER].
	minWait = 200 * time.Millisecond
	// maxProbes is how many lost probes show that a size does not pass
	// [MAX_PROBES].
	maxProbes = 3
	// maxUnheard is how many probes are sent into silence before the search is
	// given up until RaiseAfter, and a confirmation that no loss asks for until it is
	// asked for again. Silence says nothing of their size.
	maxUnheard = 10
	// minTrust and maxTrust bound for how long losses raise no doubt about a
	// size after a probe of it was answered. The time doubles with each such
	// answer, as a peer that acknowledges only small packets would otherwise
	// cause probes without end.
	minTrust = time.Second
	maxTrust = 8 * time.Second
)

// state is the phase of a Search.
type state uint8

const (
	idle       state = iota // not begun, or complete
	searching               // tries sizes above the one in use
	confirming              // tries the one in use
)

// Search is the search on one path. It is not safe for concurrent use.
type Search struct {
	least, limit, ether int
	size                int // in use [PLPMTU]
	high                int // the smallest size known not to pass

	state   state
	routine bool          // no loss has raised doubts about the size being confirmed
	resume  bool          // the search goes on once the size in use is confirmed
	tries   uint8         // lost probes of size probe
	unheard uint8         // probes of size probe sent into silence
	probe   int           // the size being tried
	out     bool          // a probe is outstanding
	heard   bool          // the small packet that left with it was answered
	nonce   uint32        // of the last probe
	next    time.Duration // when the next probe leaves, or out expires

	trusted time.Duration // until then losses raise no doubt
	trust   time.Duration // how long that was; 0: minTrust is next

	again time.Duration // the earliest time of the next search,
	after uint64        // and how many full segments are sent before it
}

// NewSearch returns the search on a path whose packets had size bytes until now and may
// have up to limit. If the size in use passes no longer, packets shrink to BaseMTU, and
// if that passes no longer either, to least [MIN_PLPMTU]. The size ether, which most
// paths take, is tried early.
func NewSearch(least, size, limit, ether int) *Search {
	return &Search{least: least, size: size, limit: max(limit, size), ether: ether, after: SearchAfter}
}

// Size returns the size in use [PLPMTU].
func (s *Search) Size() int { return s.size }

// ProbeSize returns the size being tried, if the search is active.
func (s *Search) ProbeSize() int { return s.probe }

// Nonce returns the nonce of the last probe.
func (s *Search) Nonce() uint32 { return s.nonce }

// Outstanding reports whether a probe is neither answered nor expired.
func (s *Search) Outstanding() bool { return s.out }

// Active reports whether there is something to find out.
func (s *Search) Active() bool { return s.state != idle }

// Confirming reports whether the size in use is being confirmed.
func (s *Search) Confirming() bool { return s.state == confirming }

// Doubted reports whether losses are why the size in use is being confirmed.
func (s *Search) Doubted() bool { return s.state == confirming && !s.routine }

// Trusts reports whether the size in use was confirmed so lately that losses
// raise no doubt about it.
func (s *Search) Trusts(now time.Duration) bool { return now < s.trusted }

// Next returns when the next probe is due, if the search is active.
func (s *Search) Next() time.Duration { return s.next }

// Due reports whether it is time for a probe. If one is outstanding, the caller
// calls Expire first.
func (s *Search) Due(now time.Duration) bool { return s.Active() && now >= s.next }

// Begin begins a search for a larger size, if it is time for one. full is the
// number of full segments sent in all. Those sent too early do not count.
func (s *Search) Begin(now time.Duration, full uint64) {
	switch {
	case s.Active() || s.size >= s.limit:
	case now < s.again:
		s.after = full + SearchAfter
	case full >= s.after:
		s.high = s.limit + 1
		s.search(now)
	}
}

// Suspect starts to confirm the size in use: losses suggest that it passes no
// longer. A search for a larger one goes on after that.
func (s *Search) Suspect(now time.Duration) {
	s.resume = s.state == searching
	s.state, s.routine = confirming, false
	s.try(s.size, now)
}

// Confirm starts to confirm the size in use, though nothing suggests that it passes no
// longer. A search for a larger one goes on after that.
func (s *Search) Confirm(now time.Duration) {
	s.Suspect(now)
	s.routine = true
}

// Fall makes the base size that in use until the next search: many packets of the size
// in use are lost, though some arrive.
func (s *Search) Fall(now time.Duration) {
	s.size = max(s.least, min(s.size, BaseMTU))
	s.complete(now)
}

// search goes on to the next size, or completes.
func (s *Search) search(now time.Duration) {
	s.state, s.resume = searching, false
	switch {
	case s.high-s.size <= Step && s.high <= s.limit, s.size >= s.limit:
		s.complete(now)
	case s.limit < s.high:
		s.try(s.limit, now)
	case s.ether > s.size && s.ether < s.high:
		s.try(s.ether, now)
	default:
		s.try((s.size+s.high)/2, now)
	}
}

// try makes size the next to be probed, at once.
func (s *Search) try(size int, now time.Duration) {
	s.probe, s.tries, s.unheard, s.out, s.next = size, 0, 0, false, now
}

// complete ends the search until RaiseAfter.
func (s *Search) complete(now time.Duration) {
	s.state, s.out = idle, false
	s.again = now + RaiseAfter
}

// Sent records that a probe of ProbeSize bytes leaves, and with it a small
// packet, both with the nonce. wait is how long an answer may take. It doubles with
// each probe into silence, up to MaxWait if it was not longer before.
func (s *Search) Sent(nonce uint32, now, wait time.Duration) {
	wait = max(wait, minWait)
	wait = max(wait, min(wait<<min(s.unheard, 4), MaxWait))
	s.out, s.heard, s.nonce, s.next = true, false, nonce, now+wait
}

// Heard records that the small packet sent with the outstanding probe was
// answered. It tells a path that does not take the probe from one that takes
// nothing. The answer to the probe follows soon, or does not come.
func (s *Search) Heard(now time.Duration) {
	s.heard, s.unheard = true, 0
	s.next = min(s.next, now+max(minWait, (s.next-now)/4))
}

// Answered records the answer to a probe, and reports whether it is one to the
// outstanding probe. If so, the size probed is in use from then on.
func (s *Search) Answered(nonce uint32, size int, now time.Duration) bool {
	if !s.Active() || !s.out || nonce != s.nonce || size != s.probe {
		return false
	}
	if s.state == confirming {
		s.confirmed(now)
		if !s.routine {
			s.trust = min(max(2*s.trust, minTrust), maxTrust)
			s.trusted = now + s.trust
		}
		return true
	}
	s.size = size
	s.search(now)
	return true
}

// ConfirmedByData records that the peer acknowledged data in packets of the size
// in use, which ends the doubts about it.
func (s *Search) ConfirmedByData(now time.Duration) {
	s.confirmed(now)
	s.trust = 0
}

// confirmed ends the doubts about the size in use.
func (s *Search) confirmed(now time.Duration) {
	if s.state, s.out = idle, false; s.resume {
		s.search(now)
	}
}

// Expire records that the outstanding probe was not answered in time, and
// reports whether the size in use has shrunk. If the small packet was not
// answered either, the loss says nothing of sizes.
func (s *Search) Expire(now time.Duration) (shrunk bool) {
	s.out = false
	if !s.heard {
		s.unheard = min(s.unheard+1, maxUnheard)
		switch {
		case s.unheard < maxUnheard:
		case s.state == searching, s.routine && s.resume:
			s.complete(now)
		case s.routine:
			s.state = idle
		}
		return false
	}
	if s.tries++; s.tries < maxProbes {
		return false
	}
	return s.Refuse(now)
}

// Refuse records that the size being tried does not pass, and reports whether
// the size in use has shrunk, because it was the one being tried.
func (s *Search) Refuse(now time.Duration) (shrunk bool) {
	s.high = s.probe
	if shrunk = s.state == confirming; shrunk {
		s.size = s.below(s.size)
	}
	s.search(now)
	return shrunk
}

// below returns what is in use once size turns out not to pass.
func (s *Search) below(size int) int {
	if size > BaseMTU {
		return max(s.least, BaseMTU)
	}
	return s.least
}

// Lower records that the system does not send packets of so many bytes on this path,
// and reports whether the size in use has shrunk for that. Then a search begins.
func (s *Search) Lower(size int, now time.Duration) (shrunk bool) {
	switch {
	case size <= s.least:
		return false
	case size > s.size && (s.state != searching || size >= s.high):
		return false
	}
	s.high = size
	if shrunk = size <= s.size; shrunk {
		s.size = s.below(size)
	}
	if shrunk || s.probe >= size {
		s.search(now)
	}
	return shrunk
}

// Revive makes the next probe due at once if earlier ones met silence. The
// caller calls it when the path takes packets again after an outage, in which
// those probes were sent for nothing.
func (s *Search) Revive(now time.Duration) {
	if s.Active() && s.unheard > 0 {
		s.unheard, s.out, s.next = 0, false, now
	}
}
