package session

import (
	"cmp"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
)

// OnSignal is the state machine's hook for signals. It reports true if s is not from
// within the session: una and wnd of its segment are then ignored, and its packet is
// not a sign of life. It may queue signals and call what else machine.Hooks permits.
// payload is what the segment carries, and valid only during the call.
func (c *Session) OnSignal(s wire.Signal, payload []byte) bool {
	if l := &c.hs; l.Role >= opening.Dialled && l.Peer == opening.Legacy { // too many of its answers were lost
		l.Peer = opening.Unknown
		l.Restart(c.step.inputAt)
	}
	outside := c.takeSignal(s)
	switch {
	case s.Code == wire.Close && !outside:
		c.noteReason(payload)
	case s.Code == wire.ResetKey:
		c.noteResetKey(s, payload)
	}
	c.step.offPath = c.step.offPath || outside
	return outside
}

// takeSignal processes s. outside reports whether s is not from within the
// session. A signal that ends the session takes effect at the end of the batch.
func (c *Session) takeSignal(s wire.Signal) (outside bool) {
	switch s.Code {
	case wire.Info:
		c.onInfo(s)
		if c.kcp.SignalQueue().Last().Code == wire.Welcome {
			c.queueAnswer(c.infoSignal()) // one INFO for one: the answer is not larger than HELLO and INFO
		}
	case wire.Cookie, wire.Reset, wire.Abort:
		c.takeOutside(s)
		return true
	default:
		if s.Code&wire.Answer != 0 {
			return c.takeAnswer(s)
		}
		return c.takeRequest(s)
	}
	return false
}

// queueAnswer queues a for the next flush. It drops a if that is the last signal
// queued, so repeated requests get one answer, or if wire.MaxSignals are queued.
func (c *Session) queueAnswer(a wire.Signal) {
	c.kcp.SignalQueue().AddOnce(a, wire.MaxSignals)
}

// takeRequest is takeSignal for a signal that asks for an answer.
func (c *Session) takeRequest(s wire.Signal) (outside bool) {
	l := &c.hs
	ours := l.Peer >= opening.Extended
	switch s.Code {
	case wire.Hello:
		if !c.takeHello(s) {
			return true
		}
		c.queueAnswer(wire.Signal{Code: wire.Welcome, SN: l.token, TS: l.peerToken})
	case wire.Confirm:
		if s.SN != l.token {
			c.queueAnswer(c.rejectToken(s))
			return true
		}
		if !ours || s.TS != l.peerToken {
			return true
		}
		if c.offer() { // else the peer repeats CONFIRM
			c.addressValidated()
			l.Confirmed = true
			c.kcp.Enable(machine.FeatureInformed)
			c.queueAnswer(s.Answer())
			c.queueAnswer(c.infoSignal())
			c.tellResetKey()
			c.measureOpening()
		}
	case wire.Fin, wire.Close:
		if s.TS != l.token {
			c.queueAnswer(c.rejectToken(s))
			return true
		}
		if !ours || !c.offer() {
			return true // the backlog is full: the peer repeats it
		}
		c.addressValidated() // as CONFIRM does, which may have been lost
		l.Confirmed = true
		if !c.takeFin(s) {
			return true
		}
		c.queueAnswer(s.Answer())
	case wire.Ping:
		if l.token == 0 { // an extended peer, whose HELLO this session has never had
			c.queueAnswer(c.rejectToken(s))
			return true
		}
		c.queueAnswer(s.Answer())
		if ours && (*c.in.protection.Load()).Authentic() && !c.hs.unvalidated.Load() {
			c.queueAnswer(wire.Signal{Code: wire.Token, SN: l.peerToken, TS: l.token}) // the PING may be a challenge
			c.step.challenged, c.step.ping = c.shared.Migrates, s
			if c.path.validation.Moves() > 0 {
				c.tellResetKey() // for its new address; what told it before may be lost
			}
		}
		return c.hs.Role >= opening.Dialled && !ours // only the WELCOME, which was lost, shows who answers
	case wire.Count:
		c.takeCount(s)
	case wire.Probe:
		c.in.probes++
		c.queueAnswer(s.Answer())
		return c.hs.Role >= opening.Dialled && !ours
	}
	return false
}

