package session

import (
	"bytes"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// Connection migration (RFC 9000 §9, WIRE.md §5.4). A session survives a change of the
// peer's address: after a NAT rebinding, or on another network. Two things must be
// shown first. The packet must be the peer's, which only an authenticating cipher
// shows. And the peer must get what is sent to the new address: it answers a challenge
// from there. That is path validation (RFC 9000 §8.2, which has the reasons).

// Claims answers a question about p. mine reports whether the packet is of this session,
// moved whether that has migrated to where it comes from, and is to be fed it.
func (c *Session) Claims(q Question, p *InPacket, now time.Duration) (mine, moved bool) {
	switch q.What {
	case admission.AskPacket:
		return c.packetFromNewAddress(p, q.Numbered, now)
	case admission.AskWelcome:
		return c.welcomeElsewhere(p, q.First.Hello), false
	case admission.AskHello:
		return c.helloFromNewAddress(q.First.Request.TS, p.From, q.Shown, now)
	case admission.AskHandshake:
		return c.handshakeFromNewAddress(p, now)
	}
	return false, false
}

// welcomeElsewhere answers a HELLO from a second address: the peer's
// address has changed during the handshake. It gets the WELCOME of the session that its
// first HELLO has opened, confirms that, and migrates it. A second session would be
// confused with it. welcomeElsewhere reports whether c is that session.
func (c *Session) welcomeElsewhere(p *InPacket, hello wire.Signal) bool {
	if c.hs.Role >= opening.Dialled || c.closing.Phase >= closing.Ended || c.hs.Peer < opening.Extended || c.hs.peerToken != hello.TS {
		return false
	}
	answer := []wire.Signal{{Code: wire.Welcome, SN: c.hs.token, TS: c.hs.peerToken}}
	if data, _ := admission.Segments(p.Kind, p.Data); len(data) >= 2*wire.HeaderSize {
		answer = append(answer, c.infoSignal()) // so the answer is not larger than the packet
	}
	c.host.Reply(p.From, c.shared.Outside, c.kcp.AnswerHeader(), answer...)
	return true
}

// A peer may change its address within its TLS handshake too (WIRE.md §8.1). What
// shows that it is there is a cookie before there are handshake keys, and the
// answer to a challenge under them.

// helloFromNewAddress handles a HELLO of a TLS handshake, with a token,
// from an address that is not the peer's. shown says that it comes with the cookie of
// that address. mine reports whether it is of this session, and so opens none. moved
// reports whether the session has migrated there. It does so until a packet under the
// handshake keys has arrived: a HELLO after that is late, or forged.
func (c *Session) helloFromNewAddress(token uint32, from Source, shown bool, now time.Duration) (mine, moved bool) {
	if c.hs.Role >= opening.Dialled || c.closing.Phase >= closing.Ended || c.hs.peerToken != token {
		return false, false
	}
	x := c.tlsHandshake()
	return true, shown && x != nil && !x.Reached && c.moveHandshake(x, from, now)
}

// handshakeFromNewAddress handles a packet under the handshake keys
// from an address that is not the peer's. What it says counts from anywhere. mine
// reports whether it belongs to this session. moved reports whether it has answered
// the challenge of its address, and the session has migrated there: the packet was
// not taken then. Otherwise the address gets a challenge.
func (c *Session) handshakeFromNewAddress(p *InPacket, now time.Duration) (mine, moved bool) {
	x := c.tlsHandshake()
	if x == nil || c.hs.Role >= opening.Dialled || c.closing.Phase >= closing.Ended {
		return false, false
	}
	content, _, err := x.Protection.Keys.Open(bytes.Clone(p.Data))
	if err != nil {
		return false, false
	}
	c.setClock(now)
	to := p.From
	if x.Answers(content, c.challengeAnswers(to, now)) && c.moveHandshake(x, to, now) {
		return true, true
	}
	if c.inputPacket(p, now) {
		c.Respond(now, c.step.woken)
	}
	if c.closing.Phase >= closing.Ended {
		return true, false
	}
	by := protect.Protection(x.Protection)
	if !c.hs.securing {
		by = *c.in.protection.Load() // the peer has these keys too
	}
	c.host.Reply(to, by, c.kcp.AnswerHeader(), c.challengeOf(to, now))
	return true, false
}

// moveHandshake moves a session within its TLS handshake to an address that the
// peer has shown to be at. All that the peer lacks leaves again. It reports false
// if the endpoint has another session there.
func (c *Session) moveHandshake(x *handshake.Exchange, to Source, now time.Duration) bool {
	if !c.migrateTo(to) {
		return false
	}
	c.addressValidated()
	if l := &c.hs; l.Unanswered&opening.Hello != 0 {
		x.Repeat(int(l.Of(opening.Hello).Tries))
		l.Again(opening.Hello, now, opening.FirstHello)
	}
	return true
}

// packetFromNewAddress handles a packet from an address that is
// not the peer's. mine reports whether it belongs to this session and is not a
// replay. moved reports whether it has answered the challenge of the address,
// and the session has migrated there. Otherwise the address gets a challenge.
func (c *Session) packetFromNewAddress(p *InPacket, numbered bool, now time.Duration) (mine, moved bool) {
	if c.closing.Phase >= closing.Ended || c.hs.Peer < opening.Extended || (*c.in.protection.Load()).Fresh(&p.Packet, false) != protect.New {
		return false, false
	}
	number, ok := (*c.in.protection.Load()).Number(&p.Packet)
	if ok != numbered {
		return false, false
	}
	if c.hs.unvalidated.Load() && !numbered {
		return false, false // it need not come from the peer that has our WELCOME
	}
	to := p.From
	switch answered, aborted := c.answersChallenge(p, to, now); {
	case aborted:
		c.closing.ending = ErrReset
		c.noteAbort()
		c.finishStep(now)
		return true, false
	case answered:
		moved = c.migrateTo(to)
		if moved {
			c.addressValidated()
		}
		return true, moved
	}
	ask := c.challengeOf(to, now)
	v := c.path.validating()
	if numbered && !c.hs.unvalidated.Load() && (*c.in.protection.Load()).IsLatest(number) && v.Alive(number) {
		c.live.Heard(now)
	}
	c.deferPacket(p, ask.SN)
	if v.Due(ask.SN, now) && c.host.Reply(to, (*c.in.protection.Load()).Sender(), c.kcp.AnswerHeader(), ask) {
		v.Sent(ask.SN, now)
	}
	return true, false
}

// validating returns the state of path validation, which it allocates.
func (p *pathState) validating() *netpath.Validation[InPacket] {
	if p.validation == nil {
		p.validation = new(netpath.Validation[InPacket])
	}
	return p.validation
}

// challengeOf returns the challenge of the session for an address. It is valid for
// one migration.
func (c *Session) challengeOf(to Source, at time.Duration) wire.Signal {
	return c.host.Challenge(to, c.hs.token+c.path.validation.Moves(), at)
}

// answersChallenge reads a packet from another address. answered reports
// whether it answers the challenge of that address and shows the session's
// tokens, which another holder of the key does not know. aborted reports
// whether it has an ABORT of the peer, which counts from any address, with the reason
// before it.
func (c *Session) answersChallenge(p *InPacket, from Source, now time.Duration) (answered, aborted bool) {
	var answers [2]wire.Signal
	l, shown := &c.hs, false
	var reason []byte
	ok := c.eachSignal(p, func(s wire.Signal, payload []byte) {
		switch {
		case s.Code == wire.Pong:
			if answers[0].Code == 0 {
				answers = c.challengeAnswers(from, now)
			}
			answered = answered || s == answers[0] || s == answers[1]
		case s == wire.Signal{Code: wire.Token, SN: l.token, TS: l.peerToken}:
			shown = true
		case s.Code == wire.Close && s.TS == l.token:
			reason = payload
		case s.Code == wire.Abort && s.SN == l.token:
			aborted = true
		}
	})
	if ok && aborted {
		c.noteReason(reason)
	}
	return ok && answered && shown, ok && aborted
}

// challengeAnswers returns the answers to the challenges of an address that are
// still valid.
func (c *Session) challengeAnswers(to Source, now time.Duration) [2]wire.Signal {
	return [2]wire.Signal{c.challengeOf(to, now).Answer(), c.challengeOf(to, now-admission.CookieTime).Answer()}
}

// migrateTo moves the session to a new address. It reports false if the endpoint has
// another session there. Congestion control and MTU discovery start over.
func (c *Session) migrateTo(to Source) bool {
	if !c.host.Move(to) {
		return false
	}
	c.ends.Store(&pathEnds{to.NetAddr(), to.Local})
	c.beginPath()
	c.path.validating().Moved()
	if !c.hs.securing {
		c.renewResetKey()
	}
	c.traceMoved()
	return true
}

// beginPath drops the measurements, which are of another path (RFC 9000 §9.4).
func (c *Session) beginPath() {
	c.kcp.SetCongestionControl(c.newCongestionControl())
	c.restartMTUSearch()
	c.rtt = netpath.RTTEstimate{}
}

// Rerouted sends at once, without waiting for time-outs, as there is a
// route to the peer again. moved says that it is from another address of this end's: if
// the peer knows the session by its packets, it migrates there (RFC 9000 §9.2). Otherwise
// the answer to PING ends the session.
func (c *Session) Rerouted(moved bool) {
	l, now := &c.hs, c.host.Now()
	if c.closing.Phase > closing.Lingering || l.silent() {
		return
	}
	c.setClock(now)
	if moved && l.Reached {
		c.beginPath()
		c.path.moves++
		c.path.rerouted = c.losses.Heard()
	}
	wait := c.requestWait()
	for _, k := range opening.Kinds {
		if l.Unanswered&k != 0 {
			l.Again(k, now-wait, wait)
		}
	}
	if l.Reached && l.Unanswered&opening.Ping == 0 && !(c.closing.Read != closing.ReadOpen && c.over()) {
		l.Start(opening.Ping, wire.Signal{}, now, wait)
	}
	c.kcp.ProbePath()
	c.kick(now)
}

// noteChallenge takes a PING that came without COUNT. A peer that counts sends COUNT with
// all but the challenge of an address (RFC 9000 §8.2), and with the PING beside a PROBE: so
// packets of this end come to the peer from another address, its own or that of a NAT.
func (c *Session) noteChallenge() {
	p, ping := &c.path, c.step.ping
	c.step.ping = wire.Signal{}
	if !c.shared.Migrates || !c.losses.Heard() || ping == probePing(ping.SN) || ping.SN == p.challenge {
		return
	}
	if p.challenge = ping.SN; !p.rerouted {
		p.moves++
	}
	p.rerouted = false
}

// deferPacket keeps a copy of a packet until the challenge with the given sn is
// answered, if none that is larger waits for that. Under memory pressure it keeps none.
func (c *Session) deferPacket(p *InPacket, challenge uint32) {
	v := c.path.validation
	if c.memoryPressure() != machine.PressureNone {
		v.Drop()
	} else if v.Defers(challenge, p.Size) {
		kept := *p
		kept.Packet = p.Clone()
		v.Defer(&kept, challenge, p.Size)
	}
	c.account()
}

// inputDeferred feeds the packet to the state machine that has waited until the session
// has migrated to the address that it came from. It reports whether that may have
// changed anything.
func (c *Session) inputDeferred(now time.Duration) (changed bool) {
	p := c.path.validation.First()
	return p != nil && admission.MakeKey(p.From.Addr, p.From.Peer, p.Conv) == c.entry.Key() && c.inputPacket(p, now)
}
