package kcp

import (
	"time"
)

// nextPing returns when to send a PING: as keep-alive (RFC 9293 §3.8.4), while
// something is outstanding, while the peer has not confirmed the session, and
// to check the path. 0 means never.
func (c *Conn) nextPing() time.Duration {
	l := &c.hs
	switch {
	case c.closing.state != stateOpen && c.closing.state != stateLingering, l.peerFin && c.over(), l.dialled && !l.reached:
		return 0
	case c.live.outstanding && l.kind == peerExtended:
		return max(c.live.lastHeard, c.live.since) + probeAfter
	}
	at := time.Duration(0)
	if idle := c.ep.config.KeepAlive; idle > 0 && c.closing.state == stateOpen {
		if !c.hs.dialled {
			idle += idle / 2 // the dialling side comes first: one exchange serves both
		}
		at = c.live.lastHeard + idle
	}
	if handshake := c.live.lastHeard + handshakeTime; c.unconfirmed() && (at == 0 || handshake < at) {
		at = handshake
	}
	if c.ep.migrates && l.kind == peerExtended && c.live.lastData > 0 && !c.live.missed {
		// Connection migration (RFC 9000 §9): our own address may have changed.
		// The peer then sends to the old one until it hears from us.
		if miss := max(c.live.lastHeard, c.live.lastData) + pathCheckAfter; at == 0 || miss < at {
			at = miss
		}
	}
	return at
}

// expectMore takes note of something after which the peer may send more, to an
// address that is not ours any more. nextPing then checks the path, once.
func (c *Conn) expectMore(now time.Duration) { c.live.lastData, c.live.missed = now, false }

// unconfirmed reports whether the session was accepted from an extended peer
// that has not yet sent our token in a CONFIRM, FIN or CLOSE. Such a peer may
// be gone: a live one repeats CONFIRM until it is answered, but the HELLO with
// the cookie may have been its last packet. So it is sent a PING.
func (c *Conn) unconfirmed() bool {
	return !c.hs.dialled && c.hs.kind == peerExtended && !c.hs.confirmed
}

// ask takes note that something leaves that the peer has to answer.
func (l *livenessState) ask(now time.Duration) {
	if !l.asks {
		l.asks, l.since = true, now
	}
}

// asking counts what has left of the state machine that the peer has to answer.
func asking(s *Counters) uint64 {
	return s.SegmentsSent + s.FastRetransmits + s.TimeoutRetransmits + s.ProbesSent
}

// heard takes note of a valid packet from the peer, after the state machine has
// processed it.
func (c *Conn) heard(now time.Duration) {
	l := &c.hs
	c.live.lastHeard, c.live.asks = now, false
	asked := l.ping.active && l.ping.tries > 0
	// Any packet is a sign of life, but a path challenge shows that the peer does
	// not take what comes from our address yet. So the PING is repeated: the answer
	// to the challenge may be lost.
	switch {
	case c.io.challenged && asked:
		l.ping.again(now, c.pingWait())
	case asked, !c.kcp.unaRegressed():
		l.ping.active = false
	}
	c.io.challenged = false
	if !l.reached {
		c.noteReached()
	}
	if l.kind == peerUnknown && l.hello.active && c.kcp.counts().WindowUpdates >= legacyAnswers {
		l.hello.active = false
		l.kind = peerLegacy
	}
	if l.kind == peerUnknown && l.hello.tries == 1 && c.kcp.counts().WindowUpdates > 0 {
		l.hello.next = now // it seems to be a legacy peer; a second answer shows it
	}
	if l.kind != peerExtended {
		c.suspectRestart(asked, now)
	}
	if c.hs.unvalidated.Load() && c.kcp.echoed() {
		c.addressValidated()
	}
}

// noteReached takes note that the peer has shown to be there. Dial waits for it.
func (c *Conn) noteReached() {
	if c.hs.reached {
		return
	}
	c.hs.reached = true
	if c.hs.dialled {
		c.traceState(SessionEstablished, nil)
		c.expectMore(c.live.lastInput)
	}
	c.io.canWrite.Broadcast()
}

// suspectRestart ends the session if a legacy peer was restarted and has
// forgotten it. The sign of that is a una below an earlier one. Reordered and
// replayed packets show such a una, too, so it has to persist, and to come in
// restartAnswers answers to PINGs. asked reports whether a PING was unanswered
// when the packet arrived.
func (c *Conn) suspectRestart(asked bool, now time.Duration) {
	l := &c.hs
	switch {
	case !c.kcp.unaRegressed() || l.kind == peerExtended || c.hs.unvalidated.Load():
		c.live.unaBackSince, c.live.restartHints = 0, 0
		return
	case c.live.unaBackSince == 0:
		c.live.unaBackSince = now
	case asked && c.live.restartHints < restartAnswers:
		c.live.restartHints++
	}
	if c.live.restartHints == restartAnswers && now-c.live.unaBackSince >= restartDetectAfter {
		c.closing.ending = ErrReset
	} else if !l.ping.active {
		l.ping.start(signal{sigPing, c.ep.env.Uint32(), c.ep.env.Uint32()}, now+probeAfter, c.requestWait())
	}
}

// pingWait returns how long to wait for the answer to a PING before repeating
// it.
func (c *Conn) pingWait() time.Duration {
	if c.hs.unvalidated.Load() {
		return unvalidatedPingWait
	}
	return c.requestWait()
}