// takeAnswer is takeSignal for the answer to a request.
func (c *Session) takeAnswer(s wire.Signal) (outside bool) {
	l := &c.hs
	switch s.Code {
	case wire.Welcome:
		if c.hs.Role < opening.Dialled || l.token == 0 || s.TS != l.token || s.SN == 0 {
			return true
		}
		if l.Peer != opening.Welcomed && l.Of(opening.Hello).Tries == 1 {
			c.prompted(c.step.inputAt - l.HelloAt)
		}
		if l.Peer != opening.Welcomed { // the sender of an earlier HELLO did not know our token
			if l.peerToken != s.SN {
				l.version, l.capabilities = 0, 0 // of another; INFO comes with WELCOME
			}
			l.Unanswered &^= opening.Hello
			l.Peer, l.peerToken, l.Of(opening.Finish).Signal.TS = opening.Welcomed, s.SN, s.SN
			c.hs.greeted.Store(true)
			c.kcp.Enable(machine.FeatureInformed)
			c.number(true)
			l.Start(opening.Confirm, wire.Signal{Code: wire.Confirm, SN: l.peerToken, TS: l.token}, c.step.inputAt, c.requestWait())
		}
	case wire.Confirm | wire.Answer:
		if s == l.Of(opening.Confirm).Signal.Answer() {
			l.Unanswered &^= opening.Confirm
			c.measureOpening()
		}
	case wire.Fin | wire.Answer, wire.Close | wire.Answer:
		if l.peerToken == 0 || s.TS != l.peerToken {
			return true // of an earlier session; see Config.SharedConvs
		}
		if l.Unanswered&opening.Finish != 0 && s == l.Of(opening.Finish).Signal.Answer() {
			l.Unanswered &^= opening.Finish
			c.closing.Answer()
		} else if s == (wire.Signal{Code: wire.Fin | wire.Answer, SN: uint32(c.kcp.Position().End), TS: l.peerToken}) {
			c.closing.AnswerFin()
		}
	case wire.Pong:
		if c.pongArrived(s) {
			c.addressValidated()
		}
		c.pingAnswered(s)
	case wire.Count | wire.Answer:
		c.takeCount(s)
	case wire.Probe | wire.Answer:
		c.probeAnswered(s)
	}
	return false
}

// rejectToken returns the RESET for a signal with a token that is not ours: the signal
// is of another session. For example, the peer had a session with this end before this
// end was restarted. It has retransmitted the first segment of that session, which has
// opened this one. An endpoint without the session would send the same RESET. The peer
// accepts it only as the answer to a request of its own.
//
// The session does not end here. Otherwise one packet with forged tokens would
// end a session with a legacy peer. Instead a PING is sent, and PeerTimeout
// runs until a packet arrives.
func (c *Session) rejectToken(s wire.Signal) wire.Signal {
	if l := &c.hs; l.Peer < opening.Extended && l.Unanswered&opening.Ping == 0 {
		c.startPing(c.step.inputAt + c.requestWait()) // the peer gets RESET first
	}
	return wire.Signal{Code: wire.Reset, SN: s.SN, TS: s.TS}
}

// takeOutside takes a signal that an end without the session may send: COOKIE,
// RESET or ABORT.
func (c *Session) takeOutside(s wire.Signal) {
	l := &c.hs
	switch s.Code {
	case wire.Cookie:
		if l.Unanswered&opening.Hello != 0 {
			c.outgoing.unseen = c.outgoing.sent // the peer has kept nothing
			if l.cookie = s; c.mayHasten() {
				l.Cookie(c.step.inputAt, l.securing) // packets of a TLS handshake are large
			}
		}
	case wire.Reset:
		c.takeReset(s)
	case wire.Abort:
		// It may be all that the peer answers HELLO by: its WELCOME was lost.
		if (l.Peer >= opening.Extended || l.Role >= opening.Dialled && l.Unanswered&opening.Hello != 0) && s.SN == l.token {
			c.closing.ending = ErrReset
			c.noteAbort()
		}
	}
}

