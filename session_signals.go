package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
)

// request is a signal that is repeated, with exponential back-off, until the
// peer answers it. The zero value is not active.
type request struct {
	next   time.Duration // when it is sent next, since the epoch
	signal signal
	wait   uint16 // from the next transmission to the one after it, in milliseconds; 10 s at most
	tries  uint8  // transmissions; stays at 255
	active bool   // waits for its answer
}

// start activates r with s. It is first sent at now, and then after wait.
func (r *request) start(s signal, now, wait time.Duration) {
	*r = request{signal: s, active: true, wait: uint16(wait.Milliseconds()), next: now}
}

func (r *request) due(now time.Duration) bool { return r.active && now >= r.next }

// sent records a transmission, and doubles the wait up to maxRequestWait.
func (r *request) sent(now time.Duration) {
	r.tries = max(r.tries, r.tries+1)
	r.next = now + time.Duration(r.wait)*time.Millisecond
	r.wait = max(r.wait, min(2*r.wait, uint16(maxRequestWait.Milliseconds())))
}

// again has r sent after wait, once more without back-off.
func (r *request) again(now, wait time.Duration) {
	r.next, r.wait = now+wait, uint16(wait.Milliseconds())
}

// answered reports whether s answers r, which then is no longer active.
func (r *request) answered(s signal) bool {
	if !r.active || r.signal.answer() != s {
		return false
	}
	r.active = false
	return true
}

// onSignal is the state machine's hook for signals. It reports true if s is not
// from within the session: una and wnd of its segment are then ignored, and its
// packet is no sign of life. It may queue signals and call what else port.go
// permits to hooks. payload is what the segment carries, and valid only during
// the call.
func (c *session) onSignal(s signal, payload []byte) bool {
	c.repeatHello()
	outside := c.takeSignal(s)
	switch {
	case s.code == sigClose && !outside:
		c.noteReason(payload)
	case s.code == sigResetKey:
		c.noteResetKey(s, payload)
	}
	c.step.offPath = c.step.offPath || outside
	return outside
}

// repeatHello restarts HELLO when a signal arrives from a peer that was taken
// for a legacy peer: too many of its answers were lost.
func (c *session) repeatHello() {
	l := &c.hs
	if c.hs.dialled && l.kind == peerLegacy {
		l.kind = peerUnknown
		l.hello.start(l.hello.signal, max(c.step.inputAt, l.helloAt+minHelloWait), firstHelloWait)
	}
}

