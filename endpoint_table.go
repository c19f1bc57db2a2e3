package kcp

import (
	"fmt"
	"iter"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/stats"
)

// sessionTable finds sessions by everything that a packet may identify them by.
// Endpoint.mu guards it, except what admission.Table does without a lock.
type sessionTable struct {
	admission.Gate[Conn]
	tally  sessionTally
	expiry *time.Timer // calls expireTimeWaits; nil: none is set, as nothing is in TIME-WAIT
}

// sessionTally counts the sessions of an endpoint. Endpoint.mu guards it.
type sessionTally struct {
	peak              int    // most sessions at a time
	dialled, accepted uint64 // opened so far
	ended             stats.Ended
	totals            stats.Totals // of the ended sessions
}

// beginsNoMoreLocked reports whether no session may begin: the endpoint is closed, or
// closing, or another process has its socket.
func (e *Endpoint) beginsNoMoreLocked() bool {
	return e.closed || e.draining || e.takeover.Gate.Load() != nil && e.takeover.IsAway()
}

// openSession adds a session that this endpoint dials. If the conversation id
// of key is in use, or in TIME-WAIT, it draws another, or fails if that was
// chosen. With Config.SharedConvs a chosen id may be in TIME-WAIT.
func (e *Endpoint) openSession(key session.Key, addr net.Addr, chosen bool) (*Conn, error) {
	c := newConn(e, key, addr, true) // not under the lock: it calls code of the caller's Config
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.beginsNoMoreLocked() {
		return nil, net.ErrClosed
	}
	if e.table.Len() >= e.config.Limits.MaxSessions {
		return nil, fmt.Errorf("%w: this endpoint has %d, as Limits.MaxSessions allows", ErrTooManySessions, e.config.Limits.MaxSessions)
	}
	e.table.SetValidated(c)
	for e.table.Get(key) != nil || e.table.TimeWaits.Holds(key, e.now()) && !(chosen && e.config.SharedConvs) {
		if chosen {
			return nil, errConvInUse
		}
		key.Conv = e.Env.Uint32()
		c.session.SetConv(key.Conv)
	}
	e.addLocked(c)
	e.table.tally.dialled++
	return c, nil
}

// remove takes the ended session c out of the tables, and leaves end in its
// place. Stragglers of it are recognised for a while, so that they do not open
// a new session (TIME-WAIT, RFC 9293 §3.6.1). c.mu is held.
func (e *Endpoint) remove(c *Conn, end session.End) {
	e.wakes.Remove(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.table.Lists(c) {
		return
	}
	e.removeLocked(c)
	if e.opens.N.Load() > 0 {
		e.opens.Remove(c)
	}
	c.tally(&e.table.tally)
	if !e.closed {
		e.rememberLocked(c.session.Place().Key(), end.State, end.State.Token != 0)
	}
	if e.takeover.leaving != nil || e.takeover.Gate.Load() != nil {
		e.takeover.Tell(takeover.EndOf(c.session.Place().Key(), end.State, e.mute()))
	}
	e.socket.holdUntil = max(e.socket.holdUntil, e.now()+end.Hold)
	e.shutIfUnusedLocked()
}

// rememberLocked puts an ended session into TIME-WAIT. extended says whether its peer is
// an extended one. Endpoint.mu is held.
func (e *Endpoint) rememberLocked(key session.Key, tw session.TimeWait, extended bool) {
	e.table.Remember(key, tw, extended, e.now())
	if e.table.expiry == nil {
		e.table.expiry = time.AfterFunc(admission.TimeWait, e.expireTimeWaits)
	}
}

// expireTimeWaits forgets what is no longer in TIME-WAIT while no further session
// ends, twice its time after the last one at the latest. With the last entry goes
// the memory of the table: a map gives none back.
func (e *Endpoint) expireTimeWaits() {
	e.mu.Lock()
	defer e.mu.Unlock()
	empty := e.table.TimeWaits.Expire(e.now())
	switch {
	case e.closed:
	case empty:
		e.table.forget()
	default:
		e.table.expiry.Reset(session.TimeWaitTime)
	}
}

// forget clears TIME-WAIT, and stops its timer, which would keep a closed endpoint
// in memory.
func (t *sessionTable) forget() {
	if t.expiry != nil {
		t.expiry.Stop()
		t.expiry = nil
	}
	t.TimeWaits.Clear()
}

// addLocked adds a session to the tables. Conn.mu of c is held, or no other
// goroutine has c yet. Endpoint.mu is held.
func (e *Endpoint) addLocked(c *Conn) {
	e.table.Add(c)
	e.table.tally.peak = max(e.table.tally.peak, e.table.Len())
	e.Load.Sessions.Store(int32(e.table.Len()))
}

// removeLocked removes a session from the tables. Endpoint.mu is held.
func (e *Endpoint) removeLocked(c *Conn) {
	e.table.Remove(c)
	e.Load.Sessions.Store(int32(e.table.Len()))
}

// handshakeOver records that the TLS handshake of c is not in progress any more, or that
// Accept may have the session: it makes no room then.
func (e *Endpoint) handshakeOver(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.SetShaking(c, false)
}

// countValidated makes c count as one of the validated sessions of its network. It
// reports false if the network now exceeds MaxSessionsPerAddress.
func (e *Endpoint) countValidated(c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.SetValidated(c) || e.opens.N.Load() > 0 && e.opens.Expects(c) // the one that this end dials ends
}

// bindFEC records that the peer of c sends FEC.
func (e *Endpoint) bindFEC(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.BindFEC(c)
}

// rekey moves a session to the address of key. It reports false if another
// session has that key, or c is not in the tables any more. c.mu is held.
func (e *Endpoint) rekey(c *Conn, key session.Key) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := c.session.Place().Key()
	if !e.table.Move(c, key) {
		return false
	}
	e.takeover.Tell(takeover.Note{Kind: takeover.Moved, Addr: from.Addr, Conv: from.Conv, To: key.Addr})
	return true
}

