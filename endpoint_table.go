package kcp

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

// sessionKey identifies a session: its peer's address and its conversation id.
// peer takes the place of addr if the address is not a UDP address, and is
// empty otherwise.
type sessionKey struct {
	addr netip.AddrPort
	peer string
	conv uint32
}

// makeKey returns the key of a session; peer is nil if the address is addr.
func makeKey(addr netip.AddrPort, peer net.Addr, conv uint32) sessionKey {
	key := sessionKey{addr: addr, conv: conv}
	if peer != nil {
		key.peer = peer.Network() + " " + peer.String()
	}
	return key
}

// openSession adds a session that this endpoint dials. If the conversation id
// of key is in use, or in TIME-WAIT, it draws another, or fails if that was
// chosen. With Config.SharedConvs a chosen id may be in TIME-WAIT.
func (e *Endpoint) openSession(key sessionKey, addr net.Addr, chosen bool) (*Conn, error) {
	c := newConn(e, key, addr) // not under the lock: it calls code of the caller's Config
	c.hs.dialled, c.hs.offered, c.path.counted = true, true, true
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.draining {
		return nil, net.ErrClosed
	}
	if len(e.table.sessions) >= e.config.MaxSessions {
		return nil, ErrTooManySessions
	}
	for e.table.sessions[c.path.key] != nil || e.table.timeWaits.holds(c.path.key, e.now()) && !(chosen && e.config.SharedConvs) {
		if chosen {
			return nil, ErrConvInUse
		}
		c.path.key.conv = e.random32()
		c.kcp.setConv(c.path.key.conv)
		c.in.numbers = e.newNumbers(c.path.key.conv)
	}
	e.addLocked(c)
	e.table.tally.dialled++
	return c, nil
}

