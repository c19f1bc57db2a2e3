// Package liveness says when a session asks its peer for a sign of life, and when the
// peer is lost. It has the keep-alive (RFC 9293 §3.8.4), the user time-out (RFC 5482),
// the idle time-out (RFC 9000 §10.1), and the checks of the path to the peer.
//
// It is told what happens, and when. It has no clock: times are since any epoch.
package liveness

import (
	"time"
)

const (
	// ProbeAfter is the silence, while something is unacknowledged, after which
	// a PING asks the peer whether it still knows the session.
	ProbeAfter = time.Second
	// unvalidatedCheck is the silence after which a peer is asked for a sign of life
	// whose address is not validated: the packets from there may have been forged. It is
	// asked again after unvalidatedWait. It is lost after a silence of unvalidatedTime,
	// or for as long as it was there before that, up to the user time-out. Every KCP
	// peer answers, as it takes a PING for a window probe.
	unvalidatedCheck = 10 * time.Second
	unvalidatedWait  = 5 * time.Second
	unvalidatedTime  = 25 * time.Second
	// pingTries is how often a PING is sent within the user time-out at least, unless
	// round trips take longer.
	pingTries = 16
	// restartAfter is how long the una of a peer must stay below an earlier one to
	// show that the peer was restarted. Reordered packets show it for a shorter time.
	restartAfter = 5 * time.Second
	// restartAnswers is how many answers to PINGs must show such a una, too.
	restartAnswers = 2
	// pathCheckAfter is the silence, in a session that may migrate, after which one
	// PING checks whether the peer still reaches this end.
	pathCheckAfter = 2 * time.Second
	// frozenParts is into how many parts of the user time-out a wake-up may be late
	// before the process, or the machine, counts as having been frozen.
	frozenParts = 8
	// DefaultPeerTimeout is the user time-out that is usual.
	DefaultPeerTimeout = 30 * time.Second
)

// Due is what has to be done: any of the constants below.
type Due uint8

const (
	Ping    Due = 1 << iota // the peer is asked for a sign of life
	Look                    // the route to the peer is looked at
	Idle                    // the session ends: it was idle
	Stalled                 // the session ends: the peer takes nothing
	Lost                    // the session ends: the peer answers nothing
)

// Session is what else of a session matters. A time-out that is not positive is off.
type Session struct {
	KeepAlive    time.Duration
	PeerTimeout  time.Duration // user time-out
	IdleTimeout  time.Duration
	Begun        time.Duration // when the session began
	StallTimeout time.Duration
	Confirm      time.Duration // after what silence a peer that has confirmed nothing is asked; 0: it has
	Looked       time.Duration // when the route was looked at; see Looks
	RTO          time.Duration // retransmission time-out; see Looks

	Open        bool // neither end has closed the session
	Dialled     bool // by this end
	Dialling    bool // a call that dials waits, and has its own time-out
	Signals     bool // the peer answers a PING that it does not know the session of
	Unvalidated bool // the peer's address may be another's
	Migrates    bool // the session survives another address of this end
	MayPing     bool // a PING may be sent now
	Looks       bool // the route to the peer can be looked at
	DeadLink    bool // a segment was sent as often as one may be
}

// State is what shows whether a peer is alive.
type State struct {
	heard     time.Duration // a valid packet arrived from the peer
	active    time.Duration // new data arrived or was acknowledged, or a datagram sent or received
	taken     time.Duration // the peer took data, or the send queue began to fill; 0: it is empty
	data      time.Duration // see MoreExpected; 0: it was not called
	regressed time.Duration // since then una is below an earlier one; 0: it is not
	since     time.Duration // when waits became true, or asks, last if neither is now
	progress  Progress      // as it was last
	hints     uint8         // answers since regressed with such a una
	checked   bool          // the path was checked since data
	asks      bool          // something that the peer has to answer was sent since heard
	waits     bool          // data is unacknowledged, or a request unanswered
}

// New returns the state of a session that begins at now.
func New(now time.Duration) State { return State{heard: now, active: now} }

// Next returns when something is due next, 0 for never, and what is due at now. An
// answer that is due already counts for at, too.
func (l *State) Next(now time.Duration, s *Session) (at time.Duration, due Due) {
	after := func(from, wait time.Duration, what Due) {
		t := from + wait
		if t < from {
			return // beyond what a Duration can tell
		}
		if at == 0 || t < at {
			at = max(t, 1)
		}
		if now >= t {
			due |= what
		}
	}
	// What waits for the cap of the rate, for pacing, or for a window has no answer yet.
	// But to an address that is not validated perhaps nothing may ever be sent.
	quiet, asks := max(l.heard, l.since), l.asks || s.Unvalidated
	switch {
	case !s.MayPing:
	case l.waits && s.Signals:
		after(quiet, ProbeAfter, Ping)
	default:
		if keepAlive := s.KeepAlive; keepAlive > 0 && s.Open {
			if !s.Dialled {
				keepAlive += keepAlive / 2 // the dialling side comes first: one exchange serves both
			}
			after(l.heard, keepAlive, Ping)
		}
		if s.Confirm > 0 {
			after(l.heard, s.Confirm, Ping)
		}
		// Connection migration (RFC 9000 §9): this end's address may have changed.
		// The peer then sends to the old one until it hears from this end.
		if s.Migrates && s.Signals && l.data > 0 && !l.checked {
			after(max(l.heard, l.data), pathCheckAfter, Ping)
		}
	}
	if s.MayPing && s.Unvalidated && !s.Dialled {
		after(l.heard, unvalidatedCheck, Ping)
	}
	if s.Looks {
		look := lookAfter(l.data, l.since, s.Looked)
		if asks {
			look = nextLook(quiet, patience(s.RTO), s.Looked)
		}
		if look > 0 {
			after(look, 0, Look)
		}
	}
	if s.Dialling {
		return at, due
	}
	if s.IdleTimeout > 0 && s.Open {
		after(l.active, s.IdleTimeout, Idle)
	}
	if s.StallTimeout > 0 && s.Open && l.taken > 0 {
		after(l.taken, s.StallTimeout, Stalled)
	}
	if l.waits && asks && s.PeerTimeout > 0 {
		after(quiet, s.PeerTimeout, Lost)
	}
	if s.Unvalidated && !s.Dialled {
		after(l.heard, l.unvalidatedPatience(s), Lost)
	}
	if l.waits && s.DeadLink {
		due |= Lost
	}
	return at, due
}

