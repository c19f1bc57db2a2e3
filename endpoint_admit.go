package kcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Admission: what an endpoint does with packets that belong to no session. Who
// sends them is not known yet, so everything here is bounded: sessions whose
// peer is not proven to exist, memory, and the rate and size of replies.

// first is what the first packet of a conversation says.
type first struct {
	data    bool   // it has data,
	push    bool   // the first of all
	hello   signal // of no code where there is none, as those below
	cookie  signal
	request signal // the first signal that asks for an answer
}

// inspect reads a packet of an unknown conversation. ok is false where it is
// not well-formed to its end. Data opens a session only if it has the very first
// segment: from what follows nobody can tell a conversation that begins from
// one that the peer has gone on with, while it was forgotten here.
func inspect(p *opened) (f first, ok bool) {
	packet, ok := p.segments()
	if !ok {
		return f, false
	}
	old := false // it acknowledges something, so it is not from the beginning
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, ok := h.payload(packet[headerSize:])
		if !ok || h.conv != p.conv || !knownCmd(h.cmd) && h.cmd != cmdPiece {
			return first{}, false
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
func (e *Endpoint) stranger(key sessionKey, d *udp.Datagram, p *opened, now time.Duration) *Conn {
	f, ok := inspect(p)
	if f.hello.code == 0 { // who says hello begins anew, be it with a conv in use
		if moving := e.moving(key, p.kind); moving[0] != nil {
			return moving.take(d, p, now)
		}
	}
	if e.replays.knows(p) {
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
		e.replays.seen(p) // else the session takes note of it
	}
	return c
}

// admit opens a session for the first packet of a conversation, or replies to
// it as befits. It may also return a session that has to make room.
func (e *Endpoint) admit(key sessionKey, d *udp.Datagram, p *opened, f first, now time.Duration) (c, evicted *Conn) {
	e.mu.Lock()
	v := e.judgeLocked(key, d, p, f, now)
	e.mu.Unlock()
	if !v.opens {
		return v.session, nil
	}
	// What the caller's Config brings along runs without the lock.
	c = e.accepted(key, d, p, f.hello, v.validated)
	remote := c.remote // which may change as soon as others know c
	e.mu.Lock()
	switch other := e.sessions[key]; {
	case other != nil: // another reader was faster
		e.mu.Unlock()
		return other, v.evicted
	case e.closed || e.listener != v.listener || len(e.sessions) >= e.config.MaxSessions:
		e.mu.Unlock()
		return nil, v.evicted
	}
	if !v.validated {
		e.halfOpen.Add(1)
		e.tidyLocked()
		e.unproven = append(e.unproven, c)
	}
	e.enterLocked(c)
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
func (e *Endpoint) offersAtOnce(f first, validated bool) bool {
	if e.authentic && f.hello.code != 0 {
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
func (e *Endpoint) judgeLocked(key sessionKey, d *udp.Datagram, p *opened, f first, now time.Duration) (v verdict) {
	if v.session = e.sessions[key]; v.session != nil {
		return v
	}
	if g, ok := e.graveFor(key, f, now); ok {
		e.counters.dropEnded.Add(1)
		e.replyFromGrave(g, key, d, f, p)
		return v
	}
	v.listener = e.listener
	opening := f.hello.code != 0 || f.push && !e.refusesLegacy() && !e.elsewhere(key.conv)
	switch {
	case e.closed:
		return v
	case v.listener == nil || !opening:
		e.counters.dropUnknown.Add(1)
		if f.request.code != 0 && (v.listener == nil || f.hello.code == 0) {
			e.reply(d, header{conv: key.conv}, signal{sigReset, f.request.sn, f.request.ts})
		}
		return v
	}
	if f.hello.code != 0 && (f.cookie.code != 0 || e.wantsCookiesLocked(key)) {
		// A cookie that nobody needs may be one that somebody else has forged.
		if v.validated = e.cookies.valid(key, f, now); !v.validated && e.wantsCookiesLocked(key) {
			if e.mayReply(&e.cookieBudget, cookieRate) { // else the cookie would be made for nothing
				e.counters.cookiesSent.Add(1)
				e.putReply(d, header{conv: key.conv}, e.cookies.bake(key, f.hello.ts, now))
			}
			return v
		}
	}
	switch full := len(e.sessions) >= e.config.MaxSessions; {
	case full || e.crowdedLocked(key, v.validated):
		e.counters.dropSessions.Add(1)
		if f.hello.code != 0 && (full || v.validated) {
			e.reply(d, header{conv: key.conv}, signal{sigReset, f.hello.sn, f.hello.ts})
		}
		return v
	case v.listener.full(v.validated || f.hello.code != 0): // who says hello is offered once validated
		e.counters.dropBacklog.Add(1)
		return v
	}
	if !v.validated && int(e.halfOpen.Load()) >= e.config.MaxHalfOpen {
		if v.evicted = e.oldestHalfOpenLocked(now); v.evicted == nil {
			e.counters.dropHalfOpen.Add(1)
			return v
		}
	}
	v.opens = true
	return v
}

// accepted makes a session for a peer.
func (e *Endpoint) accepted(key sessionKey, d *udp.Datagram, p *opened, hello signal, validated bool) *Conn {
	c := newConn(e, key, origin{d.Addr, d.Peer}.netAddr())
	c.openedFEC = p.kind == fecPacket
	if hello.code != 0 {
		c.takeHello(hello) // before anybody else knows c
	}
	if !validated {
		c.unproven.Store(true)
		room := c.outgoing.sender.room
		if !c.openedFEC {
			room.fecHead = 0
		}
		c.kcp.validation = &addressValidation{overhead: room.total(), begun: c.kcp.now}
		if hello.code == 0 {
			c.kcp.validation.unacked = ackAfter
		}
	}
	return c
}

// begin lets an accepted session live, and hands it to l if offered. It reports
// false if the session has ended, because l has no room for it or otherwise.
func (c *Conn) begin(now time.Duration, l *Listener, offered bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateEnded {
		return false
	}
	if offered {
		c.offered = l.offer(c, !c.unproven.Load())
		if !c.offered && c.life.kind != peerOurs { // who is ours asks again
			c.ep.counters.dropBacklog.Add(1)
			c.forget(ErrRefused)
			return false
		}
	}
	c.schedule(now)
	return true
}

// enterLocked adds a session to the tables. Endpoint.mu is held.
func (e *Endpoint) enterLocked(c *Conn) {
	e.sessions[c.key] = c
	e.population.Store(int32(len(e.sessions)))
	e.enterConv(c)
	if e.perNetwork != nil {
		n := e.perNetwork[networkOf(c.key)]
		n.add(c, 1)
		e.perNetwork[networkOf(c.key)] = n
	}
}

// exitLocked takes it out of them again. Endpoint.mu is held.
func (e *Endpoint) exitLocked(c *Conn) {
	delete(e.sessions, c.key)
	e.population.Store(int32(len(e.sessions)))
	e.exitConv(c)
	if e.perNetwork != nil {
		network := networkOf(c.key)
		n := e.perNetwork[network]
		n.add(c, -1)
		if e.perNetwork[network] = n; n == (networkCount{}) {
			delete(e.perNetwork, network)
		}
	}
	if c.coded {
		key := c.key
		key.conv = 0
		rest := slices.DeleteFunc(e.coded[key], func(other *Conn) bool { return other == c })
		if e.coded[key] = rest; len(rest) == 0 {
			delete(e.coded, key)
		}
	}
}

// networkCount is how many sessions there are with one network.
type networkCount struct {
	validated int32 // dialled ones included
	pending   int32 // the peer's address is not validated
}

// add counts c n times.
func (n *networkCount) add(c *Conn, times int32) {
	if c.counted {
		n.validated += times
	} else {
		n.pending += times
	}
}

// networkOf returns the network that a session counts for: the IPv4 address, or
// the /64 of the IPv6 address, since each subscriber has as many addresses.
func networkOf(key sessionKey) netip.Addr {
	addr := key.addr.Addr().Unmap()
	if !addr.Is6() {
		return addr
	}
	prefix, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return addr
	}
	return prefix.Addr()
}

// crowdedLocked reports whether the network of key has all the sessions that it
// may have. Those that others may have opened in its name count only against
// others that are not validated either.
func (e *Endpoint) crowdedLocked(key sessionKey, validated bool) bool {
	if e.perNetwork == nil {
		return false
	}
	n := e.perNetwork[networkOf(key)]
	if validated {
		return int(n.validated) >= e.config.MaxSessionsPerAddress
	}
	return int(n.validated+n.pending) >= e.config.MaxSessionsPerAddress
}

// elsewhere reports whether the conversation is that of a session with a peer
// that says hello, at another address. Such a peer draws its conversation ids at
// random, so it is the same one, and has moved where it may not: nobody could
// tell whether what it repeats has been delivered. The same goes for sessions
// that have ended: only who has recorded one sends its packets. mu is held.
func (e *Endpoint) elsewhere(conv uint32) bool {
	for c := e.byConv[conv]; c != nil; c = c.sameConv {
		if c.greeted.Load() {
			return true
		}
	}
	return e.graves.used.has(conv)
}

// refusesLegacy reports whether only peers with signals may open sessions. The
// first packets of others may have been recorded at any time, which makes the
// promise of an authenticating cipher void.
func (e *Endpoint) refusesLegacy() bool {
	return e.config.RefuseLegacy || e.authentic && !e.config.AllowLegacy
}

// wantsCookiesLocked reports whether a hello has to show a cookie: always, while
// half of the half-open sessions or of all sessions exist, or when its network
// has as many sessions as it may. Endpoint.mu is held.
func (e *Endpoint) wantsCookiesLocked(key sessionKey) bool {
	return e.config.AddressValidation == ValidateAlways ||
		int(e.halfOpen.Load()) >= (e.config.MaxHalfOpen+1)/2 ||
		len(e.sessions) >= (e.config.MaxSessions+1)/2 ||
		e.crowdedLocked(key, false)
}

// evictAfter is the age at which an unproven session may have to make room, and
// evictLooks how many are looked at to find one.
const (
	evictAfter = 3 * time.Second
	evictLooks = 16
)

// oldestHalfOpenLocked returns the oldest unproven session, if its time is over,
// and nothing has come from its peer since it was looked at last (the CLOCK
// algorithm). Endpoint.mu is held.
func (e *Endpoint) oldestHalfOpenLocked(now time.Duration) *Conn {
	for looks := 0; len(e.unproven) > 0 && looks < evictLooks; looks++ {
		c := e.unproven[0]
		switch {
		case e.sessions[c.key] != c || !c.unproven.Load():
			looks--
		case now-c.born < evictAfter:
			return nil
		case c.active.Swap(false):
			e.unproven = append(e.unproven, c)
		default:
			e.unproven = e.unproven[1:]
			return c
		}
		e.unproven[0] = nil
		e.unproven = e.unproven[1:]
	}
	return nil
}

// tidyLocked drops proven sessions from the list of the unproven, when they are
// many. Endpoint.mu is held.
func (e *Endpoint) tidyLocked() {
	if len(e.unproven) <= 2*int(e.halfOpen.Load())+16 {
		return
	}
	kept := e.unproven[:0]
	for _, c := range e.unproven {
		if c.unproven.Load() {
			kept = append(kept, c)
		}
	}
	clear(e.unproven[len(kept):])
	e.unproven = kept
}

// prove notes that the peer gets what is sent to its address: the address is
// validated, and the anti-amplification limit is lifted.
func (c *Conn) prove() {
	if !c.unproven.CompareAndSwap(true, false) {
		return
	}
	c.ep.halfOpen.Add(-1)
	c.kcp.validated()
	if c.life.kind == peerUnknown {
		c.life.kind = peerLegacy // may yet be put right by a hello
	}
	if !c.ep.countValidated(c) {
		c.ending = ErrReset
	}
}

// countValidated counts a session whose peer's address has been validated. It
// reports false if its network has all the sessions that it may have.
func (e *Endpoint) countValidated(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.perNetwork == nil || e.sessions[c.key] != c {
		return true
	}
	network := networkOf(c.key)
	n := e.perNetwork[network]
	n.add(c, -1)
	c.counted = true
	n.add(c, 1)
	e.perNetwork[network] = n
	return int(n.validated) <= e.config.MaxSessionsPerAddress
}

// offer hands an accepted session to Accept, once. It is false where there is
// no room.
func (c *Conn) offer() bool {
	if c.offered {
		return true
	}
	c.ep.mu.RLock()
	l := c.ep.listener
	c.ep.mu.RUnlock()
	if l == nil {
		c.ending = ErrRefused
		return false
	}
	c.offered = l.offer(c, true)
	return c.offered
}

// handedOn reports whether the session was offered to Accept, or dialled.
func (c *Conn) handedOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offered
}

// cookieKey makes and checks cookies, which prove that a peer gets what is sent
// to its address without any state being kept for it.
type cookieKey struct {
	mac  hash.Hash // of a secret; nil before the first use
	text []byte
}

// cookieTime is how long a cookie is good for, at least; at most twice as long.
const cookieTime = 10 * time.Second

// bake returns the cookie for a hello.
func (k *cookieKey) bake(key sessionKey, token uint32, now time.Duration) signal {
	return k.at(key, token, int64(now/cookieTime))
}

func (k *cookieKey) at(key sessionKey, token uint32, period int64) signal {
	if k.mac == nil {
		var secret [32]byte
		_, _ = rand.Read(secret[:]) // cannot fail
		k.mac = hmac.New(sha256.New, secret[:])
	}
	text := binary.LittleEndian.AppendUint64(k.text[:0], uint64(period))
	text = binary.LittleEndian.AppendUint32(text, key.conv)
	text = binary.LittleEndian.AppendUint32(text, token)
	text = binary.LittleEndian.AppendUint16(text, key.addr.Port())
	ip := key.addr.Addr().As16()
	text = append(append(append(text, ip[:]...), key.addr.Addr().Zone()...), key.peer...)
	k.mac.Reset()
	k.mac.Write(text)
	k.text = k.mac.Sum(text[:0])
	tag := k.text
	return signal{sigCookie, binary.LittleEndian.Uint32(tag), binary.LittleEndian.Uint32(tag[4:])}
}

// valid reports whether the first packet f shows a cookie of ours.
func (k *cookieKey) valid(key sessionKey, f first, now time.Duration) bool {
	if f.cookie.code == 0 {
		return false
	}
	period := int64(now / cookieTime)
	return f.cookie == k.at(key, f.hello.ts, period) || f.cookie == k.at(key, f.hello.ts, period-1)
}

// Limits of replies to those who have no session, a second. Cookies have a share
// of their own: nobody who floods with questions keeps others from opening
// sessions.
const (
	replyRate  = 2000
	cookieRate = 10000
)

// reply sends signals to where d came from, outside any session, with what h
// says of conv and una. What provoked it had at least as many segments, so the
// reply is never larger. Endpoint.mu is held.
func (e *Endpoint) reply(d *udp.Datagram, h header, signals ...signal) {
	if e.mayReply(&e.replies, replyRate) {
		e.putReply(d, h, signals...)
	}
}

// mayReply takes one of the replies that are allowed. Endpoint.mu is held.
func (e *Endpoint) mayReply(b *bucket, rate float64) bool {
	ok := b.take(e.now(), rate)
	if !ok {
		e.counters.dropReplies.Add(1)
	}
	return ok
}

// putReply is reply for one that is allowed. It is sealed when it is sent.
func (e *Endpoint) putReply(d *udp.Datagram, h header, signals ...signal) {
	e.putNumbered(d, nil, h, signals...)
}

// putNumbered is putReply in the name of a session that numbers its packets. mu
// is held.
func (e *Endpoint) putNumbered(d *udp.Datagram, n *packetNumbers, h header, signals ...signal) {
	room := e.config.overhead()
	p := e.packet(room.cipherHead + len(signals)*headerSize + room.tail)
	for i, s := range signals {
		s.encode(h, p.buf[room.cipherHead+i*headerSize:])
	}
	e.outbox = append(e.outbox, p)
	e.outboxNumbers = append(e.outboxNumbers, n)
	e.outboxTo = append(e.outboxTo, udp.Datagram{Buf: p.buf, Addr: d.Addr, Peer: d.Peer})
}

// sendReplies writes what reply has put out. The readers call it.
func (e *Endpoint) sendReplies(shard int) {
	e.mu.RLock()
	none := len(e.outbox) == 0
	e.mu.RUnlock()
	if none {
		return
	}
	e.mu.Lock()
	packets, batch, numbers := e.outbox, e.outboxTo, e.outboxNumbers
	e.outbox, e.outboxTo, e.outboxNumbers = nil, nil, nil
	e.mu.Unlock()
	sealed := batch[:0]
	for i, d := range batch {
		if e.seal(d.Buf, numbers[i]) == nil {
			sealed = append(sealed, d)
		}
	}
	e.send(shard, packets, sealed)
}

// bucket is a token bucket, which holds what a tenth of a second brings. The
// zero value is full.
type bucket struct {
	used float64
	last time.Duration
}

// take takes one of rate tokens a second.
func (b *bucket) take(now time.Duration, rate float64) bool {
	b.used = max(0, b.used-(now-b.last).Seconds()*rate)
	b.last = now
	if b.used >= rate/10 {
		return false
	}
	b.used++
	return true
}

// refused ends the sessions that wait for a first answer, or for nothing but the
// last one, after the system has reported that nobody listens where the socket
// is connected to.
func (e *Endpoint) refused(err error) {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return
	}
	e.mu.RLock()
	var waiting []*Conn
	if e.connected {
		waiting = slices.Collect(maps.Values(e.sessions))
	}
	e.mu.RUnlock()
	for _, c := range waiting {
		c.mu.Lock()
		switch {
		case !c.life.reached && c.life.hello.active:
			c.end(ErrRefused)
		case c.state == stateLingering && c.kcp.WaitSend() == 0:
			c.end(nil)
		}
		c.mu.Unlock()
	}
}
