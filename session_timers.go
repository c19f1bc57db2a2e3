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
	if waiting && !c.live.outstanding {
		c.live.since = now
	}
	c.live.outstanding = waiting
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
	if c.live.outstanding && cfg.PeerTimeout > 0 && !c.hs.dialling {
		sooner(max(c.live.lastHeard, c.live.since) + cfg.PeerTimeout)
	}
	if cfg.IdleTimeout > 0 && c.closing.state == stateOpen && !c.hs.dialling {
		sooner(c.live.lastActive + cfg.IdleTimeout)
	}
	if at := c.stallsAt(); at > 0 {
		sooner(at)
	}
	if c.closing.endAt > 0 {
		sooner(c.closing.endAt)
	}
	if c.hs.unvalidated.Load() && !c.hs.offered {
		sooner(c.hs.born + handshakeTime)
	}
	if at := c.nextSignalTime(); at > 0 {
		sooner(at)
	}
	if c.timers.compactAt > 0 {
		sooner(c.timers.compactAt)
	}
	if next > 0 {
		c.wake(next)
	}
}

// wake asks for a wake-up at a time, if there is none before it.
func (c *Conn) wake(at time.Duration) {
	if c.closing.state != stateEnded && (c.timers.wakeAt == 0 || at < c.timers.wakeAt) {
		c.timers.wakeAt = at
		c.ep.wakes.Set(c, at)
	}
}

// wakeIndex returns where the session keeps its place in Endpoint.wakes.
func (c *Conn) wakeIndex() *int32 { return &c.timers.wakeIndex }

// onWake does what is due. The endpoint's timer calls it.
func (c *Conn) onWake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers.wakeAt = 0
	if c.closing.state == stateEnded {
		return
	}
	now := c.ep.now()
	if c.closing.state == stateDraining && now >= c.closing.endAt {
		c.end(nil)
		return
	}
	if c.hs.unvalidated.Load() && !c.hs.offered && now >= c.hs.born+handshakeTime {
		c.forget(ErrReset)
		return
	}
	if lost := c.checkTimeouts(now); lost != nil {
		c.closing.undelivered = c.kcp.WaitSend() > 0
		c.abort(lost)
		return
	}
	c.setClock(now)
	c.sendDueSignals(now)
	c.flushDue(now)
	if c.timers.compactAt > 0 && now >= c.timers.compactAt {
		c.compact()
	}
	c.finishStep(now)
	c.writePackets()
}

// compact gives spare memory back.
func (c *Conn) compact() {
	c.timers.compactAt = 0
	c.kcp.Compact()
	c.outgoing.compact()
	if c.in.decoder != nil {
		c.in.decoder.Compact()
	}
}

// flush lets the state machine put out what it can.
func (c *Conn) flush(now time.Duration) {
	c.setClock(now)
	c.kcp.Flush()
	c.timers.compactAt = now + compactAfter
}

// flushDue lets it put out what has to leave by now.
func (c *Conn) flushDue(now time.Duration) {
	if at, ok := c.kcp.NextFlush(); c.kcp.signalsPending() || ok && !seq(at).after(c.clock(now)) {
		c.flush(now)
	}
}

// tell tells the state machine the time.
func (c *Conn) setClock(now time.Duration) {
	c.kcp.SetClockMicros(uint64(c.timers.clockBase)*1000 + uint64(now.Microseconds()))
}

// clock returns the time now as the state machine counts it.
func (c *Conn) clock(now time.Duration) seq { return seq(c.timers.clockBase + clock(now)) }

// sendDueSignals sends the requests that are due.
func (c *Conn) sendDueSignals(now time.Duration) {
	l, k := &c.hs, c.kcp
	if c.closing.state == stateEnded || c.closing.state == stateDraining {
		return
	}
	if l.closing != 0 && l.kind == peerExtended && !l.finished && !l.finish.active {
		l.finish.start(signal{l.closing, uint32(k.sendEnd()), l.peerToken}, now, c.requestWait())
	}
	if at := c.nextPing(); at > 0 && now >= at && !l.ping.active {
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, now, c.pingWait())
		c.live.missed = true
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