// remove takes the ended session c out of the tables, and leaves tw in its
// place. Stragglers of it are recognised for a while, so that they do not open
// a new session (TIME-WAIT, RFC 9293 §3.6.1). c.mu is held.
func (e *Endpoint) remove(c *Conn, tw timeWait) {
	e.wakes.Remove(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table.sessions[c.path.key] == c {
		e.removeLocked(c)
		e.table.tally.ended.count(c.closing.err, c.hs.offered)
		c.addTo(&e.table.tally.totals)
		if !e.closed {
			e.table.timeWaits.add(c.path.key, tw, e.now())
			e.table.timeWaits.expireLater(e)
		}
		if tw.token != 0 && e.protection.authentic && e.config.AllowLegacy {
			e.table.timeWaits.used.add(c.path.key.conv)
		}
		e.socket.holdUntil = max(e.socket.holdUntil, e.now()+c.holdSocket())
		e.shutIfUnusedLocked()
	}
}

// addLocked adds a session to the tables. Conn.mu of c is held, or no other
// goroutine has c yet. Endpoint.mu is held.
func (e *Endpoint) addLocked(c *Conn) {
	e.table.sessions[c.path.key] = c
	e.table.slots.add(c)
	e.table.tally.peak = max(e.table.tally.peak, len(e.table.sessions))
	e.load.sessions.Store(int32(len(e.table.sessions)))
	e.addConvLocked(c)
	e.countLocked(c, 1)
}

// removeLocked removes a session from the tables. Endpoint.mu is held.
func (e *Endpoint) removeLocked(c *Conn) {
	delete(e.table.sessions, c.path.key)
	emptied := e.table.slots.remove(c)
	e.load.sessions.Store(int32(len(e.table.sessions)))
	if len(e.table.sessions) == 0 {
		e.table.unvalidated = nil // it lists ended sessions, too
	}
	e.removeConvLocked(c)
	e.countLocked(c, -1)
	if c.path.fecBound {
		key := c.path.key
		key.conv = 0
		rest := slices.DeleteFunc(e.table.fecByAddr[key], func(other *Conn) bool { return other == c })
		if e.table.fecByAddr[key] = rest; len(rest) == 0 {
			delete(e.table.fecByAddr, key)
		}
	}
	if emptied {
		e.table.shrink()
	}
}

// shrink replaces the maps of a table that was large and is empty: a map gives no
// memory back.
func (t *sessionTable) shrink() {
	t.sessions, t.byConv, t.fecByAddr = make(map[sessionKey]*Conn), make(map[uint32]*Conn), nil
	if t.perNetwork != nil {
		t.perNetwork = make(map[netip.Addr]networkCount)
	}
}

// networkCount is the number of sessions with one network.
type networkCount struct {
	validated int32 // the peer's address is validated; dialled sessions included
	pending   int32 // the peer's address is not validated yet
	shaking   int32 // of validated: those whose TLS handshake is in progress
}

// add adds times, which may be negative, to the count that c belongs to.
func (n *networkCount) add(c *Conn, times int32) {
	if c.path.counted {
		n.validated += times
	} else {
		n.pending += times
	}
}

// countLocked adds times, which may be negative, to the counts that c belongs to.
// Endpoint.mu is held.
func (e *Endpoint) countLocked(c *Conn, times int32) {
	shaking := int32(0)
	if e.config.TLS != nil && c.path.counted && c.in.numbers.tls.shaking {
		shaking = times
	}
	e.table.shaking += int(shaking)
	if e.table.perNetwork == nil {
		return
	}
	network := networkOf(c.path.key)
	n := e.table.perNetwork[network]
	n.add(c, times)
	n.shaking += shaking
	if n == (networkCount{}) {
		delete(e.table.perNetwork, network)
	} else {
		e.table.perNetwork[network] = n
	}
}

// mayShakeLocked reports whether one more TLS handshake may begin with the network
// of key. A network may have half of what the others leave of MaxHalfOpen, so that
// something is left for the next one. Handshakes of addresses that are not
// validated do not count, as somebody else may have begun them. Endpoint.mu is
// held.
func (e *Endpoint) mayShakeLocked(key sessionKey) bool {
	if e.config.TLS == nil {
		return true
	}
	left := e.config.MaxHalfOpen - e.table.shaking
	return left > 0 && int(e.table.perNetwork[networkOf(key)].shaking) <= left/2
}

// handshakeOver takes note that the TLS handshake of c, whose state is s, is not
// in progress any more.
func (e *Endpoint) handshakeOver(c *Conn, s *tlsState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !s.shaking {
		return
	}
	listed := e.table.sessions[c.path.key] == c
	if listed {
		e.countLocked(c, -1)
	}
	s.shaking = false
	if listed {
		e.countLocked(c, 1)
	}
}

// networkOf returns the network that a session counts for in
// MaxSessionsPerAddress: the IPv4 address, or the /64 of the IPv6 address,
// since each subscriber has as many addresses as that.
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

// atAddressLimitLocked reports whether the network of key has as many sessions
// as MaxSessionsPerAddress allows. A third party may have opened unvalidated
// sessions in its name, so those count only against other unvalidated ones.
// Endpoint.mu is held.
func (e *Endpoint) atAddressLimitLocked(key sessionKey, validated bool) bool {
	if e.table.perNetwork == nil {
		return false
	}
	n := e.table.perNetwork[networkOf(key)]
	if validated {
		return int(n.validated) >= e.config.MaxSessionsPerAddress
	}
	return int(n.validated+n.pending) >= e.config.MaxSessionsPerAddress
}

// convInUseElsewhereLocked reports whether conv is the id of a session with an
// extended peer at another address. The caller has found none at the address in
// question. Extended peers draw conversation ids at random, so the packet is
// from the same peer, whose address has changed although its session cannot
// migrate. The data that it retransmits may have been delivered already.
//
// It also reports whether conv is the id of one of the last ended sessions with
// extended peers (convHistory). Only an attacker that has recorded one sends
// its packets. Endpoint.mu is held.
func (e *Endpoint) convInUseElsewhereLocked(conv uint32) bool {
	if e.config.SharedConvs {
		return false
	}
	for c := e.table.byConv[conv]; c != nil; c = c.path.sameConv {
		if c.hs.greeted.Load() {
			return true
		}
	}
	return e.table.timeWaits.used.has(conv)
}

// evictAfter is the age from which an unvalidated session may be ended to make
// room. evictLooks is how many such sessions are examined to find one.
const (
	evictAfter = 3 * time.Second
	evictLooks = 16
)

// oldestHalfOpenLocked removes from the list, and returns, the oldest half-open
// session that is older than evictAfter and has received nothing since it was
// last examined (the CLOCK algorithm). It returns nil if none of the first
// evictLooks qualifies. Endpoint.mu is held.
func (e *Endpoint) oldestHalfOpenLocked(now time.Duration) *Conn {
	for looks := 0; len(e.table.unvalidated) > 0 && looks < evictLooks; looks++ {
		first := e.table.unvalidated[0]
		c := first.Value()
		switch {
		case c == nil || e.table.sessions[c.path.key] != c || !c.hs.unvalidated.Load():
			looks--
		case now-c.hs.born < evictAfter:
			return nil
		case c.hs.active.Swap(false):
			e.table.unvalidated = append(e.table.unvalidated, first)
		default:
			e.table.unvalidated = e.table.unvalidated[1:]
			return c
		}
		e.table.unvalidated = e.table.unvalidated[1:]
	}
	return nil
}

// pruneUnvalidatedLocked drops sessions that are no longer half open from the
// list of unvalidated ones, if there are many. Endpoint.mu is held.
func (e *Endpoint) pruneUnvalidatedLocked() {
	if len(e.table.unvalidated) <= 2*int(e.load.halfOpen.Load())+16 {
		return
	}
	kept := e.table.unvalidated[:0]
	for _, p := range e.table.unvalidated {
		if c := p.Value(); c != nil && c.hs.unvalidated.Load() {
			kept = append(kept, p)
		}
	}
	e.table.unvalidated = kept
}

// countValidated moves c to the validated sessions of its network. It reports
// false if the network now exceeds MaxSessionsPerAddress.
func (e *Endpoint) countValidated(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table.sessions[c.path.key] != c {
		return true
	}
	e.countLocked(c, -1)
	c.path.counted = true
	e.countLocked(c, 1)
	return e.table.perNetwork == nil ||
		int(e.table.perNetwork[networkOf(c.path.key)].validated) <= e.config.MaxSessionsPerAddress
}

// bindFEC records that the peer of c sends FEC. Parity names no conversation,
// so it is used only while its address has one such session. Together with data
// of another session, recovery would yield packets that were never sent. Some
// would look real: a field that all packets of a session share may come out of
// it unchanged.
func (e *Endpoint) bindFEC(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.path.fecBound || e.table.sessions[c.path.key] != c {
		return
	}
	if e.table.fecByAddr == nil {
		e.table.fecByAddr = make(map[sessionKey][]*Conn)
	}
	key := c.path.key
	key.conv = 0
	e.table.fecByAddr[key] = append(e.table.fecByAddr[key], c)
	c.path.fecBound = true
}

// maxSameConv is how many sessions of one conversation id may migrate. Ids are
// drawn at random, so there is usually one. An attacker may open further ones
// to keep it from migrating.
const maxSameConv = 4

// migratingSessions are the sessions that a packet from an unknown address may
// belong to. The entries after the last are nil.
type migratingSessions [maxSameConv]*Conn

// migrationCandidates returns the sessions of the conversation id of key that
// may migrate (WIRE.md §5.4; RFC 9000 §9): with an authenticating cipher, those
// with extended peers.
func (e *Endpoint) migrationCandidates(key sessionKey, kind packetKind) (found migratingSessions) {
	if !e.migrates() || kind == parityPacket || kind == datagramPacket {
		return found
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	n := 0
	for c := e.table.byConv[key.conv]; c != nil; c = c.path.sameConv {
		if c.hs.greeted.Load() {
			found[n] = c
			n++
		}
	}
	return found
}

// migrates reports whether sessions may migrate: an authenticating cipher shows
// whose a packet is, and the conversation id of which session.
func (e *Endpoint) migrates() bool { return e.protection.authentic && !e.config.SharedConvs }

// addConvLocked adds a session to the list of its conversation id. Endpoint.mu
// is held.
func (e *Endpoint) addConvLocked(c *Conn) {
	c.path.sameConv = nil
	last := e.table.byConv[c.path.key.conv]
	if last == nil {
		e.table.byConv[c.path.key.conv] = c
		return
	}
	n := 1
	for ; last.path.sameConv != nil; last = last.path.sameConv {
		n++
	}
	if n < maxSameConv { // otherwise the session cannot migrate
		last.path.sameConv = c
	}
}

// removeConvLocked removes a session from the list of its conversation id.
// Endpoint.mu is held.
func (e *Endpoint) removeConvLocked(c *Conn) {
	first := e.table.byConv[c.path.key.conv]
	switch {
	case first == c && c.path.sameConv == nil:
		delete(e.table.byConv, c.path.key.conv)
	case first == c:
		e.table.byConv[c.path.key.conv] = c.path.sameConv
	default:
		for ; first != nil; first = first.path.sameConv {
			if first.path.sameConv == c {
				first.path.sameConv = c.path.sameConv
				break
			}
		}
	}
	c.path.sameConv = nil
}

// rekey moves a session to the address of key. It reports false if another
// session has that key, or c is not in the tables any more. c.mu is held.
func (e *Endpoint) rekey(c *Conn, key sessionKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table.sessions[c.path.key] != c || e.table.sessions[key] != nil {
		return false
	}
	e.removeLocked(c)
	c.path.fecBound = false
	c.path.key.addr, c.path.key.peer = key.addr, key.peer // conv stays: it is read without a lock
	e.addLocked(c)
	return true
}
