package kcp

import (
	"fmt"
	"iter"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/takeover"
)

// sessionKey identifies a session: its peer's address and its conversation id.
type sessionKey = admission.Key

// sessionTable finds sessions by everything that a packet may identify them by.
// Endpoint.mu guards it, but for what admission.Table does without a lock.
type sessionTable struct {
	admission.Table[Conn]
	tally     sessionTally
	timeWaits admission.TimeWaits[timeWait]
	expiry    *time.Timer       // calls expireTimeWaits; nil: none is set, as nothing is in TIME-WAIT
	used      admission.History // of ended sessions with extended peers; kept only with LegacyAllow and an authenticating cipher
}

// sessionTally counts the sessions of an endpoint. Endpoint.mu guards it.
type sessionTally struct {
	peak              int    // most sessions at a time
	dialled, accepted uint64 // opened so far
	ended             EndedSessions
	totals            SessionTotals // of the ended sessions
}

// beginsNoMoreLocked reports whether no session may begin: the endpoint is closed, or
// closing, or another process has its socket.
func (e *Endpoint) beginsNoMoreLocked() bool {
	return e.closed || e.draining || e.takeover.Gate.Load() != nil && e.takeover.IsAway()
}

// openSession adds a session that this endpoint dials. If the conversation id
// of key is in use, or in TIME-WAIT, it draws another, or fails if that was
// chosen. With Config.SharedConvs a chosen id may be in TIME-WAIT.
func (e *Endpoint) openSession(key sessionKey, addr net.Addr, chosen bool) (*Conn, error) {
	c := newConn(e, key, addr) // not under the lock: it calls code of the caller's Config
	c.becomeDialled()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.beginsNoMoreLocked() {
		return nil, net.ErrClosed
	}
	if e.table.Len() >= e.config.MaxSessions {
		return nil, fmt.Errorf("%w: this endpoint has %d, as Config.MaxSessions allows", ErrTooManySessions, e.config.MaxSessions)
	}
	e.table.SetValidated(c)
	for e.table.Get(key) != nil || e.table.timeWaits.Holds(key, e.now()) && !(chosen && e.config.SharedConvs) {
		if chosen {
			return nil, ErrConvInUse
		}
		key.Conv = e.random32()
		c.setConv(key.Conv)
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
	if !e.table.Lists(c) {
		return
	}
	e.removeLocked(c)
	c.tally(&e.table.tally)
	if !e.closed {
		e.rememberLocked(c.tableEntry().Key(), tw, tw.token != 0)
	}
	if e.takeover.leaving != nil || e.takeover.Gate.Load() != nil {
		e.takeover.Tell(e.endNote(c.tableEntry().Key(), tw))
	}
	e.socket.holdUntil = max(e.socket.holdUntil, e.now()+c.holdSocket())
	e.shutIfUnusedLocked()
}

// rememberLocked puts an ended session into TIME-WAIT. extended says whether its peer is
// an extended one. Endpoint.mu is held.
func (e *Endpoint) rememberLocked(key sessionKey, tw timeWait, extended bool) {
	e.table.timeWaits.Add(key, tw, extended, e.now())
	if e.table.expiry == nil {
		e.table.expiry = time.AfterFunc(admission.TimeWait, e.expireTimeWaits)
	}
	if extended && e.protection.Authentic && e.config.LegacyPeers == LegacyAllow {
		e.table.used.Add(key.Conv)
	}
}

// addLocked adds a session to the tables. Conn.mu of c is held, or no other
// goroutine has c yet. Endpoint.mu is held.
func (e *Endpoint) addLocked(c *Conn) {
	e.table.Add(c)
	e.table.tally.peak = max(e.table.tally.peak, e.table.Len())
	e.load.sessions.Store(int32(e.table.Len()))
}

// removeLocked removes a session from the tables. Endpoint.mu is held.
func (e *Endpoint) removeLocked(c *Conn) {
	e.table.Remove(c)
	e.load.sessions.Store(int32(e.table.Len()))
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
	left := e.config.MaxHalfOpen - e.table.Shaking()
	return left > 0 && int(e.table.Network(key).Shaking) <= left/2
}

// handshakeOver takes note that the TLS handshake of c is not in progress any
// more.
func (e *Endpoint) handshakeOver(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.SetShaking(c, false)
}

// atAddressLimitLocked reports whether the network of key has as many sessions
// as MaxSessionsPerAddress allows. A third party may have opened unvalidated
// sessions in its name, so those count only against other unvalidated ones.
// Endpoint.mu is held.
func (e *Endpoint) atAddressLimitLocked(key sessionKey, validated bool) bool {
	n := e.table.Network(key)
	if !validated {
		n.Validated += n.Pending
	}
	return e.config.MaxSessionsPerAddress > 0 && int(n.Validated) >= e.config.MaxSessionsPerAddress
}

// convInUseElsewhereLocked reports whether conv is the id of a session with an
// extended peer at another address. The caller has found none at the address in
// question. Extended peers draw conversation ids at random, so the packet is
// from the same peer, whose address has changed although its session cannot
// migrate. The data that it retransmits may have been delivered already.
//
// It also reports whether conv is the id of one of the last ended sessions with
// extended peers (sessionTable.used). Only an attacker that has recorded one sends
// its packets. Endpoint.mu is held.
func (e *Endpoint) convInUseElsewhereLocked(conv uint32) bool {
	if e.config.SharedConvs {
		return false
	}
	for c := range e.table.OfConv(conv) {
		if c.extended() {
			return true
		}
	}
	return e.table.used.Has(conv)
}

// countValidated makes c count as one of the validated sessions of its network. It
// reports false if the network now exceeds MaxSessionsPerAddress.
func (e *Endpoint) countValidated(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.table.Lists(c) {
		return true
	}
	e.table.SetValidated(c)
	most := e.config.MaxSessionsPerAddress
	return most <= 0 || int(e.table.Network(c.tableEntry().Key()).Validated) <= most
}

// bindFEC records that the peer of c sends FEC.
func (e *Endpoint) bindFEC(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.BindFEC(c)
}

// migratingSessions are the sessions that a packet from an unknown address may
// belong to. The entries after the last are nil.
type migratingSessions [admission.MaxSameConv]*Conn

// migrationCandidates returns the sessions of the conversation id of key that
// may migrate (WIRE.md §5.4; RFC 9000 §9): with an authenticating cipher, those
// with extended peers.
func (e *Endpoint) migrationCandidates(key sessionKey, kind packetKind) (found migratingSessions) {
	if !e.migrates || kind == parityPacket || kind == datagramPacket {
		return found
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	n := 0
	for c := range e.table.OfConv(key.Conv) {
		if c.extended() {
			found[n] = c
			n++
		}
	}
	return found
}

// rekey moves a session to the address of key. It reports false if another
// session has that key, or c is not in the tables any more. c.mu is held.
func (e *Endpoint) rekey(c *Conn, key sessionKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := c.tableEntry().Key()
	if !e.table.Move(c, key) {
		return false
	}
	e.takeover.Tell(takeover.Note{Kind: takeover.Moved, Addr: from.Addr, Conv: from.Conv, To: key.Addr})
	return true
}

// Sessions returns an iterator over the sessions that are open when the iteration
// begins: those that were dialled, that Accept has returned, or that it could return.
// Each is visited once; it may have ended by then. No lock is held while the body of the
// loop runs. The iteration takes 8 bytes of memory for each session.
func (e *Endpoint) Sessions() iter.Seq[*Conn] {
	return func(yield func(*Conn) bool) {
		e.mu.RLock()
		conns := e.table.Slots()
		e.mu.RUnlock()
		for _, c := range conns {
			if c != nil && c.wasOffered() && !yield(c) {
				return
			}
		}
	}
}

// Totals returns the sums over all sessions of the endpoint, those that have ended
// included, so no figure ever falls. It takes the lock of each session for a moment, so
// it is as costly as Conn.Stats of all of them; Stats costs the same for any number.
func (e *Endpoint) Totals() SessionTotals {
	e.mu.RLock()
	conns, totals := e.table.Slots(), e.table.tally.totals
	e.mu.RUnlock()
	for _, c := range conns {
		if c != nil { // if it has ended since, it is not in totals yet
			c.total(&totals)
		}
	}
	return totals
}