// maxPingWait returns the longest time between two transmissions of a PING. There
// are some within PeerTimeout, so that the session outlives the loss of many.
func (c *Conn) maxPingWait() time.Duration {
	if limit := c.ep.config.PeerTimeout; limit > 0 {
		return max(c.pingWait(), limit/pingTries)
	}
	return maxRequestWait
}

// nextSignalTime returns when sendDueSignals has something to send; 0: never.
func (c *Conn) nextSignalTime() time.Duration {
	l := &c.hs
	at := time.Duration(0)
	if c.closing.state == stateDraining {
		return 0
	}
	if !l.ping.active && !c.hs.securing {
		at = c.nextPing()
	}
	if c.concerns()&concernRequests != 0 {
		for _, r := range []*request{&l.hello, &l.confirm, &l.finish, &l.ping} {
			if r.active && (at == 0 || r.next < at) {
				at = max(r.next, 1)
			}
		}
	}
	if p := c.plpmtu.search; p != nil && p.Active() && c.mayProbeMTU() && (at == 0 || p.Next() < at) {
		at = max(p.Next(), 1)
	}
	return at
}

// checkTimeouts returns a *PeerLostError when a time-out has passed: the idle
// timeout (RFC 9000 §10.1), StallTimeout, PeerTimeout, or DeadLink. It returns
// nil otherwise, and while Dial waits.
func (c *Conn) checkTimeouts(now time.Duration) error {
	cfg := &c.ep.config
	if c.hs.dialling {
		return nil
	}
	silence := now - c.live.lastHeard
	// Idle timeout (RFC 9000 §10.1).
	if idle := now - c.live.lastActive; cfg.IdleTimeout > 0 && idle >= cfg.IdleTimeout && c.closing.state == stateOpen {
		return &PeerLostError{Silence: idle, Idle: true}
	}
	if at := c.stallsAt(); at > 0 && now >= at {
		return &PeerLostError{Silence: silence, Stalled: now - c.live.lastTaken}
	}
	if !c.live.outstanding {
		return nil
	}
	at, ok := c.unansweredSince()
	if ok && cfg.PeerTimeout > 0 && now-at >= cfg.PeerTimeout ||
		cfg.DeadLink > 0 && c.kcp.silentTransmissions() >= cfg.DeadLink {
		return &PeerLostError{Silence: silence, Socket: c.ep.socketErrorOf(c.RemoteAddr(), c.live.lastHeard)}
	}
	return nil
}

// unansweredSince returns when the first was sent of what the peer has to answer, and has
// not since then sent anything. ok is false if nothing was. What waits for the cap of the
// rate, for pacing, or for a window has no answer yet. But to an address that is not
// validated perhaps nothing may ever be sent.
func (c *Conn) unansweredSince() (at time.Duration, ok bool) {
	l := &c.live
	return max(l.lastHeard, l.since), l.asks || c.hs.unvalidated.Load()
}

// frozenParts is into how many parts of PeerTimeout a wake-up may be late before the
// process, or the machine, counts as having been frozen.
const frozenParts = 8

// thaw is called at a wake-up that is late by so much. If the process was frozen, that
// is no silence of the peer, whose answers may wait at the socket: PeerTimeout begins
// with what is sent from now on. The other time-outs leave the time out.
func (c *Conn) thaw(late time.Duration) {
	limit := c.ep.config.PeerTimeout
	if limit <= 0 {
		limit = defaultPeerTimeout
	}
	if late < limit/frozenParts {
		return
	}
	l := &c.live
	l.asks, l.lastActive = false, l.lastActive+late
	if l.lastTaken > 0 {
		l.lastTaken += late
	}
}

// activity is progress that distinguishes a session in use from an idle one. It
// does not count what a peer can repeat or send without effect: duplicates,
// segments beyond the window or without data, and segments that wait for
// earlier ones.
type activity struct {
	received  uint64 // payload bytes received when rcv_nxt last advanced
	next      seq    // rcv_nxt
	una       seq    // snd_una
	datagrams uint64 // payload bytes, in both directions
}

// noteActivity updates lastActive and lastTaken with the activity since the
// last step.
func (c *Conn) noteActivity(now time.Duration) {
	a := c.live.activity
	if next := c.kcp.recvNext(); next != a.next {
		a.next, a.received = next, c.kcp.counts().BytesReceived
	}
	a.una = c.kcp.sendUna()
	if c.in.datagrams != nil {
		a.datagrams = c.in.datagrams.moved
	}
	switch {
	case c.kcp.WaitSend() == 0:
		c.live.lastTaken = 0
	case a.una != c.live.activity.una || c.live.lastTaken == 0:
		c.live.lastTaken = max(now, 1)
	}
	if a.una != c.live.activity.una {
		if c.plpmtu.search != nil {
			c.plpmtu.search.Revive(now)
		}
		if c.hs.dialled { // the answer to what was asked
			c.expectMore(now)
		}
	}
	if a.received != c.live.activity.received || a.una != c.live.activity.una || a.datagrams != c.live.activity.datagrams {
		c.live.lastActive = now
	}
	c.live.activity = a
}

// stallsAt returns when StallTimeout passes for a peer that takes none of the
// data that waits for it; 0: never.
func (c *Conn) stallsAt() time.Duration {
	if limit := c.ep.config.StallTimeout; limit > 0 && c.closing.state == stateOpen && !c.hs.dialling && c.live.lastTaken > 0 {
		return c.live.lastTaken + limit
	}
	return 0
}
