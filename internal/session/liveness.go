package session

import (
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// liveness returns what else than c.live decides when the peer is asked for a sign of
// life, and is lost.
func (c *Session) liveness() liveness.Session {
	l, cfg := &c.hs, &c.shared.Config
	s := liveness.Session{
		KeepAlive: cfg.KeepAlive, PeerTimeout: cfg.PeerTimeout, IdleTimeout: cfg.IdleTimeout, StallTimeout: cfg.StallTimeout,
		Begun:   c.hs.born,
		Open:    c.closing.Phase < closing.Lingering,
		Dialled: l.Role >= opening.Dialled, Dialling: l.Role == opening.Dialling,
		Signals:     l.Peer >= opening.Extended,
		Unvalidated: l.unvalidated.Load(),
		Migrates:    c.shared.Migrates && (*c.in.protection.Load()).Authentic(),
		DeadLink:    cfg.DeadLink > 0 && c.kcp.Sender().SilentTransmissions() >= cfg.DeadLink,
	}
	if r := c.rare; r != nil && r.settings != nil {
		s.KeepAlive, s.PeerTimeout = r.settings.keepAlive, r.settings.peerTimeout
	}
	if c.closing.Phase > closing.Lingering {
		return s
	}
	s.MayPing = l.Unanswered&opening.Ping == 0 && !l.securing && !c.starved() && (l.Reached || l.Role < opening.Dialled) && !(c.closing.Read != closing.ReadOpen && c.over())
	if s.Signals && l.Role < opening.Dialled && !l.Confirmed {
		// A live peer repeats CONFIRM until it is answered, but the HELLO with the
		// cookie may have been its last packet.
		s.Confirm = HandshakeTime
	}
	if s.Looks = c.shared.Looks; s.Looks {
		s.Looked = c.host.Looked()
		s.RTO = time.Duration(c.kcp.Sender().RTO()) * time.Millisecond
	}
	return s
}

// lost returns an error if a time-out is due; nil: none is.
func (c *Session) lost(now time.Duration, due liveness.Due) error {
	silence := c.live.Silence(now, liveness.Lost)
	switch {
	case due&liveness.Idle != 0:
		return c.host.PublicError(&PeerLostError{Silence: c.live.Silence(now, liveness.Idle), Idle: true})
	case due&liveness.Stalled != 0:
		return c.host.PublicError(&PeerLostError{Silence: silence, Stalled: c.live.Silence(now, liveness.Stalled)})
	case due&liveness.Lost != 0:
		return c.host.PublicError(&PeerLostError{Silence: silence, Socket: c.host.SocketError(c.live.LastHeard())})
	}
	return nil
}

// asking counts what has left of the state machine that the peer has to answer.
func asking(s *stats.Counters) uint64 {
	return s.SegmentsSent + s.FastRetransmits + s.TimeoutRetransmits + s.ProbesSent
}

// heard counts a valid packet from the peer, after the state machine has processed it.
func (c *Session) heard(now time.Duration) {
	l := &c.hs
	if waited := c.live.Heard(now); c.path.outage || waited >= leastOutage {
		c.outageOver(waited, now)
	}
	if l.Role >= opening.Dialled && l.Peer != opening.Welcomed && c.rare.simultaneous() {
		c.step.challenged = false
		return // others know the conversation id: only WELCOME shows that the peer is there
	}
	asked := l.Unanswered&opening.Ping != 0 && l.Asked(opening.Ping)
	// Any packet is a sign of life, but a path challenge shows that the peer does
	// not take what comes from our address yet. So the PING is repeated: the answer
	// to the challenge may be lost.
	switch {
	case c.step.challenged && asked:
		wait, _ := c.pingWait()
		l.Again(opening.Ping, now, wait)
	case l.Unanswered != 0 && (asked || !c.kcp.Position().Regressed):
		l.Unanswered &^= opening.Ping
	}
	c.step.challenged = false
	if !l.Reached {
		c.noteReached()
	}
	if l.Peer == opening.Unknown && l.Unanswered&opening.Hello != 0 && c.kcp.Counts().WindowUpdates >= LegacyAnswers {
		l.Unanswered &^= opening.Hello
		l.Peer = opening.Legacy
	}
	if l.Peer == opening.Unknown && l.Of(opening.Hello).Tries == 1 && c.kcp.Counts().WindowUpdates > 0 {
		l.Hurry(opening.Hello, now) // it seems to be a legacy peer; a second answer shows it
	}
	if l.Peer < opening.Extended {
		restarted, ask := c.live.Restarted(now, c.kcp.Position().Regressed && !l.unvalidated.Load(), asked)
		if restarted {
			c.closing.ending = ErrReset
		} else if ask > 0 && l.Unanswered&opening.Ping == 0 {
			c.startPing(ask)
		}
	}
	if l.unvalidated.Load() && c.kcp.Validation().Echoed() {
		c.addressValidated()
	}
}

// leastOutage is the shortest silence that may be an outage. ackDelay is how long the peer
// may hold an ACK back beyond the round-trip time.
const leastOutage, ackDelay = 50 * time.Millisecond, 25 * time.Millisecond

// outageAfter returns how long the peer may leave unanswered what it has to answer, before
// that is an outage of the path: longer than its answers take.
func (c *Session) outageAfter() time.Duration {
	patience := c.rtt.Timeout()
	if patience == 0 {
		patience = time.Duration(c.kcp.Sender().RTO()) * time.Millisecond
	}
	return max(patience+ackDelay, leastOutage)
}

// noteOutage finds out whether an outage has begun.
func (c *Session) noteOutage(now time.Duration) {
	if c.path.outage || c.closing.Phase >= closing.Ended {
		return
	}
	since, asks := c.live.Asks()
	if !asks { // PINGs beside datagrams are not repeated
		since, asks = c.asked.After(c.live.LastHeard())
	}
	if asks && now-since >= c.outageAfter() {
		c.setOutage(true, since)
	}
}

// outageOver ends an outage, as a packet has come after the peer has answered nothing for
// so long. The outage may be seen only now.
func (c *Session) outageOver(waited, now time.Duration) {
	if !c.path.outage && waited >= c.outageAfter() {
		c.setOutage(true, now-waited)
	}
	if c.path.outage {
		c.setOutage(false, now)
	}
}

// setOutage has the outage limit the session since a time, or no longer. A handshake that
// has not ended limits it in any case.
func (c *Session) setOutage(on bool, since time.Duration) {
	if c.hs.took == 0 {
		return
	}
	c.path.outage = on
	if on {
		c.limits = c.limitClock()
		c.limits.Change(stats.LimitOutage, since)
	}
	c.kcp.SetOutage(on)
}

// noteReached records that the peer has shown to be there. Dial waits for it.
func (c *Session) noteReached() {
	if c.hs.Reached {
		return
	}
	c.hs.Reached = true
	c.hs.Of(opening.Hello).Tries = min(c.hs.Of(opening.Hello).Tries, 2) // an outage shows no legacy peer; see HelloTries
	if c.hs.Role >= opening.Dialled {
		c.traceState(trace.SessionEstablished, nil)
		c.live.MoreExpected(c.step.inputAt)
	}
	c.step.left.Ready |= Writers
}

// startPing has a PING sent at a time, and repeated until it is answered.
func (c *Session) startPing(at time.Duration) {
	wait, _ := c.pingWait()
	c.hs.Start(opening.Ping, wire.Signal{}, at, wait) // see newPing
}

// pingWait returns how long to wait for the answer to a PING before repeating
// it, and the most to which that grows.
func (c *Session) pingWait() (wait, longest time.Duration) {
	return liveness.PingWait(c.requestWait(), opening.MaxWait, c.peerTimeout(), c.hs.unvalidated.Load())
}

// noteActivity tells c.live what the last step has brought about.
func (c *Session) noteActivity(now time.Duration) {
	at := c.kcp.Position()
	p := liveness.Progress{Received: c.kcp.Counts().BytesReceived, Next: uint32(at.Received), Una: uint32(at.Acked)}
	if c.in.datagrams != nil {
		p.Datagrams = c.in.datagrams.Moved
	}
	if !c.live.Progressed(now, p, c.kcp.WaitSend() > 0) {
		return
	}
	if c.plpmtu != nil {
		c.plpmtu.Revive(now)
	}
	if c.hs.Role >= opening.Dialled { // the answer to what was asked
		c.live.MoreExpected(now)
	}
}
