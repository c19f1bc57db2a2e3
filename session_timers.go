package kcp

import (
	"time"
)

// finishStep notes what the last step has changed, and asks for the next wake-up.
func (c *Conn) finishStep(now time.Duration) {
	c.account()
	c.noteActivity(now)
	c.progress(now)
	waiting := c.kcp.WaitSend() > 0 || c.hs.waiting()
	if waiting && !c.outstanding {
		c.since = now
	}
	c.outstanding = waiting
	c.schedule(now)
}

// schedule asks for a wake-up at the next time that something has to be done,
// if there is none before that anyway.
func (c *Conn) schedule(now time.Duration) {
	var next time.Duration
	sooner := func(at time.Duration) {
		if next == 0 || at < next {
			next = max(at, 1)
		}
	}
	cfg := &c.ep.config
	if at, ok := c.kcp.NextFlush(); ok {
		// The clock counts whole milliseconds: it shows at when at has begun.
		wait := time.Duration(seq(at).diff(c.clock(now)))
		sooner(now.Truncate(time.Millisecond) + wait*time.Millisecond)
	}
	if c.outstanding && cfg.PeerTimeout > 0 && !c.dialling {
		sooner(max(c.lastHeard, c.since) + cfg.PeerTimeout)
	}
	if cfg.IdleTimeout > 0 && c.state == stateOpen && !c.dialling {
		sooner(c.lastActive + cfg.IdleTimeout)
	}
	if at := c.stallsAt(); at > 0 {
		sooner(at)
	}
	if c.endAt > 0 {
		sooner(c.endAt)
	}
	if c.unvalidated.Load() && !c.offered {
		sooner(c.born + handshakeTime)
	}
	if at := c.nextSignalTime(); at > 0 {
		sooner(at)
	}
	if c.compactAt > 0 {
		sooner(c.compactAt)
	}
	if next > 0 {
		c.wake(next)
	}
}

// wake asks for a wake-up at a time, if there is none before it.
func (c *Conn) wake(at time.Duration) {
	if c.state != stateEnded && (c.wakeAt == 0 || at < c.wakeAt) {
		c.wakeAt = at
		c.ep.wakes.set(c, at)
	}
}

// onWake does what is due. The endpoint's timer calls it.
func (c *Conn) onWake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeAt = 0
	if c.state == stateEnded {
		return
	}
	now := c.ep.now()
	if c.state == stateDraining && now >= c.endAt {
		c.end(nil)
		return
	}
	if c.unvalidated.Load() && !c.offered && now >= c.born+handshakeTime {
		c.forget(ErrReset)
		return
	}
	if lost := c.checkTimeouts(now); lost != nil {
		c.undelivered = c.kcp.WaitSend() > 0
		c.abort(lost)
		return
	}
	c.setClock(now)
	c.sendDueSignals(now)
	c.flushDue(now)
	if c.compactAt > 0 && now >= c.compactAt {
		c.compact()
	}
	c.finishStep(now)
	c.writePackets()
}

// compact gives spare memory back.
func (c *Conn) compact() {
	c.compactAt = 0
	c.kcp.Compact()
	c.outgoing.compact()
	if c.decoder != nil {
		c.decoder.Compact()
	}
}

// flush lets the state machine put out what it can.
func (c *Conn) flush(now time.Duration) {
	c.setClock(now)
	c.kcp.Flush()
	c.compactAt = now + compactAfter
}

// flushDue lets it put out what has to leave by now.
func (c *Conn) flushDue(now time.Duration) {
	if at, ok := c.kcp.NextFlush(); c.kcp.signalsPending() || ok && !seq(at).after(c.clock(now)) {
		c.flush(now)
	}
}

// tell tells the state machine the time.
func (c *Conn) setClock(now time.Duration) {
	c.kcp.SetClockMicros(uint64(c.clockBase)*1000 + uint64(now.Microseconds()))
}

// clock returns the time now as the state machine counts it.
func (c *Conn) clock(now time.Duration) seq { return seq(c.clockBase + clock(now)) }

// sendDueSignals sends the requests that are due.
func (c *Conn) sendDueSignals(now time.Duration) {
	l, k := &c.hs, c.kcp
	if c.state == stateEnded || c.state == stateDraining {
		return
	}
	if l.closing != 0 && l.kind == peerExtended && !l.finished && !l.finish.active {
		l.finish.start(signal{l.closing, uint32(k.sendEnd()), l.peerToken}, now, c.requestWait())
	}
	if at := c.nextPing(); at > 0 && now >= at && !l.ping.active {
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, now, c.pingWait())
		c.missed = true
	}
	if r := &l.hello; r.due(now) {
		if l.reached && r.tries >= helloTries && l.kind == peerUnknown {
			r.active = false
			l.kind = peerLegacy
		} else { // one of ours may not have got it: somebody else may have said hello in its name
			c.queueHello()
			r.sent(now)
			l.helloAt = now
			if !l.reached && r.tries <= eagerHellos {
				r.next = min(r.next, now+maxHelloWait)
			}
		}
	}
	for _, r := range []*request{&l.confirm, &l.finish, &l.ping} {
		if r.due(now) {
			k.queueSignals(r.signal)
			r.sent(now)
		}
	}
	if k.signalsPending() {
		c.flush(now)
	}
	c.advanceMTU(now)
}
