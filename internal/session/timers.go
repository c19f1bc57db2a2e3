package session

import (
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// finishStep ends every step: it advances the state, accounts, and sets the wake-up.
func (c *Session) finishStep(now time.Duration) {
	l, s := &c.hs, &c.closing
	if c.tls != nil && c.tls.handshake != nil {
		c.settleTLS()
	}
	if l.took == 0 {
		c.startLimits(now)
	}
	c.noteActivity(now)
	if s.Phase != closing.Open || s.Caller != closing.Uses || s.Read != closing.ReadOpen || l.kindAwaited || s.ending != nil {
		c.progress(now) // an end was announced, here or by the peer
	}
	c.account()
	c.accountWrites()
	requests := l.Unanswered
	if l.Reached {
		requests &^= opening.Hello // which counts until anything arrives
	}
	waiting := c.kcp.WaitSend() > 0 || requests != 0 || c.streams != nil && c.streamsUnsent()
	c.live.Waits(now, waiting)
	c.schedule(now)
}

// schedule sets a wake-up for the next timer of the session. One for a slightly earlier
// time stays: to move it in every step would cost more than an OnWake with nothing due.
// A request of Wake for a time that has come stays too.
func (c *Session) schedule(now time.Duration) {
	var next time.Duration
	sooner := func(at time.Duration) {
		if next == 0 || at < next {
			next = max(at, 1)
		}
	}
	if at, ok := c.kcp.NextFlush(); ok && !c.hs.securing {
		// The state machine's clock counts whole milliseconds, so at is reached
		// when its millisecond begins.
		wait := time.Duration(machine.Seq(at).Diff(c.clock(now)))
		sooner(now.Truncate(time.Millisecond) + wait*time.Millisecond)
	}
	if s := c.capped; s != nil && !c.hs.securing {
		held := c.kcp.RateCap()
		if wait := held.Wait(c.kcp.Micros()); s.waiting() > 0 || wait > 0 && held.Blocked() {
			sooner(now + recovery.WakeAfter(s.rate, wait))
		}
	}
	if c.timers.heldSince != 0 { // NextFlush leaves them out
		sooner(now + max(HoldTime, c.waited(now)))
	}
	s := c.liveness()
	if at, _ := c.live.Next(now, &s); at > 0 {
		sooner(at)
	}
	if c.closing.Phase != closing.Open {
		if at := c.closing.Next(); at > 0 {
			sooner(at)
		}
	}
	if c.hs.unvalidated.Load() && c.hs.Role == opening.Accepted {
		sooner(c.hs.born + HandshakeTime)
	}
	if c.tls != nil {
		if at := c.tlsExpires(); at > 0 {
			sooner(at)
		}
	}
	if l := &c.hs; c.closing.Phase != closing.Draining { // see sendDueSignals
		if l.Unanswered != 0 && !c.starved() {
			sooner(l.Next())
		}
		if c.plpmtu != nil && c.mayProbeMTU() && !c.hs.securing {
			if at := c.plpmtu.Next(); at > 0 {
				sooner(at)
			}
		}
	}
	if c.timers.compactAt > 0 {
		sooner(c.timers.compactAt)
	}
	if t := c.streams; t != nil {
		if t.openAt > 0 {
			sooner(t.openAt)
		}
		if at := c.purgesAt(); at > 0 {
			sooner(at)
		}
	}
	if c.timers.dueAt > now {
		c.timers.dueAt = 0 // what it was for is in next, if it is still wanted
	}
	if next > 0 {
		c.Wake(max(next, now)) // not late before it was set
		if c.timers.wakeAt < c.timers.dueAt {
			c.postpone(now)
		}
	}
}

// postpone moves a wake-up that comes much earlier than what is due. Else the timers of
// many sessions fire all the time, each of which costs far more than a move. A session
// in steady traffic moves its wake-up at most twice in the time until what is due.
func (c *Session) postpone(now time.Duration) {
	if t := &c.timers; t.wakeAt > now && t.wakeAt-now < (t.dueAt-now)/2 {
		t.wakeAt = t.dueAt
		c.step.left.WakeAt = t.dueAt
	}
}

// Wake makes OnWake be called at a time, unless something is due earlier.
func (c *Session) Wake(at time.Duration) {
	t := &c.timers
	if c.closing.Phase >= closing.Ended {
		return
	}
	if at = max(at, 1); t.dueAt == 0 || at < t.dueAt {
		t.dueAt = at
	}
	if t.wakeAt == 0 || at < t.wakeAt {
		t.wakeAt = at
		c.step.left.WakeAt = at
	}
}

// OnWake does what is due. The endpoint's timer calls it. Often that is nothing: the
// delayed ACK has left with an answer, or what was to be repeated was acknowledged. woken
// says that a call was woken, and none has run since.
func (c *Session) OnWake(woken bool) {
	t := &c.timers
	t.wakeAt, c.step.woken = 0, woken
	if c.closing.Phase >= closing.Ended || t.dueAt == 0 {
		return
	}
	now := c.host.Now()
	if t.dueAt > now {
		c.Wake(t.dueAt)
		return
	}
	c.live.Thaw(now-t.dueAt, c.peerTimeout())
	t.dueAt = 0
	if c.closing.Phase == closing.Draining && c.closing.Late(now) {
		c.end(nil)
		return
	}
	if c.hs.unvalidated.Load() && c.hs.Role == opening.Accepted && now >= c.hs.born+HandshakeTime {
		c.forget(ErrReset)
		return
	}
	if at := c.tlsExpires(); at > 0 && now >= at {
		c.forget(ErrReset)
		return
	}
	c.noteOutage(now)
	s := c.liveness()
	_, due := c.live.Next(now, &s)
	if lost := c.lost(now, due); lost != nil {
		c.setClock(now)
		c.abort(lost)
		return
	}
	if due&liveness.Look != 0 {
		c.host.Look()
	}
	c.setClock(now)
	if c.timers.compactAt > 0 && now >= c.timers.compactAt {
		c.compact()
	}
	c.sendDueSignals(now)
	if t := c.streams; t != nil && t.openAt > 0 && now >= t.openAt {
		t.openAt = 0
		t.Announce()
	}
	c.purgeStreams(now)
	c.flushDue(now)
	c.finishStep(now)
	if c.Room() > 0 { // perhaps since other sessions hold less; compare sk_stream_wait_memory of Linux
		c.step.left.Ready |= Writers
	}
	if c.streams != nil {
		c.streams.WakeWriter()
	}
}

// compact releases spare memory.
func (c *Session) compact() {
	c.timers.compactAt = 0
	c.kcp.Compact()
	c.compactStreams()
	c.outgoing.compact()
	(*c.in.protection.Load()).Compact()
	if c.in.decoder != nil {
		c.in.decoder.Compact()
	}
	if v := c.path.validation; v != nil && v.Since(c.host.Now()) >= CompactAfter {
		v.Drop()
	}
}

// flush makes the state machine output all that it may send now.
func (c *Session) flush(now time.Duration) {
	if c.hs.securing {
		return
	}
	c.setClock(now)
	if c.kcp.Sender().TimeoutDue(c.clock(now)) || c.timers.heldSince != 0 {
		c.holdTimeouts(now)
	}
	asked := asking(c.kcp.Counts())
	if s := c.capped; s != nil {
		c.releaseHeld(s, now, c.kcp.RateCap().DatagramsFirst())
		c.kcp.Flush()
		c.releaseHeld(s, now, true)
	} else {
		c.kcp.Flush()
	}
	if asking(c.kcp.Counts()) != asked {
		c.live.Asked(now)
	}
	if c.timers.compactAt == 0 || c.live.Silence(now, liveness.Idle) < CompactAfter { // not if it only repeats
		c.timers.compactAt = now + CompactAfter
	}
}

const (
	// HoldTime is after what time at least a session looks again if time-outs have to
	// wait.
	HoldTime = time.Millisecond
	// MostHold is how long they wait at most.
	MostHold = time.Second
)

// holdTimeouts lets time-outs that have come wait until the sessions have got what had
// arrived at the socket by then. In a process that lacks processor time the ACKs are
// among that, and to retransmit would be spurious.
func (c *Session) holdTimeouts(now time.Duration) {
	t, shard := &c.timers, int(c.path.shard)
	ms, due := max(clock(now), 1), c.kcp.Sender().TimeoutDue(c.clock(now))
	if due && t.heldSince == 0 {
		t.heldSince, t.heldFor = ms, c.host.Arrived(shard)
	}
	hold := due && c.waited(now) < MostHold && c.host.Unread(shard, t.heldFor)
	c.kcp.Sender().HoldTimeouts(hold)
	if !hold {
		t.heldSince = 0
	}
}

// waited returns for how long time-outs have waited, if they do. now may be a little
// before they began to.
func (c *Session) waited(now time.Duration) time.Duration {
	ms := machine.Seq(clock(now)).Diff(machine.Seq(c.timers.heldSince))
	return time.Duration(max(ms, 0)) * time.Millisecond
}

// flushDue flushes if signals are pending, packets wait for the cap, or a flush is due.
func (c *Session) flushDue(now time.Duration) {
	if c.tls != nil && c.tls.handshake != nil {
		c.sendFlight()
	}
	if c.step.woken && c.kcp.Receiver().AcksPending() {
		c.kcp.Receiver().AwaitCall(c.clock(now), c.kcp.Sender())
	}
	if at, ok := c.kcp.NextFlush(); len(*c.kcp.SignalQueue()) > 0 || c.timers.heldSince != 0 || c.capped != nil && c.capped.waiting() > 0 || ok && !machine.Seq(at).After(c.clock(now)) {
		c.flush(now)
	}
}

// setClock sets the state machine's clock to the time now, since the epoch.
func (c *Session) setClock(now time.Duration) {
	c.kcp.SetClockMicros(uint64(c.timers.clockBase)*1000 + uint64(now.Microseconds()))
}

// clock returns the time now on the state machine's clock, in milliseconds.
func (c *Session) clock(now time.Duration) machine.Seq {
	return machine.Seq(c.timers.clockBase + uint32(now.Milliseconds()))
}

// sendDueSignals starts the requests that have become due, sends those whose
// time has come, and continues the search for the path MTU.
func (c *Session) sendDueSignals(now time.Duration) {
	l, k := &c.hs, c.kcp
	if c.closing.Phase >= closing.Draining {
		return
	}
	if c.hs.securing {
		if l.Due(opening.Hello, now) {
			c.repeatFlight(now)
		}
		return
	}
	if c.closing.Write != closing.WriteOpen && l.Peer >= opening.Extended && !c.closing.Answered() && l.Unanswered&opening.Finish == 0 {
		code := wire.Fin
		if c.closing.Write >= closing.CloseSent {
			code = wire.Close
		}
		l.Start(opening.Finish, wire.Signal{Code: code, SN: uint32(k.Position().End), TS: l.peerToken}, now, c.requestWait())
	}
	s := c.liveness()
	if _, due := c.live.Next(now, &s); due&liveness.Ping != 0 {
		c.startPing(now)
		c.live.PathChecked()
	}
	if l.Unanswered != 0 {
		c.sendDueRequests(now)
	}
	if len(*k.SignalQueue()) > 0 {
		c.flush(now)
	}
	c.advanceMTU(now)
}

// sendDueRequests queues the requests whose time has come.
func (c *Session) sendDueRequests(now time.Duration) {
	l := &c.hs
	if l.Due(opening.Hello, now) {
		if c.tls != nil {
			c.repeatFlight(now)
		} else if l.Reached && l.Of(opening.Hello).Tries >= HelloTries && l.Peer == opening.Unknown {
			l.Unanswered &^= opening.Hello
			l.Peer = opening.Legacy
		} else { // repeated even if the peer is extended: a forged HELLO may have shown that
			c.queueHello()
			l.Sent(opening.Hello, now, opening.MaxWait)
			c.live.Asked(now)
		}
	}
	for _, k := range opening.Kinds[1:] {
		if !l.Due(k, now) {
			continue
		}
		most := opening.MaxWait
		if k == opening.Ping {
			l.Of(k).Signal = c.newPing(now)
			_, most = c.pingWait()
		}
		c.kcp.SignalQueue().Add(l.Of(k).Signal)
		c.live.Asked(now)
		switch k {
		case opening.Ping:
			c.queueCount(now)
		case opening.Confirm:
			c.tellResetKey()
		}
		if l.Sent(k, now, most); l.Of(k).Tries > 1 && protect.UnderKeys(*c.in.protection.Load()) {
			c.repeatByCipher(l.Of(k).Signal)
		}
	}
}