// unvalidatedPatience returns after what silence a peer is lost whose address is not
// validated.
func (l *State) unvalidatedPatience(s *Session) time.Duration {
	there := l.heard - s.Begun
	if s.PeerTimeout > 0 {
		there = min(there, s.PeerTimeout)
	}
	return max(there, unvalidatedTime)
}

// Silence returns for how long there has been no activity, if of is Idle, for how long
// the peer has taken no data, if of is Stalled, or for how long nothing was heard of it.
func (l *State) Silence(now time.Duration, of Due) time.Duration {
	switch of {
	case Idle:
		return now - l.active
	case Stalled:
		return now - l.taken
	}
	return now - l.heard
}

// LastHeard returns when the peer was heard last.
func (l *State) LastHeard() time.Duration { return l.heard }

// Heard tells that a valid packet has arrived from the peer. It returns for how long
// something had waited that the peer has to answer.
func (l *State) Heard(now time.Duration) (waited time.Duration) {
	if l.asks {
		waited = now - l.since
	}
	l.heard, l.asks = now, false
	return waited
}

// Asks returns since when something waits that the peer has to answer, and from which
// nothing has arrived since; ok is false if nothing does.
func (l *State) Asks() (since time.Duration, ok bool) { return l.since, l.asks }

// Asked tells that something has left that the peer has to answer.
func (l *State) Asked(now time.Duration) {
	if !l.asks {
		l.asks, l.since = true, now
	}
}

// Waits tells whether data is unacknowledged, or a request unanswered.
func (l *State) Waits(now time.Duration, waits bool) {
	if waits && !l.waits {
		l.since = now
	}
	if l.waits = waits; !waits {
		l.asks = false
	}
}

// Progress distinguishes a session in use from an idle one. It does not count what a
// peer can repeat or send without effect: duplicates, segments beyond the window or
// without data, and segments that wait for earlier ones.
type Progress struct {
	Received  uint64 // payload bytes; counts when Next has changed
	Next      uint32 // rcv_nxt
	Una       uint32 // snd_una
	Datagrams uint64 // payload bytes, in both directions
}

// Progressed tells how far the session is, and whether data is unacknowledged. It
// reports whether some was acknowledged.
func (l *State) Progressed(now time.Duration, p Progress, unacknowledged bool) bool {
	was := l.progress
	if p.Next == was.Next {
		p.Received = was.Received
	}
	l.progress = p
	acked := p.Una != was.Una
	switch {
	case !unacknowledged:
		l.taken = 0
	case acked || l.taken == 0:
		l.taken = max(now, 1)
	}
	if p.Received != was.Received || acked || p.Datagrams != was.Datagrams {
		l.active = now
	}
	return acked
}

// MoreExpected tells of something after which the peer may send more: data, or, at the
// dialling end, its first packet or an acknowledgement. If it sends to an address that
// is not this end's any more, one PING shows that, and PathChecked tells that it is sent.
func (l *State) MoreExpected(now time.Duration) { l.data, l.checked = now, false }

// PathChecked tells that a PING is sent because of Next.
func (l *State) PathChecked() { l.checked = true }

// PingWait returns after what time a PING without an answer is sent once more, and the
// most to which that may grow. Without a user time-out that is most, as for any request.
// There are some PINGs within the time-out: the session outlives the loss of many.
func PingWait(rto, most, peerTimeout time.Duration, unvalidated bool) (wait, longest time.Duration) {
	if unvalidated {
		rto = unvalidatedWait
	}
	if peerTimeout > 0 {
		most = max(rto, peerTimeout/pingTries)
	}
	return rto, most
}

// Thaw tells that a wake-up is late by so much. If the process was frozen, that is not
// silence of the peer, whose answers may wait at the socket: the user time-out begins
// with what is sent from now on. The other time-outs leave the time out.
func (l *State) Thaw(late, peerTimeout time.Duration) {
	if peerTimeout <= 0 {
		peerTimeout = DefaultPeerTimeout
	}
	if late < peerTimeout/frozenParts {
		return
	}
	l.asks, l.active = false, l.active+late
	if l.taken > 0 {
		l.taken += late
	}
}

// Restarted tells of a packet, and reports whether a peer without signals was restarted,
// and has forgotten the session. The sign of that is a una below an earlier one: back.
// Reordered and replayed packets show such a una, too, so it has to persist, and to come
// in some answers to PINGs. answer says that a PING was unanswered before the packet. If
// ask is not 0, a PING is to be sent then, unless one waits for its answer.
func (l *State) Restarted(now time.Duration, back, answer bool) (restarted bool, ask time.Duration) {
	switch {
	case !back:
		l.regressed, l.hints = 0, 0
		return false, 0
	case l.regressed == 0:
		l.regressed = now
	case answer && l.hints < restartAnswers:
		l.hints++
	}
	if l.hints == restartAnswers && now-l.regressed >= restartAfter {
		return true, 0
	}
	return false, now + ProbeAfter
}
