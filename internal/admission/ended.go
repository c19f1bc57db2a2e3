package admission

import (
	"time"
	"unicode/utf8"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// Ended is a session in TIME-WAIT: as much as it takes to answer a peer that does not
// know of the end yet.
type Ended struct {
	Una     uint32 // all data of the peer before it has arrived
	Token   uint32 // the peer's, which it expects in ABORT and TOKEN; 0: the peer gets no reply
	Own     uint32 // this end's token
	Aborted bool   // the session did not end in order
	Dropped bool   // it ended before the application could have it
	Shaking bool   // it ended within its TLS handshake, whose keys are Protection's
	Mute    bool   // only another process had its keys; Protection is the endpoint's

	End    uint32 // where this end's data ends, for CLOSE
	Reason []byte // why it was closed, as CLOSE carries it; nil: none, or the peer takes none

	Protection protect.Protection // of the session
}

// Remember puts an ended session into TIME-WAIT. extended says whether its peer is an
// extended one.
func (g *Gate[S]) Remember(key Key, e Ended, extended bool, now time.Duration) {
	g.TimeWaits.Add(key, e, extended, now)
	if extended && g.Authentic && !g.RefusesLegacy {
		g.Used.Add(key.Conv)
	}
}

// begunAnew reports whether a packet opens another session of the same address and
// conversation id, with Rules.SharedConvs: a HELLO with a token of its own, or, after a
// session with a legacy peer, the first segment. An extended peer may still repeat the
// first segment of the old session.
func (e *Ended) begunAnew(f *Initial) bool {
	if f.Hello.Code != 0 {
		return f.Hello.TS != e.Token
	}
	return f.Push && e.Token == 0
}

// shownBy reports whether a packet shows this end's token of the ended session. Any
// other packet may be of a later session with Rules.SharedConvs, whose data the una of
// a reply would acknowledge.
func (e *Ended) shownBy(f *Initial) bool {
	if e.Own == 0 {
		return false // this end had drawn none
	}
	switch f.Request.Code {
	case wire.Confirm:
		return f.Request.SN == e.Own
	case wire.Fin, wire.Close:
		return f.Request.TS == e.Own
	}
	return false
}

// judgeSealed judges a protected packet: one of a session in TIME-WAIT, or of none.
func (g *Gate[S]) judgeSealed(p *First, now time.Duration, v *Verdict[S]) {
	e, known := g.endedOf(p, now)
	switch {
	case !known:
		v.Drop = Unknown
		g.mayReset(p, now, v)
	case e.Mute:
		v.Drop = EndedSession
		g.mayReset(p, now, v)
	case e.Shaking && p.Kind == Sealed: // the keys for this packet are not there
		v.Drop = EndedSession
		if p.Size > leastSize(e.Protection) {
			g.abortHandshake(p, &e, now, v)
		}
	case e.Shaking:
		v.Drop = EndedSession
		fallthrough
	default:
		p.ended, p.step = e, unsealing
		v.Do = Unseal
	}
}

// judgeEnded judges a packet that the keys of a session in TIME-WAIT have opened.
func (g *Gate[S]) judgeEnded(p *First, now time.Duration, v *Verdict[S]) {
	if !p.ended.Shaking {
		v.Drop = EndedSession
		if p.wellFormed {
			g.answerEnded(p, now, v)
		}
		return
	}
	m, ok := handshake.Parse(p.Packet.Data, p.Key.Conv)
	if ok && m.Crypto && p.Size >= leastSize(p.ended.Protection) {
		g.abortHandshake(p, &p.ended, now, v)
	}
}

// abortHandshake answers a protected packet of a session that has ended within its
// handshake by ABORT, under the handshake keys: nothing else would end the session at a
// peer that has them. The answer is not larger than the packet, and is not answered
// itself.
func (g *Gate[S]) abortHandshake(p *First, e *Ended, now time.Duration, v *Verdict[S]) {
	if !p.state.Closed && g.mayReply(&g.replies, ReplyRate, now, v) {
		v.Answer = answer(e.Protection, wire.Header{Conv: p.Key.Conv, Wnd: helloWindow}, abort(e.Token))
	}
}

// answerEnded replies to a packet of an ended session. It answers the request in the
// packet, or acknowledges its data. If the session was aborted, it sends ABORT, whose
// una the peer ignores. It does not reply to a legacy peer, which would take the reply
// for the first packet of a new session. If the process that had the keys has ended, it
// says that the session is not known any more.
func (g *Gate[S]) answerEnded(p *First, now time.Duration, v *Verdict[S]) {
	e, by := &p.ended, g.Outside
	head := wire.Header{Conv: p.Key.Conv}
	var words wire.Signal
	switch f := &p.Initial; {
	case f.Hello.Code != 0:
		if !e.Aborted || !e.Dropped || e.Token != f.Hello.TS {
			return
		}
		words = abort(e.Token) // the dialling peer has not had our WELCOME
	case e.Protection.Fresh(p.Packet, true) != protect.New:
		return // recorded and replayed
	case e.Token == 0 && !e.Mute || !f.Data && f.Request.Code == 0:
		return // two ends in TIME-WAIT that answered each other would never stop
	case g.SharedConvs && !e.Aborted && !e.shownBy(f):
		return // it may be of a session that begins
	default:
		head.Una, by = container.Serial(e.Una), e.Protection.Sender()
		if words = g.lastWords(e, f); words.Code == 0 {
			return
		}
	}
	if !g.mayReply(&g.replies, ReplyRate, now, v) {
		return
	}
	if e.Reason != nil && (words.Code == wire.Abort || words.Code == wire.Close) {
		v.Answer = explained(by, head, e, p.Size)
		return
	}
	v.Answer = answer(by, head, words)
}

// explained returns the answer of a session that was closed with a reason: CLOSE, which
// carries it, and ABORT behind that if it was aborted, as they left when it ended. The
// text is cut so that the answer is at most three times the size of the request.
func explained(by protect.Protection, head wire.Header, e *Ended, request int) Answer {
	before, after := by.Overhead()
	size := min(len(e.Reason), amplification*request-before-after-2*wire.HeaderSize)
	for size < len(e.Reason) && size > reasonCode && !utf8.RuneStart(e.Reason[size]) {
		size--
	}
	reason := e.Reason[:max(size, 0)]
	a := Answer{By: by}
	head.Len = uint32(len(reason))
	a.add(head, wire.Signal{Code: wire.Close, SN: e.End, TS: e.Token})
	a.Size += copy(a.Content[a.Size:], reason)
	if head.Len = 0; e.Aborted {
		a.add(head, abort(e.Token))
	}
	return a
}

// lastWords returns what the peer of an ended session is answered; code 0: nothing.
func (g *Gate[S]) lastWords(e *Ended, f *Initial) wire.Signal {
	switch {
	case e.Mute: // a peer that numbers its packets takes nothing else without number
		if f.Request.Code != 0 {
			return reset(f.Request)
		}
		return wire.Signal{}
	case e.Aborted:
		return abort(e.Token)
	case f.Request.Code == wire.Ping, f.Data && !f.Newest.Before(container.Serial(e.Una)):
		// The peer does not know that nothing more of it is taken: this end may have
		// ended once both had sent FIN, and the peer has a stream.
		return wire.Signal{Code: wire.Close, SN: e.End, TS: e.Token}
	case f.Request.Code == 0:
		return g.Info // for its una
	}
	return f.Request.Answer()
}