// takeSignal processes s. outside reports whether s is not from within the
// session. A signal that ends the session takes effect at the end of the batch.
func (c *session) takeSignal(s signal) (outside bool) {
	switch s.code {
	case sigInfo:
		c.onInfo(s)
		if c.kcp.signalQueue().last().code == sigHello|sigAnswer {
			c.queueAnswer(c.infoSignal()) // one INFO for one: the answer is no larger than HELLO and INFO
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

// queueAnswer queues a for the next flush. It drops a if that is the last
// signal queued, so repeated requests get one answer, or if maxSignals are
// queued.
func (c *session) queueAnswer(a signal) {
	c.kcp.signalQueue().addOnce(a, maxSignals)
}

// takeRequest is takeSignal for a signal that asks for an answer.
func (c *session) takeRequest(s signal) (outside bool) {
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
			c.queueAnswer(c.rejectToken(s))
			return true
		}
		if !ours || s.ts != l.peerToken {
			return true
		}
		if c.offer() { // else the peer repeats CONFIRM
			c.addressValidated()
			l.confirmed = true
			c.queueAnswer(s.answer())
			c.queueAnswer(c.infoSignal())
			c.tellResetKey()
		}
	case sigFin, sigClose:
		if s.ts != l.token {
			c.queueAnswer(c.rejectToken(s))
			return true
		}
		if !ours || !c.offer() {
			return true // the backlog is full: the peer repeats it
		}
		c.addressValidated() // as CONFIRM does, which may have been lost
		l.confirmed = true
		if !c.takeFin(s) {
			return true
		}
		c.queueAnswer(s.answer())
	case sigPing:
		if l.token == 0 { // an extended peer, whose HELLO this session has never had
			c.queueAnswer(c.rejectToken(s))
			return true
		}
		c.queueAnswer(s.answer())
		if ours && c.shared.protection.Authentic && !c.hs.unvalidated.Load() {
			c.queueAnswer(signal{sigToken, l.peerToken, l.token}) // the PING may be a challenge
			c.step.challenged = c.shared.migrates
			if c.path.validation.Moves() > 0 {
				c.tellResetKey() // for its new address; what told it before may be lost
			}
		}
		return c.hs.dialled && !ours // only the WELCOME, which was lost, shows who answers
	case sigProbe:
		c.queueAnswer(s.answer())
		return c.hs.dialled && !ours
	}
	return false
}

// takeAnswer is takeSignal for the answer to a request.
func (c *session) takeAnswer(s signal) (outside bool) {
	l := &c.hs
	switch s.code {
	case sigHello | sigAnswer:
		if !c.hs.dialled || s.ts != l.token {
			return true
		}
		if !l.welcomed && l.hello.tries == 1 {
			c.measured(c.step.inputAt-l.helloAt, c.step.inputAt)
		}
		if !l.welcomed { // the sender of an earlier HELLO did not know our token
			if l.peerToken != s.sn {
				l.version, l.capabilities = 0, 0 // of another; INFO comes with WELCOME
			}
			l.welcomed, l.hello.active = true, false
			l.kind, l.peerToken, l.finish.signal.ts = peerExtended, s.sn, s.sn
			c.hs.greeted.Store(true)
			c.number(true)
			l.confirm.start(signal{sigConfirm, l.peerToken, l.token}, c.step.inputAt, c.requestWait())
		}
	case sigConfirm | sigAnswer:
		l.confirm.answered(s)
	case sigFin | sigAnswer, sigClose | sigAnswer:
		if s.ts != l.peerToken {
			return true // of an earlier session; see Config.SharedConvs
		}
		if l.finish.answered(s) {
			l.finished = true
		} else if l.halfClosed && s == (signal{sigFin | sigAnswer, uint32(c.kcp.position().end), l.peerToken}) {
			l.finAcked = true // the answer to FIN arrives after CLOSE has replaced it
		}
	case sigPing | sigAnswer:
		if r := &l.ping; r.active && r.tries > 0 && r.signal.answer() == s {
			c.addressValidated()
			if r.tries == 1 { // else the answer may be to either (Karn's algorithm, RFC 6298 §3)
				c.measured(c.live.PingTime(c.step.inputAt), c.step.inputAt)
			}
		}
		c.pingAnswered(s)
		c.pongArrived(s)
	case sigProbe | sigAnswer:
		c.probeAnswered(s)
	}
	return false
}

// rejectToken returns the RESET for a signal with a token that is not ours: the
// signal is of another session. For example, the peer had a session with this
// end before this end was restarted. It has retransmitted the first segment of
// that session, which has opened this one. An endpoint without the session
// would send the same RESET. The peer accepts it only as the answer to a
// request of its own.
//
// The session does not end here. Otherwise one packet with forged tokens would
// end a session with a legacy peer. Instead a PING is sent, and PeerTimeout
// runs until a packet arrives.
func (c *session) rejectToken(s signal) signal {
	if l := &c.hs; l.kind != peerExtended && !l.ping.active {
		c.startPing(c.step.inputAt + c.requestWait()) // the peer gets RESET first
	}
	return signal{sigReset, s.sn, s.ts}
}

// takeOutside takes a signal that an end without the session may send: COOKIE,
// RESET or ABORT.
func (c *session) takeOutside(s signal) {
	l := &c.hs
	switch s.code {
	case sigCookie:
		if l.hello.active {
			l.cookie = s
			l.hello.next = max(c.step.inputAt, l.helloAt+minHelloWait)
			if c.hs.securing && l.cookies == maxCookies {
				// A packet of a TLS handshake is large: forged cookies cause no
				// more of them.
				l.hello.next = max(l.hello.next, l.helloAt+maxHelloWait)
			}
			if l.cookies < maxCookies {
				l.cookies++
				l.hello.next = c.step.inputAt
			}
		}
	case sigReset:
		c.takeReset(s)
	case sigAbort:
		// It may be all that the peer answers HELLO by: its WELCOME was lost.
		if (l.kind == peerExtended || l.dialled && l.hello.active) && s.sn == l.token {
			c.closing.ending = ErrReset
			c.noteAbort()
		}
	}
}

// takeHello takes the peer's token from its HELLO. It reports false for a HELLO
// with another token than before, which is of another session, as after a
// restart, and for our own.
func (c *session) takeHello(s signal) bool {
	l := &c.hs
	if l.peerToken != 0 && l.peerToken != s.ts {
		return false
	}
	if s == l.hello.signal {
		c.closing.ending = errOwnAddress
		return false
	}
	if l.token == 0 {
		l.token = c.shared.env.Token()
	}
	l.peerToken, l.kind = s.ts, peerExtended
	c.hs.greeted.Store(true)
	c.kcp.validation().AcknowledgeAtOnce()
	c.number(false)
	return true
}

// infoSignal returns our INFO: the version of our signals, and our
// capabilities.
func (c *session) infoSignal() signal {
	s := c.shared.infoSignal()
	if c.hs.dialled {
		s.ts |= capDialled
	}
	return s
}

// infoSignal returns the INFO that sessions of the endpoint send.
func (e *sharedState) infoSignal() signal {
	s := infoSignal()
	if e.config.MaxStreams > 0 {
		s.ts |= capStreams | capOwnOrder
	}
	if e.config.TLS != nil {
		s.ts |= capTLS
	}
	return s
}

// infoSignal returns the INFO of an endpoint without streams and TLS.
func infoSignal() signal { return signal{sigInfo, signalVersion, capPMTU | capReason | capAckDelay} }

// number starts packet numbers with the peer once both tokens are known. sends
// reports whether the peer is known to have both too, so that ours may be
// numbered.
func (c *session) number(sends bool) {
	c.in.protection = c.shared.protection.Number(c.in.protection, c.entry.Conv, c.hs.token, c.hs.peerToken, sends)
}

// takeResets takes the RESETs of a packet that is not numbered. They come from
// an endpoint that does not know the session, and so cannot number them;
// takeReset accepts those that echo a request of ours. It reports whether the
// packet has any.
func (c *session) takeResets(p *inPacket) (found bool) {
	c.eachSignal(p, func(s signal) {
		if s.code == sigReset {
			c.takeReset(s)
			found = true
		}
	})
	return found
}

// eachSignal calls f for each signal in a packet. It reports false, possibly
// after some calls, if the packet is malformed or has a segment of another
// conversation.
func (c *session) eachSignal(p *inPacket, f func(signal)) bool {
	data, ok := admission.Segments(p.kind, p.Data)
	for ok && len(data) >= headerSize {
		h := decodeHeader(data)
		payload, fits := h.payload(data[headerSize:])
		if !fits || h.conv != c.entry.Conv {
			return false
		}
		if s, is := h.signal(); is {
			f(s)
		}
		data = data[headerSize+len(payload):]
	}
	return ok
}
