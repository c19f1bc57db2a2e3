package kcp

import (
	"time"
)

// nextPing returns when the peer is to be asked for a sign of life; 0: not at all.
func (c *Conn) nextPing() time.Duration {
	l := &c.hs
	switch {
	case c.closing.state != stateOpen && c.closing.state != stateLingering, c.over(), c.hs.dialled && !l.reached:
		return 0
	case c.live.outstanding && l.kind == peerExtended:
		return max(c.live.lastHeard, c.live.since) + probeAfter
	}
	at := time.Duration(0)
	if idle := c.ep.config.KeepAlive; idle > 0 && c.closing.state == stateOpen {
		if !c.hs.dialled {
			idle += idle / 2 // the dialling side's turn comes first: one exchange serves both
		}
		at = c.live.lastHeard + idle
	}
	if handshake := c.live.lastHeard + handshakeTime; c.unconfirmed() && (at == 0 || handshake < at) {
		at = handshake
	}
	if c.ep.protection.authentic && l.kind == peerExtended && c.live.lastData > 0 && !c.live.missed {
		// Where sessions may move, it may be ours that has: then the peer
		// sends to an address that is no longer ours, and must hear from us.
		if miss := max(c.live.lastHeard, c.live.lastData) + pathCheckAfter; at == 0 || miss < at {
			at = miss
		}
	}
	return at
}

// unconfirmed reports whether the peer of an accepted session has said hello and
// not yet shown that it has the answer, which it repeats until we have answered.
// Its cookie may have been the last that it has ever sent.
func (c *Conn) unconfirmed() bool {
	return !c.hs.dialled && c.hs.kind == peerExtended && !c.hs.confirmed
}

// heard notes that a good packet has come from the peer.
func (c *Conn) heard(now time.Duration) {
	l := &c.hs
	c.live.lastHeard = now
	asked := l.ping.active && l.ping.tries > 0
	if asked || !c.kcp.unaRegressed() {
		l.ping.active = false // anything is a sign of life
	}
	if !l.reached {
		l.reached = true
		c.io.canWrite.Broadcast() // Dial waits for it
	}
	if l.kind == peerUnknown && l.hello.active && c.kcp.counts().WindowUpdates >= legacyAnswers {
		l.hello.active = false
		l.kind = peerLegacy
	}
	if l.kind == peerUnknown && l.hello.tries == 1 && c.kcp.counts().WindowUpdates > 0 {
		l.hello.next = now // it seems to know no signals: the second answer shows it
	}
	c.suspectRestart(asked, now)
	if c.kcp.echoed() {
		c.addressValidated()
	}
}

// suspectRestart ends the session with a peer that knows no signals, and seems
// to have forgotten it. Packets that were overtaken, or recorded and sent again,
// look alike; so the peer is asked, and has to answer so twice. asked is true
// where a question was out as the packet at work came.
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
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, now+probeAfter, c.requestWait())
	}
}

// pingWait returns how long to wait for the answer to a ping.
func (c *Conn) pingWait() time.Duration {
	if c.hs.unvalidated.Load() {
		return unvalidatedPingWait
	}
	return c.requestWait()
}

// nextSignalTime returns when pump has something to do; 0: never.
func (c *Conn) nextSignalTime() time.Duration {
	l := &c.hs
	at := time.Duration(0)
	if c.closing.state == stateDraining {
		return 0
	}
	if !l.ping.active {
		at = c.nextPing()
	}
	for _, r := range []*request{&l.hello, &l.confirm, &l.finish, &l.ping} {
		if r.active && (at == 0 || r.next < at) {
			at = max(r.next, 1)
		}
	}
	if p := c.plpmtu.search; p != nil && p.Active() && c.mayProbeMTU() && (at == 0 || p.Next() < at) {
		at = max(p.Next(), 1)
	}
	return at
}

// checkTimeouts returns an error when the peer has been silent for too long.
func (c *Conn) checkTimeouts(now time.Duration) error {
	cfg := &c.ep.config
	if c.hs.dialling {
		return nil
	}
	silence := now - c.live.lastHeard
	if idle := now - c.live.lastActive; cfg.IdleTimeout > 0 && idle >= cfg.IdleTimeout && c.closing.state == stateOpen {
		return &PeerLostError{Silence: idle, Idle: true}
	}
	if at := c.stallsAt(); at > 0 && now >= at {
		return &PeerLostError{Silence: silence, Stalled: now - c.live.lastTaken}
	}
	if !c.live.outstanding {
		return nil
	}
	if cfg.PeerTimeout > 0 && now-max(c.live.lastHeard, c.live.since) >= cfg.PeerTimeout {
		return &PeerLostError{Silence: silence}
	}
	if cfg.DeadLink > 0 && c.kcp.silentTransmissions() >= cfg.DeadLink {
		return &PeerLostError{Silence: silence}
	}
	return nil
}

// activity is what tells a session that is in use from one that is idle. What a
// peer may repeat or send for nothing does not count: duplicates, segments beyond
// the window or without data, and those that wait for others before them.
type activity struct {
	received  uint64 // bytes, as the last one in order came
	next      seq    // rcv_nxt then
	una       seq    // snd_una
	datagrams uint64 // bytes, in both directions
}

// noteActivity notes whether there was any since the last step.
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
	if a.una != c.live.activity.una && c.plpmtu.search != nil {
		c.plpmtu.search.Revive(now)
	}
	if a.received != c.live.activity.received || a.una != c.live.activity.una || a.datagrams != c.live.activity.datagrams {
		c.live.lastActive = now
	}
	c.live.activity = a
}

// stallsAt returns when a peer that takes nothing of what waits for it has had
// its time; 0: never.
func (c *Conn) stallsAt() time.Duration {
	if limit := c.ep.config.StallTimeout; limit > 0 && c.closing.state == stateOpen && !c.hs.dialling && c.live.lastTaken > 0 {
		return c.live.lastTaken + limit
	}
	return 0
}