// takeHello takes the peer's token from its HELLO. It reports false for a HELLO
// with another token than before, which is of another session, as after a
// restart, and for our own. So it does for 0, which no end draws.
func (c *Session) takeHello(s wire.Signal) bool {
	l := &c.hs
	if s.TS == 0 || l.peerToken != 0 && l.peerToken != s.TS {
		return false
	}
	if own := s == l.Of(opening.Hello).Signal; own || c.rare != nil && c.rare.tie.Code != 0 {
		c.closing.ending = cmp.Or(c.rare.bothDial(own), c.closing.ending)
		return false
	}
	if l.token == 0 {
		l.token = c.shared.Env.Token()
	}
	l.peerToken, l.Peer = s.TS, max(l.Peer, opening.Extended)
	c.hs.greeted.Store(true)
	c.kcp.Validation().AcknowledgeAtOnce()
	c.number(false)
	return true
}

// infoSignal returns our INFO: the version of our signals, and our capabilities.
func (c *Session) infoSignal() wire.Signal {
	s := c.shared.InfoSignal()
	if c.hs.Role >= opening.Dialled {
		s.TS |= CapDialled
	}
	return s
}

// InfoSignal returns the INFO that sessions of the endpoint send.
func (e *Shared) InfoSignal() wire.Signal {
	s := InfoSignal()
	s.TS |= e.Protection.Capabilities
	if n := e.Config.MaxStreams; n > 0 {
		s.TS |= CapStreams | CapOwnOrder | uint32(min(n, streams.MostAtFirst))<<CapLimitShift
	}
	if e.Config.TLS != nil {
		s.TS |= CapTLS
	}
	return s
}

// InfoSignal returns the INFO of an endpoint without streams and TLS.
func InfoSignal() wire.Signal {
	return wire.Signal{Code: wire.Info, SN: signalVersion, TS: CapPMTU | CapReason | CapAckDelay | CapCopies | CapCounts}
}

// number starts packet numbers with the peer once both tokens are known. sends reports
// whether the peer is known to have both too, so that ours may be numbered.
func (c *Session) number(sends bool) {
	c.shared.Protection.Number(&c.in.protection, c.entry.Conv, c.hs.token, c.hs.peerToken, c.hs.capabilities, sends)
}

// repeatByCipher sends a request again, under the cipher: a peer that was restarted has
// no keys, and answers that by RESET.
func (c *Session) repeatByCipher(s wire.Signal) {
	head, tail := c.shared.Outside.Overhead()
	p := c.shared.Packet(head + wire.HeaderSize + tail)
	s.Encode(c.kcp.AnswerHeader(), p.Buf[head:])
	if p.ready = c.shared.Outside.Seal(p.Buf, nil) == nil; p.ready {
		c.outgoing.add(p)
	}
}

// takeResets takes the RESETs of a packet that is not numbered. They come from an
// endpoint that does not know the session, and so cannot number them; takeReset accepts
// those that echo a request of ours. It reports whether the packet has any.
func (c *Session) takeResets(p *InPacket) (found bool) {
	c.eachSignal(p, func(s wire.Signal, _ []byte) {
		if s.Code == wire.Reset {
			c.takeReset(s)
			found = true
		}
	})
	return found
}

// eachSignal calls f for each signal in a packet, with its payload. It reports false,
// possibly after some calls, if the packet is malformed or has a segment of another
// conversation.
func (c *Session) eachSignal(p *InPacket, f func(s wire.Signal, payload []byte)) bool {
	data, ok := admission.Segments(p.Kind, p.Data)
	for ok && len(data) >= wire.HeaderSize {
		h := wire.DecodeHeader(data)
		payload, fits := h.Payload(data[wire.HeaderSize:])
		if !fits || h.Conv != c.entry.Conv {
			return false
		}
		if s, is := h.Signal(); is {
			f(s, payload)
		}
		data = data[wire.HeaderSize+len(payload):]
	}
	return ok
}
