package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
)

// Admission: how an endpoint treats packets that belong to no session. Their
// sender is unknown, so everything here is bounded: the sessions whose peers'
// addresses are not validated (RFC 9000 §8), memory, and the rate and size of
// replies.

// initialPacket is the content of the first packet of a conversation.
type initialPacket struct {
	data    bool   // it contains a PUSH or PIECE
	push    bool   // it contains the PUSH with sn 0, and acknowledges nothing
	hello   signal // code 0: none; the same below
	cookie  signal
	info    signal
	request signal // the first signal that wants an answer
	crypto  bool   // it contains a CRYPTO segment, as those of peers with TLS do
}

// parseInitial parses a packet of an unknown conversation. ok is false if the
// packet is not well-formed to its end.
//
// Data opens a session only if it includes the very first segment. Later
// segments cannot show whether a conversation begins, or the peer continues one
// that this endpoint has forgotten.
func parseInitial(p *inPacket) (f initialPacket, ok bool) {
	packet, ok := p.segments()
	if !ok {
		return f, false
	}
	old := false // it acknowledges something, so the conversation did not begin with it
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, ok := h.payload(packet[headerSize:])
		if !ok || h.conv != p.conv || !knownCmd(h.cmd) && h.cmd != cmdPiece && !streamCmd(h.cmd) {
			return initialPacket{}, false
		}
		old = old || h.una != 0 || h.cmd == cmdAck
		f.data = f.data || h.cmd == cmdPush || h.cmd == cmdPiece || streamCmd(h.cmd)
		f.push = f.push || (h.cmd == cmdPush && h.sn == 0)
		f.crypto = f.crypto || h.cmd == cmdWins && signalCode(h.frg) == sigCrypto
		s, _ := h.signal()
		switch {
		case s.code == sigHello && f.hello.code == 0:
			f.hello = s
		case s.code == sigCookie:
			f.cookie = s
		case s.code == sigInfo && f.info.code == 0:
			f.info = s
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

// handleUnknown handles a packet for which there is no session. It returns the
// session that the packet has opened, or the one that has migrated to the
// packet's address.
func (e *Endpoint) handleUnknown(key sessionKey, d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	switch p.kind {
	case clearPacket:
		return e.openUnknown(key, d, p, now)
	case handshakePacket, sealedPacket:
		return e.sealedUnknown(key, d, p, now)
	}
	f, ok := parseInitial(p)
	moving := e.migrationCandidates(key, p.kind)
	if moving[0] != nil && f.hello.code == 0 {
		return moving.take(d, p, now)
	}
	if e.outside.Fresh(&p.Packet, false) != protect.New {
		e.counters.dropReplay.Add(1)
		return nil
	}
	if !ok {
		e.counters.dropUnknown.Add(1)
		return nil
	}
	if f.hello.code != 0 && moving.welcome(d, p, f.hello) {
		e.outside.Fresh(&p.Packet, true)
		return nil
	}
	c, evicted := e.admit(key, d, p, f, now)
	if evicted != nil {
		evicted.fail(ErrReset)
	}
	if c == nil {
		e.outside.Fresh(&p.Packet, true) // otherwise the session records it
	}
	return c
}

// admit opens a session for the first packet of a conversation, or sends the
// stateless reply that it calls for. evicted, if not nil, is a half-open
// session that must end to make room.
func (e *Endpoint) admit(key sessionKey, d *udp.Datagram, p *inPacket, f initialPacket, now time.Duration) (c, evicted *Conn) {
	e.mu.Lock()
	v := e.judgeLocked(key, d, p, f, now)
	e.mu.Unlock()
	if !v.opens {
		return v.session, nil
	}
	var initial *packetkeys.Initial
	if e.config.TLS != nil {
		if initial = e.openFirst(p, f); initial == nil {
			return nil, nil
		}
	}
	// It calls Config.CongestionControl, the caller's own code: not under the
	// lock.
	remote := p.from.netAddr()
	c = newAccepted(e, key, remote, p, f, initial, v.validated)
	e.mu.Lock()
	switch other := e.table.Get(key); {
	case other != nil: // another reader has opened the session first
		e.mu.Unlock()
		return other, v.evicted
	case e.closed || e.listener != v.listener || e.table.Len() >= e.config.MaxSessions:
		e.mu.Unlock()
		return nil, v.evicted
	}
	if !v.validated {
		e.load.halfOpen.Add(1)
		e.table.AddHalfOpen(c, int(e.load.halfOpen.Load()), (*Conn).halfOpen)
	} else {
		e.table.SetValidated(c)
	}
	e.table.SetShaking(c, initial != nil)
	e.addLocked(c)
	e.table.tally.accepted++
	e.mu.Unlock()
	unbegun := c
	defer discardIfUnwound(&unbegun)
	e.debug("session opened", remote, key.Conv)
	began := c.begin(now, v.listener, e.offersAtOnce(f, v.validated))
	if unbegun = nil; !began {
		return nil, v.evicted
	}
	return c, v.evicted
}

// offersAtOnce reports whether a session goes to Accept as soon as it is
// opened. Otherwise it goes there when the peer confirms our WELCOME.
//
// With an authenticating cipher every HELLO has to be confirmed: a HELLO and
// the data beside it may come from two addresses, and then only one of the two
// sessions may be read.
func (e *Endpoint) offersAtOnce(f initialPacket, validated bool) bool {
	if e.protection.Authentic && f.hello.code != 0 {
		return false
	}
	return validated || f.push && !e.refusesLegacy()
}

// evictAfter is the age from which an unvalidated session may be ended to make
// room.
const evictAfter = 3 * time.Second

// verdict is the decision of judgeLocked on the first packet of a conversation.
type verdict struct {
	session   *Conn     // the existing session of that key; nil: none
	opens     bool      // a session is to be opened
	validated bool      // the packet validates the peer's address: it shows a cookie
	listener  *Listener // the endpoint's; nil: none
	evicted   *Conn     // half-open session to end, to make room; nil: none
}

// judgeLocked decides on the first packet of a conversation. If no session is
// to be opened, it queues the reply, if any: an acknowledgement in TIME-WAIT, a
// COOKIE, or a RESET (stateless reset, RFC 9000 §10.3). Endpoint.mu is held.
func (e *Endpoint) judgeLocked(key sessionKey, d *udp.Datagram, p *inPacket, f initialPacket, now time.Duration) (v verdict) {
	if v.session = e.table.Get(key); v.session != nil {
		return v
	}
	if tw, ok := e.timeWaitForLocked(key, f, now); ok {
		e.counters.dropEnded.Add(1)
		e.replyInTimeWaitLocked(tw, key, d, f, p)
		return v
	}
	v.listener = e.listener
	opening := f.hello.code != 0 || f.push && !e.refusesLegacy() && !e.convInUseElsewhereLocked(key.Conv)
	switch {
	case e.closed:
		return v
	case v.listener == nil || !opening:
		e.counters.dropUnknown.Add(1)
		if f.request.code != 0 && (v.listener == nil || f.hello.code == 0) {
			e.replyLocked(d, header{conv: key.Conv}, signal{sigReset, f.request.sn, f.request.ts})
		}
		return v
	}
	if e.refuseTLSLocked(d, key.Conv, f) {
		return v
	}
	if f.hello.code != 0 && (f.cookie.code != 0 || e.wantsCookiesLocked(key)) {
		// A third party may have forged a cookie that was not asked for. So an
		// invalid one counts only if one is wanted.
		if v.validated = e.showsCookieLocked(key, f, now); !v.validated && e.wantsCookiesLocked(key) {
			e.askCookieLocked(key, d, f, now)
			return v
		}
	}
	switch full := e.table.Len() >= e.config.MaxSessions; {
	case full || e.atAddressLimitLocked(key, v.validated):
		e.counters.dropSessions.Add(1)
		if f.hello.code != 0 && (full || v.validated) {
			e.replyLocked(d, header{conv: key.Conv}, signal{sigReset, f.hello.sn, f.hello.ts})
		}
		return v
	case f.hello.code != 0 && !e.mayShakeLocked(key): // the peer repeats HELLO
		e.counters.dropHandshake.Add(1)
		return v
	case v.listener.full(v.validated || f.hello.code != 0): // a session opened by HELLO is offered once it is validated
		e.counters.dropBacklog.Add(1)
		return v
	}
	if !v.validated && int(e.load.halfOpen.Load()) >= e.config.MaxHalfOpen {
		if v.evicted = e.table.OldestHalfOpen(func(c *Conn) admission.Look { return c.evictable(now) }); v.evicted == nil {
			e.counters.dropHalfOpen.Add(1)
			return v
		}
	}
	v.opens = true
	return v
}

// showsCookieLocked reports whether a HELLO comes with the cookie of its address.
// Endpoint.mu is held.
func (e *Endpoint) showsCookieLocked(key sessionKey, f initialPacket, now time.Duration) bool {
	return f.cookie.code != 0 && e.replies.cookies.Valid(admission.Cookie{f.cookie.sn, f.cookie.ts}, key, f.hello.ts, now)
}

// askCookieLocked answers a HELLO by the cookie of its address. Endpoint.mu is held.
func (e *Endpoint) askCookieLocked(key sessionKey, d *udp.Datagram, f initialPacket, now time.Duration) {
	if e.mayReplyLocked(&e.replies.cookieBudget, cookieRate) { // before the cost of the MAC
		e.counters.cookiesSent.Add(1)
		cookie := e.replies.cookies.Mint(key, f.hello.ts, now)
		e.putReplyLocked(d, header{conv: key.Conv}, signal{sigCookie, cookie[0], cookie[1]})
	}
}

// refusesLegacy reports whether only extended peers may open sessions. An
// attacker can replay the recorded first packets of a legacy session at any
// time, which would void what an authenticating cipher promises.
func (e *Endpoint) refusesLegacy() bool { return refusesLegacy(&e.config, e.protection) }

// refusesLegacy is Endpoint.refusesLegacy of a configuration.
func refusesLegacy(c *Config, scheme *protect.Scheme) bool {
	switch c.LegacyPeers {
	case LegacyAllow:
		return false
	case LegacyRefuse:
		return true
	}
	return scheme.Authentic
}

// wantsCookiesLocked reports whether a HELLO needs a cookie (address
// validation, RFC 9000 §8.1). It always does with ValidateAlways. Otherwise it
// does under pressure: when half of MaxHalfOpen or of MaxSessions is reached,
// or the network of key has as many sessions as it may. With TLS an eighth of
// MaxHalfOpen is enough, as handshakes take much more. Endpoint.mu is held.
func (e *Endpoint) wantsCookiesLocked(key sessionKey) bool {
	if e.config.TLS != nil && int(e.load.halfOpen.Load()) >= (e.config.MaxHalfOpen+7)/8 {
		return true
	}
	return e.config.AddressValidation == ValidateAlways ||
		int(e.load.halfOpen.Load()) >= (e.config.MaxHalfOpen+1)/2 ||
		e.table.Len() >= (e.config.MaxSessions+1)/2 ||
		e.atAddressLimitLocked(key, false)
}