// Sessions returns an iterator over the sessions that are open when the iteration begins:
// those that were dialled, that Accept has returned, or that it could return. Each is
// visited once, and may have ended. No lock is held while the body runs.
func (e *Endpoint) Sessions() iter.Seq[*Conn] {
	return func(yield func(*Conn) bool) {
		e.mu.RLock()
		conns := e.table.Slots()
		e.mu.RUnlock()
		for _, c := range conns {
			if c != nil && c.lookAt().Offered && !yield(c) {
				return
			}
		}
	}
}

// Totals returns the sums over all sessions of the endpoint, those that have ended
// included, so no figure ever falls. It takes the lock of each session.
func (e *Endpoint) Totals() stats.Totals {
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

// Stats returns a snapshot of the endpoint. Its cost does not depend on the sessions.
func (e *Endpoint) Stats() stats.Endpoint {
	e.mu.RLock()
	sessions, l := e.table.Len(), e.acceptorLocked()
	tally := &e.table.tally
	peak, dialled, accepted, ended := tally.peak, tally.dialled, tally.accepted, tally.ended
	e.mu.RUnlock()
	n := &e.Counters
	s := stats.Endpoint{
		Sessions:        sessions,
		Peak:            peak,
		Dialled:         dialled,
		Accepted:        accepted,
		Ended:           ended,
		PacketsSent:     n.PacketsSent.Load(),
		PacketsReceived: n.PacketsReceived.Load(),
		BytesSent:       n.BytesSent.Load(),
		BytesReceived:   n.BytesReceived.Load(),
		ReadErrors:      n.ReadErrors.Load(),
		WriteErrors:     n.WriteErrors.Load(),
		TooLarge:        n.TooLarge.Load(),
		DropShort:       n.DropShort.Load(),
		DropCipher:      n.DropCipher.Load(),
		DropReplay:      n.DropReplay.Load(),
		DropUnknown:     n.DropUnknown.Load(),
		DropEnded:       n.DropEnded.Load(),
		DropSessions:    n.DropSessions.Load(),
		DropBacklog:     n.DropBacklog.Load(),
		DropHalfOpen:    n.DropHalfOpen.Load(),
		DropReplies:     n.DropReplies.Load(),
		DropCredit:      n.DropCredit.Load(),
		DropHandshake:   n.DropHandshake.Load(),
		HandshakeErrors: n.HandshakeErrors.Load(),
		CookiesSent:     n.CookiesSent.Load(),
		ResetsSent:      n.ResetsSent.Load(),
		HalfOpen:        int(e.Load.HalfOpen.Load()),
		Buffered:        int(e.Load.Held()),
		WriteBuffered:   int(e.Load.Written.Load()) * session.WriteGrain,
		EndedForMemory:  n.EndedForMemory.Load(),
		Limits:          e.config.limits(),
	}
	before := &e.takeover.Before
	s.Forwarded, s.DropForward, s.PredecessorSessions = before.Forwarded.Load(), before.Dropped.Load(), before.Sessions()
	if l != nil {
		l.mu.Lock()
		s.Backlog = len(l.backlog)
		l.mu.Unlock()
	}
	s.Lag.P50, s.Lag.Max = e.wakes.Lag(l != nil) // a socket of its own for each session would cost as many probes
	for i := range e.socket.shards {
		shard := &e.socket.shards[i]
		s.SocketDrops += shard.dropped()
		m := shard.sock().Merging()
		s.Unmerged, s.UnmergedPeers = m.Off, s.UnmergedPeers+m.Refused
	}
	return s
}

// Stats returns a snapshot of the listener's endpoint.
