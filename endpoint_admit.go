package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Admission: what an endpoint does with packets that belong to no session. Who
// sends them is not known yet, so everything here is bounded: sessions whose
// peer is not proven to exist, memory, and the rate and size of replies.

// initialPacket is what the first packet of a conversation says.
type initialPacket struct {
	data    bool   // it has data,
	push    bool   // the first of all
	hello   signal // of no code where there is none, as those below
	cookie  signal
	request signal // the first signal that asks for an answer
}

// parseInitial reads a packet of an unknown conversation. ok is false where it is
// not well-formed to its end. Data opens a session only if it has the very first
// segment: from what follows nobody can tell a conversation that begins from
// one that the peer has gone on with, while it was forgotten here.
func parseInitial(p *inPacket) (f initialPacket, ok bool) {
	packet, ok := p.segments()
	if !ok {
		return f, false
	}
	old := false // it acknowledges something, so it is not from the beginning
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, ok := h.payload(packet[headerSize:])
		if !ok || h.conv != p.conv || !knownCmd(h.cmd) && h.cmd != cmdPiece {
			return initialPacket{}, false
		}
		old = old || h.una != 0 || h.cmd == cmdAck
		f.data = f.data || h.cmd == cmdPush || h.cmd == cmdPiece
		f.push = f.push || (h.cmd == cmdPush && h.sn == 0)
		s, _ := h.signal()
		switch {
		case s.code == sigHello && f.hello.code == 0:
			f.hello = s
		case s.code == sigCookie:
			f.cookie = s
		}
		if s.asks() && f.request.code == 0 {
			f.request = s
		}
		packet = packet[headerSize+len(payload):]
	}
	if old {
		f.push, f.hello = false, signal{}
	}
	return f, true
}

// stranger deals with a packet for which there is no session. It returns the
// session, if it has opened one, or the packet is that of a peer which moves.
func (e *Endpoint) handleUnknown(key sessionKey, d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	f, ok := parseInitial(p)
	if f.hello.code == 0 { // who says hello begins anew, be it with a conv in use
		if moving := e.migrationCandidates(key, p.kind); moving[0] != nil {
			return moving.take(d, p, now)
		}
	}
	if !e.protection.replays.IsNew(e.protection.mark(p)) {
		e.counters.dropReplay.Add(1)
		return nil
	}
	if !ok {
		e.counters.dropUnknown.Add(1)
		return nil
	}
	c, evicted := e.admit(key, d, p, f, now)
	if evicted != nil {
		evicted.fail(ErrReset)
	}
	if c == nil {
		e.protection.replays.Take(e.protection.mark(p)) // else the session takes note of it
	}
	return c
}

// admit opens a session for the first packet of a conversation, or replies to
// it as befits. It may also return a session that has to make room.
func (e *Endpoint) admit(key sessionKey, d *udp.Datagram, p *inPacket, f initialPacket, now time.Duration) (c, evicted *Conn) {
	e.mu.Lock()
	v := e.judgeLocked(key, d, p, f, now)
	e.mu.Unlock()
	if !v.opens {
		return v.session, nil
	}
	// What the caller's Config brings along runs without the lock.
	c = e.accepted(key, d, p, f.hello, v.validated)
	remote := c.path.remote // which may change as soon as others know c
	e.mu.Lock()
	switch other := e.table.sessions[key]; {
	case other != nil: // another reader was faster
		e.mu.Unlock()
		return other, v.evicted
	case e.closed || e.listener != v.listener || len(e.table.sessions) >= e.config.MaxSessions:
		e.mu.Unlock()
		return nil, v.evicted
	}
	if !v.validated {
		e.load.halfOpen.Add(1)
		e.pruneUnvalidatedLocked()
		e.table.unvalidated = append(e.table.unvalidated, c)
	}
	e.addLocked(c)
	e.mu.Unlock()
	e.debug("session opened", remote, key.conv)
	if !c.begin(now, v.listener, e.offersAtOnce(f, v.validated)) {
		return nil, v.evicted
	}
	return c, v.evicted
}

// offersAtOnce reports whether a session goes to Accept as it is opened. Others
// go there when the peer confirms that it has our WELCOME. With an
// authenticating cipher all peers that say hello have to: a HELLO and the data
// beside it may come from two addresses, so only one of two sessions may be read.
func (e *Endpoint) offersAtOnce(f initialPacket, validated bool) bool {
	if e.protection.authentic && f.hello.code != 0 {
		return false
	}
	return validated || f.push && !e.refusesLegacy()
}

