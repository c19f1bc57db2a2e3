package kcp

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

// sessionKey tells sessions apart. peer stands for the address where it is not
// one of UDP.
type sessionKey struct {
	addr netip.AddrPort
	peer string
	conv uint32
}

func makeKey(addr netip.AddrPort, peer net.Addr, conv uint32) sessionKey {
	key := sessionKey{addr: addr, conv: conv}
	if peer != nil {
		key.peer = peer.Network() + " " + peer.String()
	}
	return key
}

// openSession adds a session of ours; it draws another conv where that of key is taken.
func (e *Endpoint) openSession(key sessionKey, addr net.Addr) (*Conn, error) {
	c := newConn(e, key, addr) // the caller's Config runs code of its own
	c.hs.dialled, c.hs.offered, c.path.counted = true, true, true
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, net.ErrClosed
	}
	if len(e.table.sessions) >= e.config.MaxSessions {
		return nil, ErrTooManySessions
	}
	for e.table.sessions[c.path.key] != nil || e.table.timeWaits.holds(c.path.key) {
		c.path.key.conv = randomConv()
		c.kcp.setConv(c.path.key.conv)
	}
	e.addLocked(c)
	return c, nil
}

// remove forgets the session c but for g. Stragglers of it are recognised for a
// while, so that they do not open a new one.
func (e *Endpoint) remove(c *Conn, g timeWait) {
	e.wakes.Remove(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table.sessions[c.path.key] == c {
		e.removeLocked(c)
		e.table.timeWaits.add(c.path.key, g, e.now())
		if g.token != 0 && e.protection.authentic && e.config.AllowLegacy {
			e.table.timeWaits.used.add(c.path.key.conv)
		}
		e.socket.holdUntil = max(e.socket.holdUntil, e.now()+c.holdSocket())
		e.shutIfUnusedLocked()
	}
}

// addLocked adds a session to the tables. Endpoint.mu is held.
func (e *Endpoint) addLocked(c *Conn) {
	e.table.sessions[c.path.key] = c
	e.load.sessions.Store(int32(len(e.table.sessions)))
	e.addConvLocked(c)
	if e.table.perNetwork != nil {
		n := e.table.perNetwork[networkOf(c.path.key)]
		n.add(c, 1)
		e.table.perNetwork[networkOf(c.path.key)] = n
	}
}

// removeLocked takes it out of them again. Endpoint.mu is held.
func (e *Endpoint) removeLocked(c *Conn) {
	delete(e.table.sessions, c.path.key)
	e.load.sessions.Store(int32(len(e.table.sessions)))
	e.removeConvLocked(c)
	if e.table.perNetwork != nil {
		network := networkOf(c.path.key)
		n := e.table.perNetwork[network]
		n.add(c, -1)
		if e.table.perNetwork[network] = n; n == (networkCount{}) {
			delete(e.table.perNetwork, network)
		}
	}
	if c.path.fecBound {
		key := c.path.key
		key.conv = 0
		rest := slices.DeleteFunc(e.table.fecByAddr[key], func(other *Conn) bool { return other == c })
		if e.table.fecByAddr[key] = rest; len(rest) == 0 {
			delete(e.table.fecByAddr, key)
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
	if c.path.counted {
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

// atAddressLimitLocked reports whether the network of key has all the sessions that it
// may have. Those that others may have opened in its name count only against
// others that are not validated either.
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

// convInUseElsewhereLocked reports whether the conversation is that of a session with a peer
// that says hello, at another address. Such a peer draws its conversation ids at
// random, so it is the same one, and has moved where it may not: nobody could
// tell whether what it repeats has been delivered. The same goes for sessions
// that have ended: only who has recorded one sends its packets. mu is held.
func (e *Endpoint) convInUseElsewhereLocked(conv uint32) bool {
	for c := e.table.byConv[conv]; c != nil; c = c.path.sameConv {
		if c.hs.greeted.Load() {
			return true
		}
	}
	return e.table.timeWaits.used.has(conv)
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
	for looks := 0; len(e.table.unvalidated) > 0 && looks < evictLooks; looks++ {
		c := e.table.unvalidated[0]
		switch {
		case e.table.sessions[c.path.key] != c || !c.hs.unvalidated.Load():
			looks--
		case now-c.hs.born < evictAfter:
			return nil
		case c.hs.active.Swap(false):
			e.table.unvalidated = append(e.table.unvalidated, c)
		default:
			e.table.unvalidated = e.table.unvalidated[1:]
			return c
		}
		e.table.unvalidated[0] = nil
		e.table.unvalidated = e.table.unvalidated[1:]
	}
	return nil
}

// pruneUnvalidatedLocked drops proven sessions from the list of the unproven, when they are
// many. Endpoint.mu is held.
func (e *Endpoint) pruneUnvalidatedLocked() {
	if len(e.table.unvalidated) <= 2*int(e.load.halfOpen.Load())+16 {
		return
	}
	kept := e.table.unvalidated[:0]
	for _, c := range e.table.unvalidated {
		if c.hs.unvalidated.Load() {
			kept = append(kept, c)
		}
	}
	clear(e.table.unvalidated[len(kept):])
	e.table.unvalidated = kept
}

// countValidated counts a session whose peer's address has been validated. It
// reports false if its network has all the sessions that it may have.
func (e *Endpoint) countValidated(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table.perNetwork == nil || e.table.sessions[c.path.key] != c {
		return true
	}
	network := networkOf(c.path.key)
	n := e.table.perNetwork[network]
	n.add(c, -1)
	c.path.counted = true
	n.add(c, 1)
	e.table.perNetwork[network] = n
	return int(n.validated) <= e.config.MaxSessionsPerAddress
}

// bindFEC notes that the peer sends FEC in c. Parity names no conversation, so
// it is used only while its address has one such session. With that of another
// session, recovery would make packets that never were, and some look real:
// what all packets of a session have in common may come out of it unchanged.
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

// maxSameConv is how many sessions of one conversation id may move. Ids are
// drawn at random, so there is one; more come of those who want to be in its way.
const maxSameConv = 4

// migratingSessions are the sessions that a packet from an unknown address may belong
// to, nil after the last.
type migratingSessions [maxSameConv]*Conn

// migrationCandidates returns those of a conversation id whose peers may move.
func (e *Endpoint) migrationCandidates(key sessionKey, kind packetKind) (found migratingSessions) {
	if !e.protection.authentic || kind == parityPacket || kind == datagramPacket {
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

// addConvLocked adds a session to those of its conversation id. mu is held.
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
	if n < maxSameConv { // else it stays where it is
		last.path.sameConv = c
	}
}

// removeConvLocked takes it out again. mu is held.
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

// rekey files the session under a new address. It is false where there is
// another session of that key.
func (e *Endpoint) rekey(c *Conn, key sessionKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table.sessions[c.path.key] != c || e.table.sessions[key] != nil {
		return false
	}
	e.removeLocked(c)
	c.path.fecBound = false
	c.path.key.addr, c.path.key.peer = key.addr, key.peer // conv stays, and is read without a lock
	e.addLocked(c)
	return true
}
