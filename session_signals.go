package kcp

import (
	"time"
)

// request is a signal that is repeated, at growing distances, until it has
// been answered.
type request struct {
	next   time.Duration
	signal signal
	wait   uint32 // in milliseconds
	tries  uint8  // no more than 255 are counted
	active bool
}

func (r *request) start(s signal, now, wait time.Duration) {
	*r = request{signal: s, active: true, wait: uint32(wait.Milliseconds()), next: now}
}

func (r *request) due(now time.Duration) bool { return r.active && now >= r.next }

func (r *request) sent(now time.Duration) {
	r.tries = max(r.tries, r.tries+1)
	r.next = now + time.Duration(r.wait)*time.Millisecond
	r.wait = max(r.wait, min(2*r.wait, uint32(maxRequestWait.Milliseconds())))
}

// answered takes the answer to r, if s is that.
func (r *request) answered(s signal) bool {
	if !r.active || r.signal.answer() != s {
		return false
	}
	r.active = false
	return true
}

// onSignal is the state machine's hook. It is true where una and wnd of the
// segment mean nothing, because it is not from within the session; its packet
// then is no sign of life either.
func (c *Conn) onSignal(s signal) bool {
	c.repeatHello()
	outside := c.takeSignal(s)
	c.io.offPath = c.io.offPath || outside
	return outside
}

// repeatHello says hello again to a peer that seemed to know no signals, because so
// many answers were lost, and now has sent one.
func (c *Conn) repeatHello() {
	l := &c.hs
	if c.hs.dialled && l.kind == peerLegacy {
		l.kind = peerUnknown
		l.hello.start(l.hello.signal, max(c.live.lastInput, l.helloAt+minHelloWait), firstHelloWait)
	}
}

// takeSignal takes s, and is true for what is not from within the session. What
// ends the session is left to the end of the batch.
func (c *Conn) takeSignal(s signal) (outside bool) {
	switch s.code {
	case sigInfo:
		c.onInfo(s)
		if c.kcp.lastSignal().code == sigHello|sigAnswer {
			c.queueAnswer(infoSignal()) // so the answer to hello is no larger than what came
		}
	case sigCookie, sigReset, sigAbort:
		c.takeOutside(s)
		return true
	default:
		if s.code&sigAnswer != 0 {
			return c.takeAnswer(s)
		}
		return c.takeRequest(s)
	}
	return false
}

// queueAnswer has a leave with the next flush, once however often it was asked
// for.
func (c *Conn) queueAnswer(a signal) {
	c.kcp.queueSignalOnce(a, maxSignals)
}

// takeRequest is takeSignal for a signal that wants an answer.
func (c *Conn) takeRequest(s signal) (outside bool) {
	l := &c.hs
	ours := l.kind == peerExtended
	switch s.code {
	case sigHello:
		if !c.takeHello(s) {
			return true
		}
		c.queueAnswer(signal{sigHello | sigAnswer, l.token, l.peerToken})
	case sigConfirm:
		if s.sn != l.token {
			c.queueAnswer(c.disown(s))
			return true
		}
		if !ours || s.ts != l.peerToken {
			return true
		}
		if c.offer() { // else it asks again
			c.addressValidated()
			l.confirmed = true
			c.queueAnswer(s.answer())
			c.queueAnswer(infoSignal())
		}
	case sigFin, sigClose:
		if s.ts != l.token {
			c.queueAnswer(c.disown(s))
			return true
		}
		if !ours || !c.offer() {
			return true // or it asks again
		}
		c.addressValidated() // as confirm does, which may have been lost
		l.confirmed = true
		if !c.takeFin(s) {
			return true
		}
		c.queueAnswer(s.answer())
	case sigPing:
		if l.token == 0 { // nobody without signals asks so
			c.queueAnswer(c.disown(s))
			return true
		}
		c.queueAnswer(s.answer())
		if ours && c.ep.protection.authentic && !c.hs.unvalidated.Load() {
			c.queueAnswer(signal{sigToken, l.peerToken, l.token}) // the question may be a challenge
		}
	case sigProbe:
		c.queueAnswer(s.answer())
	}
	return false
}

// takeAnswer is takeSignal for the answer to a signal.
func (c *Conn) takeAnswer(s signal) (outside bool) {
	l := &c.hs
	switch s.code {
	case sigHello | sigAnswer:
		if !c.hs.dialled || s.ts != l.token {
			return true
		}
		if !l.welcomed { // whatever has said hello before does not know our token
			l.welcomed, l.hello.active = true, false
			l.kind, l.peerToken, l.finish.signal.ts = peerExtended, s.sn, s.sn
			c.hs.greeted.Store(true)
			c.number(true)
			l.confirm.start(signal{sigConfirm, l.peerToken, l.token}, c.live.lastInput, c.requestWait())
		}
	case sigConfirm | sigAnswer:
		l.confirm.answered(s)
	case sigFin | sigAnswer, sigClose | sigAnswer:
		if l.finish.answered(s) {
			l.finished = true
		} else if l.halfClosed && s == (signal{sigFin | sigAnswer, uint32(c.kcp.sendEnd()), l.peerToken}) {
			l.finAcked = true // it has been overtaken by our close
		}
	case sigPing | sigAnswer:
		if r := &l.ping; r.active && r.tries > 0 && r.signal.answer() == s {
			c.addressValidated()
		}
		c.pingAnswered(s)
	case sigProbe | sigAnswer:
		c.probeAnswered(s)
	}
	return false
}

// disown returns the answer to a signal of a peer that takes this session for
// another: for that of our life before a restart, say, whose first segment, sent
// again, has opened this one. It is that of an endpoint which knows no such
// session, and the peer believes it only if it has asked so.
//
// The session itself is not ended here, or one packet with forged tokens would
// end that of a peer that knows no signals. But it is asked for a sign of life,
// and PeerTimeout runs.
func (c *Conn) disown(s signal) signal {
	if l := &c.hs; l.kind != peerExtended && !l.ping.active {
		at := c.live.lastInput + c.requestWait() // the peer is to hear of the reset first
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, at, c.pingWait())
	}
	return signal{sigReset, s.sn, s.ts}
}

// takeOutside takes a signal from outside the session.
func (c *Conn) takeOutside(s signal) {
	l := &c.hs
	switch s.code {
	case sigCookie:
		if l.hello.active {
			l.cookie = s
			l.hello.next = max(c.live.lastInput, l.helloAt+minHelloWait)
			if l.cookies < maxCookies {
				l.cookies++
				l.hello.next = c.live.lastInput
			}
		}
	case sigReset:
		c.takeReset(s)
	case sigAbort:
		if l.kind == peerExtended && s.sn == l.token {
			c.closing.ending = ErrReset
		}
	}
}

// takeHello learns from the peer's hello. It is false for one of another life
// of the peer.
func (c *Conn) takeHello(s signal) bool {
	l := &c.hs
	if l.peerToken != 0 && l.peerToken != s.ts {
		return false
	}
	if l.token == 0 {
		l.token = randomToken()
	}
	l.peerToken, l.kind = s.ts, peerExtended
	c.hs.greeted.Store(true)
	c.kcp.acknowledgeAtOnce()
	c.number(false)
	return true
}

// infoSignal tells our version and abilities.
func infoSignal() signal { return signal{sigInfo, signalVersion, capPMTU} }
