package admission

import (
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// First is a packet of an unknown sender, as far as it was read and judged. The packet
// is in place: what opens it changes Packet.
type First struct {
	Key    Key
	Kind   Kind
	Size   int // of the UDP payload, in bytes
	Packet *protect.Packet

	Initial                  // zero while the packet is sealed, or if it is not well-formed
	Keys    *protect.Initial // what has opened the first packet of a TLS handshake; nil: nothing has

	// Claimed says that a session that was asked has taken the packet, though it has not
	// moved. The caller sets it.
	Claimed bool

	// Expected says that this end dials the sender too, and takes the session that the
	// HELLO opens (simultaneous open). Crowded says that the sender has to show its
	// address by a cookie. The caller sets them.
	Expected, Crowded bool

	wellFormed bool
	fresh      bool // the replay filter does not know it
	shown      bool // as Verdict.Shown
	step       step
	ask        Question // that sessions were asked; AskNone if there are none that may have moved
	state      State
	ended      Ended // of unsealing and unsealed: whose keys open it
}

// step is how far a packet was judged.
type step uint8

const (
	unread    step = iota
	asked          // the sessions that may have moved were asked, if there are any
	unsealing      // the keys of a session in TIME-WAIT may open it
	unsealed       // they have
)

// Read reads a packet for which there is no session. It runs without a lock.
func (g *Gate[S]) Read(key Key, kind Kind, packet *protect.Packet, size int) First {
	p := First{Key: key, Kind: kind, Packet: packet, Size: size}
	p.Initial, p.wellFormed = Parse(kind, packet.Data, key.Conv)
	p.fresh = g.Outside.Fresh(packet, false) == protect.New
	return p
}

// Unseal opens the packet, after a verdict of Unseal. It returns why the packet is
// dropped; NoReason: it is to be judged again if ok. It runs without a lock.
func (p *First) Unseal() (why Reason, ok bool) {
	var err error
	switch {
	case p.step != unsealing && !p.Crypto:
		return Shaking, false
	case p.step != unsealing: // it was damaged if it does not open, and will be repeated
		hello := p.Request // it acknowledges something
		if p.Hello.Code != 0 {
			hello = p.Hello
		}
		k := protect.NewInitial(p.Key.Conv, hello.TS, false)
		if p.Packet.Data, err = handshake.OpenInitial(k, p.Packet.Data); err != nil {
			return Cipher, false
		}
		p.Kind, p.Keys = Opened, k
		return NoReason, true
	case p.ended.Shaking:
		if p.ended.Protection.Open(p.Packet) != nil {
			return Cipher, false
		}
	default:
		// The keys stay derived, so that the next packet costs less.
		if p.Kind, why, err = OpenSealed(p.ended.Protection, p.Packet, p.Key.Conv); err != nil || p.Kind == Sealed {
			return why, false
		}
		p.Initial, p.wellFormed = Parse(p.Kind, p.Packet.Data, p.Key.Conv)
	}
	p.step = unsealed
	return NoReason, true
}

// Judge decides on a packet. Judge, Ask and judge, Unseal and judge are all the steps
// there are.
func (g *Gate[S]) Judge(p *First, state State, now time.Duration) (v Verdict[S]) {
	p.state = state
	if p.step == unsealed {
		g.judgeEnded(p, now, &v)
		return v
	}
	if g.askElsewhere(p, now, &v) {
		return v
	}
	late := (p.Kind == Clear || p.Kind == Opened) && p.Crypto && p.Hello.Code == 0
	switch {
	case p.Kind == Handshake || p.Kind == Sealed:
		g.judgeSealed(p, now, &v)
	case !p.fresh:
		v.Drop = Replay
	case late && p.Keys != nil:
		// It goes on with a handshake that this end knows nothing of any more: Dial then
		// starts over.
		if !state.Closed {
			g.reply(p, now, &v, abort(p.Request.TS))
		}
	case late || !p.wellFormed || p.Tie.Code != 0 && p.Hello.Code == 0:
		v.Drop = Unknown // a damaged HELLO may look like another request
		if late && p.Request.Code == wire.Hello {
			v.Do = Unseal
		}
	case p.Kind == Clear && state.Listening && !state.Closed && p.Hello.Code != 0 &&
		p.Info.SN == handshake.VersionUnsealed && p.Info.TS&handshake.CapTLS != 0:
		g.refuseVersion(p, now, &v)
	default:
		g.judgeInitial(p, now, &v)
	}
	return v
}

// askElsewhere has the sessions of the conversation at other addresses asked that the
// packet may be of, as their peer may have moved, and judges by what they have said. It
// reports whether v is decided.
func (g *Gate[S]) askElsewhere(p *First, now time.Duration, v *Verdict[S]) bool {
	switch {
	case p.step == unread:
		p.step = asked
		switch {
		case !g.Migrates || p.Kind == Parity || p.Kind == Datagram || p.Tie.Code != 0:
		case p.Kind == Handshake:
			p.ask = AskHandshake
		case p.Kind == Sealed:
			p.ask = AskSealed
		case !g.Authentic: // only the keys of a session show whose a packet is
		case p.Kind == Clear && p.Crypto && p.Request.Code == wire.Hello: // also if it acknowledges something
			p.ask = AskHello
		case p.Kind == Clear:
		case p.Hello.Code == 0:
			p.ask = AskPacket
		case p.fresh:
			p.ask = AskWelcome
		}
		if p.ask == AskNone {
			return false
		}
		if v.Asked = g.Candidates(p.Key.Conv); v.Asked[0] == nil {
			p.ask = AskNone
			return false
		}
		p.shown = p.ask == AskHello && p.Cookie.Code != 0 && g.Cookies.shown(p, p.Request.TS, now)
		v.Do, v.Question, v.Shown = Ask, p.ask, p.shown
	case p.Claimed && p.ask == AskHello && p.shown:
		v.Drop = Shaking
	case p.Claimed && p.ask == AskHello:
		g.askCookie(p, p.Request.TS, now, v)
	case p.Claimed:
		v.Seen = p.ask == AskWelcome
	case p.ask == AskPacket:
		v.Drop = Replay
	default:
		return false
	}
	return true
}

// endedOf returns the session in TIME-WAIT that a packet belongs to. With an
// authenticating cipher the peer may have changed its address since: it still has to
// learn how its session has ended.
func (g *Gate[S]) endedOf(p *First, now time.Duration) (Ended, bool) {
	e, ok := g.TimeWaits.At(p.Key, now)
	if g.SharedConvs {
		return e, ok && !e.begunAnew(&p.Initial)
	}
	if !ok && (g.Authentic || p.Kind == Sealed) && p.Hello.Code == 0 {
		e, ok = g.TimeWaits.AtAnyAddress(p.Key.Conv, now)
	}
	return e, ok
}

// judgeInitial decides on the first packet of a conversation. If no session is to be
// opened, it answers by an acknowledgement in TIME-WAIT, a COOKIE, or a RESET.
func (g *Gate[S]) judgeInitial(p *First, now time.Duration, v *Verdict[S]) {
	v.Seen = true
	if v.Session = g.Get(p.Key); v.Session != nil {
		v.Do = Give
		return
	}
	if e, ok := g.endedOf(p, now); ok {
		v.Drop, p.ended = EndedSession, e
		g.answerEnded(p, now, v)
		return
	}
	greets := p.Hello.Code != 0
	opening := greets || p.Push && !g.RefusesLegacy && !g.usedElsewhere(p.Key.Conv)
	switch {
	case p.state.Closed:
	case (!p.state.Listening || p.Tie.Code != 0) && !p.Expected || !opening:
		v.Drop = Unknown
		elsewhere := g.Migrates && !g.Authentic && g.Candidates(p.Key.Conv)[0] != nil // it may migrate
		if p.Request.Code != 0 && p.Tie.Code == 0 && !elsewhere {                     // with TIEBREAKER: this end may dial later
			g.reply(p, now, v, reset(p.Request))
		}
	case greets && (p.Info.TS&handshake.CapTLS != 0) != g.TLS:
		g.refuseTLS(p, now, v)
	default:
		// A third party may have forged a cookie that was not asked for. So an invalid
		// one counts only if one is wanted.
		wanted := greets && (p.Crowded || g.wantsCookie(p.Key))
		v.Validated = greets && p.Cookie.Code != 0 && g.Cookies.shown(p, p.Hello.TS, now)
		if wanted && !v.Validated {
			g.askCookie(p, p.Hello.TS, now, v)
		} else {
			g.judgeRoom(p, now, v)
		}
	}
}

// refuseTLS answers a HELLO of a peer that speaks TLS where this end does not, or the
// reverse.
func (g *Gate[S]) refuseTLS(p *First, now time.Duration, v *Verdict[S]) {
	v.Drop = Shaking
	switch {
	case p.Crypto && g.TLS: // damaged: only peers with TLS send CRYPTO
	case p.Info.Code == 0: // the reply is not larger than the packet
		g.reply(p, now, v, reset(p.Hello))
	default:
		g.reply(p, now, v, g.Info, reset(p.Hello))
	}
}

// judgeRoom opens a session if there is room for it, or another one makes room.
func (g *Gate[S]) judgeRoom(p *First, now time.Duration, v *Verdict[S]) {
	greets := p.Hello.Code != 0
	switch {
	case p.Expected && (!g.TLS || p.Keys != nil): // there are few of these, and the dialled session ends
		v.Do = Open
		return
	case p.Expected:
		v.Do = Unseal
		return
	case v.Validated && g.Crowded(p.Key, true) || g.full() && g.halfOpen.Len()+g.shaking.Len() == 0:
		g.refuse(p, Sessions, now, v)
		return
	case g.Full(v.Validated || greets): // a session opened by HELLO is offered once it is validated
		v.Drop = Backlog
		return
	case g.TLS && p.Keys == nil:
		v.Do = Unseal
		return
	}
	evicted, why := g.makeRoom(p.Key, v.Validated, now)
	if why != NoReason {
		g.refuse(p, why, now, v)
		return
	}
	v.Evicted = evicted
	// With an authenticating cipher every HELLO has to be confirmed: a HELLO and the
	// data beside it may come from two addresses, and then only one of the two sessions
	// may be read.
	v.Do, v.Offers = Open, !(g.Authentic && greets) && (v.Validated || p.Push && !g.RefusesLegacy)
}

// refuse opens no session. A HELLO is told so if there are as many sessions as there may
// be. Otherwise the peer repeats its packet.
func (g *Gate[S]) refuse(p *First, why Reason, now time.Duration, v *Verdict[S]) {
	v.Drop = why
	if why == Sessions && p.Hello.Code != 0 && (v.Validated || g.full()) {
		g.reply(p, now, v, reset(p.Hello))
	}
}

// full reports whether there are as many sessions as there may be.
func (g *Gate[S]) full() bool { return g.Len() >= g.MaxSessions }

// makeRoom returns the session that makes room for one of key, or why there is no
// room. For a session of an address that is not validated only another such session
// makes room. For a validated address that begins a TLS handshake another handshake
// does. While there are as many sessions as there may be, any session of an address
// that is not validated does. What is established makes room for nobody.
func (g *Gate[S]) makeRoom(key Key, validated bool, now time.Duration) (evicted *S, why Reason) {
	look := func(s *S) fair.Look { return g.Look(s, now) }
	block, shakes := key.Block(), g.TLS && validated
	switch {
	case g.Crowded(key, validated):
		evicted, why = g.halfOpen.MakeRoomWithin(block.Subnet, look), Sessions
	case !validated && g.halfOpen.Len() >= g.MaxHalfOpen:
		evicted, why = g.halfOpen.MakeRoom(block, look), HalfOpen
	case shakes && g.shaking.Len() >= g.MaxHalfOpen:
		evicted, why = g.shaking.MakeRoom(block, look), Shaking
	case shakes && !g.mayShake(key):
		evicted, why = g.shaking.MakeRoomWithin(block.Subnet, look), Shaking
	case !g.full():
		return nil, NoReason
	case !validated:
		evicted, why = g.halfOpen.MakeRoom(block, look), Sessions
	default:
		evicted = g.halfOpen.MakeRoom(block, func(s *S) fair.Look {
			if look(s) == fair.Stays {
				return fair.Stays
			}
			return fair.Idle
		})
		if evicted == nil {
			evicted = g.shaking.MakeRoom(block, look)
		}
		why = Sessions
	}
	if evicted != nil {
		why = NoReason
	}
	return evicted, why
}

// Candidates returns the sessions of a conversation id that may migrate (WIRE.md §5.4;
// RFC 9000 §9): with an authenticating cipher, those with extended peers.
func (g *Gate[S]) Candidates(conv uint32) (found [MaxSameConv]*S) {
	n := 0
	for s := range g.OfConv(conv) {
		if g.Extended(s) {
			found[n] = s
			n++
		}
	}
	return found
}

// mayShake reports whether one more TLS handshake may begin with the network of key. A
// subnet may have half of what the others leave of MaxHalfOpen, so that something is
// left for the next one. Handshakes of addresses that are not validated do not count, as
// somebody else may have begun them.
func (g *Gate[S]) mayShake(key Key) bool {
	left := g.MaxHalfOpen - g.shaking.Len()
	return !g.TLS || left > 0 && g.Network(key).Shaking <= left/2
}

// usedElsewhere reports whether conv is the id of a session with an extended peer at
// another address. The caller has found none at the address in question. Extended peers
// draw conversation ids at random, so the packet is from the same peer, whose address
// has changed although its session cannot migrate. The data that it retransmits may have
// been delivered already.
//
// It also reports whether conv is the id of one of the last ended sessions with extended
// peers. Only an attacker that has recorded one sends its packets.
func (g *Gate[S]) usedElsewhere(conv uint32) bool {
	if g.SharedConvs {
		return false
	}
	return g.Candidates(conv)[0] != nil || g.Used.Has(conv)
}

// wantsCookie reports whether a HELLO needs a cookie (address validation, RFC 9000
// §8.1). It always does with AlwaysValidate. Otherwise it does under pressure: when half
// of MaxHalfOpen or of MaxSessions is reached, or the subnet of key has as many
// sessions as it may. With TLS an eighth of MaxHalfOpen is enough, as handshakes take
// much more, and so is that another session has to make room for its handshake.
func (g *Gate[S]) wantsCookie(key Key) bool {
	most := (g.MaxHalfOpen + 1) / 2
	if g.TLS {
		most = (g.MaxHalfOpen + 7) / 8
	}
	return g.AlwaysValidate || g.halfOpen.Len() >= most || g.Len() >= (g.MaxSessions+1)/2 || g.Crowded(key, false) || !g.mayShake(key)
}