// verdict is what judgeLocked decides about the first packet of a conversation.
type verdict struct {
	session   *Conn // of that key; nil: none
	opens     bool  // a session is to be opened
	validated bool  // the packet shows that the peer gets what is sent to its address
	listener  *Listener
	evicted   *Conn // has to make room
}

// judgeLocked decides about the first packet of a conversation, and replies to
// it if no session is to be opened. Endpoint.mu is held.
func (e *Endpoint) judgeLocked(key sessionKey, d *udp.Datagram, p *inPacket, f initialPacket, now time.Duration) (v verdict) {
	if v.session = e.table.sessions[key]; v.session != nil {
		return v
	}
	if g, ok := e.timeWaitForLocked(key, f, now); ok {
		e.counters.dropEnded.Add(1)
		e.replyInTimeWaitLocked(g, key, d, f, p)
		return v
	}
	v.listener = e.listener
	opening := f.hello.code != 0 || f.push && !e.refusesLegacy() && !e.convInUseElsewhereLocked(key.conv)
	switch {
	case e.closed:
		return v
	case v.listener == nil || !opening:
		e.counters.dropUnknown.Add(1)
		if f.request.code != 0 && (v.listener == nil || f.hello.code == 0) {
			e.replyLocked(d, header{conv: key.conv}, signal{sigReset, f.request.sn, f.request.ts})
		}
		return v
	}
	if f.hello.code != 0 && (f.cookie.code != 0 || e.wantsCookiesLocked(key)) {
		// A cookie that nobody needs may be one that somebody else has forged.
		if v.validated = e.replies.cookies.valid(key, f, now); !v.validated && e.wantsCookiesLocked(key) {
			if e.mayReplyLocked(&e.replies.cookieBudget, cookieRate) { // else the cookie would be made for nothing
				e.counters.cookiesSent.Add(1)
				e.putReplyLocked(d, header{conv: key.conv}, e.replies.cookies.mint(key, f.hello.ts, now))
			}
			return v
		}
	}
	switch full := len(e.table.sessions) >= e.config.MaxSessions; {
	case full || e.atAddressLimitLocked(key, v.validated):
		e.counters.dropSessions.Add(1)
		if f.hello.code != 0 && (full || v.validated) {
			e.replyLocked(d, header{conv: key.conv}, signal{sigReset, f.hello.sn, f.hello.ts})
		}
		return v
	case v.listener.full(v.validated || f.hello.code != 0): // who says hello is offered once validated
		e.counters.dropBacklog.Add(1)
		return v
	}
	if !v.validated && int(e.load.halfOpen.Load()) >= e.config.MaxHalfOpen {
		if v.evicted = e.oldestHalfOpenLocked(now); v.evicted == nil {
			e.counters.dropHalfOpen.Add(1)
			return v
		}
	}
	v.opens = true
	return v
}

// accepted makes a session for a peer.
func (e *Endpoint) accepted(key sessionKey, d *udp.Datagram, p *inPacket, hello signal, validated bool) *Conn {
	c := newConn(e, key, source{d.Addr, d.Peer}.netAddr())
	c.hs.openedFEC = p.kind == fecPacket
	if hello.code != 0 {
		c.takeHello(hello) // before anybody else knows c
	}
	if !validated {
		c.hs.unvalidated.Store(true)
		room := c.outgoing.sender.overhead
		if !c.hs.openedFEC {
			room.fecHead = 0
		}
		c.kcp.limitUnvalidated(room.total(), hello.code == 0)
	}
	return c
}

// refusesLegacy reports whether only peers with signals may open sessions. The
// first packets of others may have been recorded at any time, which makes the
// promise of an authenticating cipher void.
func (e *Endpoint) refusesLegacy() bool {
	return e.config.RefuseLegacy || e.protection.authentic && !e.config.AllowLegacy
}

// wantsCookiesLocked reports whether a hello has to show a cookie: always, while
// half of the half-open sessions or of all sessions exist, or when its network
// has as many sessions as it may. Endpoint.mu is held.
func (e *Endpoint) wantsCookiesLocked(key sessionKey) bool {
	return e.config.AddressValidation == ValidateAlways ||
		int(e.load.halfOpen.Load()) >= (e.config.MaxHalfOpen+1)/2 ||
		len(e.table.sessions) >= (e.config.MaxSessions+1)/2 ||
		e.atAddressLimitLocked(key, false)
}
