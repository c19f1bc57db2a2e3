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
func inspect(p opened) (f first, ok bool) {
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
func (e *Endpoint) stranger(key sessionKey, d *udp.Datagram, p opened, now time.Duration) *Conn {
	f, ok := inspect(p)
	if f.hello.code == 0 { // who says hello begins anew, be it with a conv in use
		if moving := e.moving(key, p.kind); moving[0] != nil {
			return moving.take(d, &p, now)
		}
	}
	if e.replays.knows(&p) {
		e.counters.dropReplay.Add(1)
		return nil
	}
	if !ok {
		e.counters.dropUnknown.Add(1)
		return nil
	}
	c, evicted := e.admit(key, d, f, p, now)
	if evicted != nil {
		evicted.fail(ErrReset)
	}
	if c == nil {
		e.replays.seen(&p) // else the session takes note of it
	}
	return c
}

// admit opens a session for the first packet of a conversation, or replies to
// it as befits. It may also return a session that has to make room.
func (e *Endpoint) admit(key sessionKey, d *udp.Datagram, f first, p opened, now time.Duration) (c, evicted *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.sessions[key]; c != nil {
		return c, nil
	}
	if g, ok := e.graveFor(key, f, now); ok {
		e.counters.dropEnded.Add(1)
		e.replyFromGrave(g, key, d, f, &p)
		return nil, nil
	}
	l := e.listener
	opening := f.hello.code != 0 || f.push && !e.refusesLegacy() && !e.elsewhere(key.conv)
	switch {
	case e.closed:
		return nil, nil
	case l == nil || !opening:
		e.counters.dropUnknown.Add(1)
		if f.request.code != 0 && (l == nil || f.hello.code == 0) {
			e.reply(d, header{conv: key.conv}, signal{sigReset, f.request.sn, f.request.ts})
		}
		return nil, nil
	case len(e.sessions) >= e.config.MaxSessions, e.crowded(key.addr.Addr()):
		e.counters.dropSessions.Add(1)
		return nil, nil
	case l.full():
		e.counters.dropBacklog.Add(1)
		return nil, nil
	}
	proven := false
	if f.hello.code != 0 && (f.cookie.code != 0 || e.wantsCookies()) {
		if proven = e.cookies.valid(key, f, now); !proven {
			if e.mayReply() { // else the cookie would be made for nothing
				e.counters.cookiesSent.Add(1)
				e.putReply(d, header{conv: key.conv}, e.cookies.bake(key, f.hello.ts, now))
			}
			return nil, nil
		}
	}
	if !proven && int(e.halfOpen.Load()) >= e.config.MaxHalfOpen {
		if evicted = e.oldestHalfOpen(now); evicted == nil {
			e.counters.dropHalfOpen.Add(1)
			return nil, nil
		}
	}
	c = e.accept(key, d, f.hello, proven)
	if proven || f.push && !e.refusesLegacy() {
		c.offered = l.offer(c) // there was room
	}
	return c, evicted
}

// accept makes a session for a peer. mu is held.
func (e *Endpoint) accept(key sessionKey, d *udp.Datagram, hello signal, proven bool) *Conn {
	remote := origin{d.Addr, d.Peer}.netAddr()
	c := newConn(e, key, remote, d.Peer)
	if hello.code != 0 {
		c.takeHello(hello) // before anybody else knows c
	}
	if !proven {
		c.unproven.Store(true)
		e.halfOpen.Add(1)
		e.tidy()
		e.unproven = append(e.unproven, c)
	}
	e.enter(c)
	e.debug("session opened", remote, key.conv)
	return c
}

// enter adds a session to the tables. mu is held.
func (e *Endpoint) enter(c *Conn) {
	e.sessions[c.key] = c
	e.population.Store(int32(len(e.sessions)))
	e.enterConv(c)
	if e.perAddress != nil {
		e.perAddress[c.key.addr.Addr()]++
	}
}

// exit takes it out of them again. mu is held.
func (e *Endpoint) exit(c *Conn) {
	delete(e.sessions, c.key)
	e.population.Store(int32(len(e.sessions)))
	e.exitConv(c)
	if e.perAddress != nil {
		addr := c.key.addr.Addr()
		if e.perAddress[addr]--; e.perAddress[addr] <= 0 {
			delete(e.perAddress, addr)
		}
	}
	if c.coded {
		key := c.key
		key.conv = 0
		delete(e.coded, key)
	}
}

// crowded reports whether addr has all the sessions it may have.
func (e *Endpoint) crowded(addr netip.Addr) bool {
	return e.perAddress != nil && e.perAddress[addr] >= e.config.MaxSessionsPerAddress
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

// wantsCookies reports whether a hello has to show a cookie.
func (e *Endpoint) wantsCookies() bool {
	return e.config.AddressValidation == ValidateAlways ||
		int(e.halfOpen.Load()) >= (e.config.MaxHalfOpen+1)/2
}

// short reports whether received data occupies all the memory it may.
func (e *Endpoint) short() bool { return e.buffered.Load() > int64(e.config.MaxBuffered) }

// evictAfter is the age at which an unproven session may have to make room.
const evictAfter = 3 * time.Second

// oldestHalfOpen returns the oldest unproven session, if its time is over. mu
// is held.
func (e *Endpoint) oldestHalfOpen(now time.Duration) *Conn {
	for len(e.unproven) > 0 {
		c := e.unproven[0]
		if e.sessions[c.key] == c && c.unproven.Load() {
			if now-c.born < evictAfter {
				return nil
			}
			e.unproven = e.unproven[1:]
			return c
		}
		e.unproven = e.unproven[1:]
	}
	return nil
}

// tidy drops proven sessions from the list of the unproven, when they are many.
// mu is held.
func (e *Endpoint) tidy() {
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

// prove notes that the peer gets what is sent to its address.
func (c *Conn) prove() {
	if !c.unproven.CompareAndSwap(true, false) {
		return
	}
	c.ep.halfOpen.Add(-1)
	if c.life.kind == peerUnknown {
		c.life.kind = peerLegacy // may yet be put right by a hello
	}
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
	c.offered = l.offer(c)
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

// Limits of replies to those who have no session, a second, and at once.
const (
	replyRate  = 10000
	replyBurst = 1000
)

// reply sends signals to where d came from, outside any session, with what h
// says of conv and una. What provoked it had at least as many segments, so the
// reply is never larger. mu is held.
func (e *Endpoint) reply(d *udp.Datagram, h header, signals ...signal) {
	if e.mayReply() {
		e.putReply(d, h, signals...)
	}
}

// mayReply takes one of the replies that are allowed. mu is held.
func (e *Endpoint) mayReply() bool {
	ok := e.replies.take(e.now())
	if !ok {
		e.counters.dropReplies.Add(1)
	}
	return ok
}

// putReply is reply for one that is allowed.
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
	if e.seal(p.buf, n) != nil {
		return
	}
	e.outbox = append(e.outbox, p)
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
	packets, batch := e.outbox, e.outboxTo
	e.outbox, e.outboxTo = nil, nil
	e.mu.Unlock()
	e.send(shard, packets, batch)
}

// bucket is a token bucket. The zero value is full.
type bucket struct {
	used float64
	last time.Duration
}

func (b *bucket) take(now time.Duration) bool {
	b.used = max(0, b.used-(now-b.last).Seconds()*replyRate)
	b.last = now
	if b.used >= replyBurst {
		return false
	}
	b.used++
	return true
}

// refused ends the sessions that wait for a first answer, after the system has
// reported that nobody listens where the socket is connected to.
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
		if !c.life.reached && c.life.hello.active {
			c.end(ErrRefused)
		}
		c.mu.Unlock()
	}
}
