package kcp

import (
	"fmt"
	"iter"
	"math"
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
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
		key.Conv = e.shared.Env.Uint32()
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
	e.shared.Load.Sessions.Store(int32(e.table.Len()))
}

// removeLocked removes a session from the tables. Endpoint.mu is held.
func (e *Endpoint) removeLocked(c *Conn) {
	e.table.Remove(c)
	e.shared.Load.Sessions.Store(int32(e.table.Len()))
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
	n := &e.shared.Counters
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
		HalfOpen:        int(e.shared.Load.HalfOpen.Load()),
		Buffered:        int(e.shared.Load.Held()),
		WriteBuffered:   int(e.shared.Load.Written.Load()) * session.WriteGrain,
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

// Memory pressure (compare Linux tcp_mem). Limits.MaxBuffered bounds the memory
// that all sessions hold because of their peers. Beyond it, a session goes on
// unimpeded that holds no more than its share, or than what its path has
// carried lately. One that holds more accepts only what can be read at once,
// until it holds less. Sessions are ended (load shedding) that hold most for
// each byte that has arrived or was read lately, whatever they hold: first those
// that hold more than an equal share, and others only if that does not suffice.

const (
	// pressurePause is the time between two scans of all sessions, unless some
	// are to be ended.
	pressurePause = 100 * time.Millisecond
	// scanned and mostShed are how many sessions are looked at, and how many
	// are ended at most, after one batch of packets.
	scanned  = 1024
	mostShed = 16
	// never is a time after all scans.
	never = math.MaxInt64
)

// pressure is the state of an endpoint's memory pressure, besides session.Load.Share.
type pressure struct {
	next atomic.Int64 // time of the next part of a scan, as time.Duration since the epoch; never: it is under way
	scan *fair.Scan   // of the reader that has set next to never; nil: none has begun
}

// relieve scans sessions while memory is short, and ends some if needed. The
// readers call it after each batch, with no lock held.
func (e *Endpoint) relieve(now time.Duration) {
	p := &e.pressure
	over := e.shared.OverMemoryLimit()
	next := p.next.Load()
	if over && int64(now) < next || next == never || !p.next.CompareAndSwap(next, never) {
		return
	}
	if !over {
		e.shared.Load.Share.Store(0)
		p.scan = nil
		p.next.Store(next)
		return
	}
	var heavy [mostShed]*Conn
	n, done := e.weigh(now, &heavy)
	for _, c := range heavy[:n] {
		if e.shared.OverMemoryLimit() && c.shedMemory() {
			e.shared.Counters.EndedForMemory.Add(1)
			e.warn("session ended under memory pressure", ErrMemoryPressure)
		}
	}
	pause := time.Duration(0)
	if done && p.scan.Nobody() {
		pause = pressurePause
	}
	p.next.Store(int64(now + pause))
}

// weigh does a part of a scan. It puts sessions to be ended into heavy, and returns how
// many. At the end of the scan, which it reports, it sets the share of a session.
func (e *Endpoint) weigh(now time.Duration, heavy *[mostShed]*Conn) (n int, done bool) {
	p := &e.pressure
	if p.scan == nil {
		p.scan = fair.NewScan(session.LeastShare)
	}
	over, margin := e.shared.Overload()
	s, share, ratio := p.scan, max(e.shared.Load.Share.Load(), session.LeastShare), fair.LeastRatio(over, margin)
	// Sessions that anybody may have opened do not take the memory of others.
	floods := e.shared.Load.HalfOpenMemory() > int64(e.config.Limits.MaxBuffered)/4
	e.mu.RLock()
	conns, last := e.table.Part(s.At, scanned)
	looked := 0
	for ; looked < len(conns) && n < len(heavy); looked++ {
		c := conns[looked]
		if c == nil {
			continue
		}
		if held, lately := c.session.Weight(now); floods && c.session.HalfOpen() || s.Pays(held, lately, share, ratio) {
			heavy[n] = c
			n++
		}
	}
	s.Passed(looked)
	done = last && looked == len(conns)
	e.mu.RUnlock()
	if done {
		over, _ = e.shared.Overload()
		e.shared.Load.Share.Store(s.End(int64(e.config.Limits.MaxBuffered), over, ratio))
	}
	return n, done
}

// What the Conn of a session may ask of its endpoint.

// acceptor returns the listener; nil: there is none.
func (e *Endpoint) acceptor() *Listener {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.acceptorLocked()
}

// acceptorLocked returns the listener that sessions are offered to: after a handover, the
// one that was handed over. Endpoint.mu is held.
func (e *Endpoint) acceptorLocked() *Listener {
	if e.listener == nil {
		return e.takeover.leaving
	}
	return e.listener
}

// disposable reports whether the system chose the local port, for a single session.
func (e *Endpoint) disposable() bool { return e.socket.disposable }

// hand leaves a datagram to the reader of a socket, which calls handleDatagram after
// the batch. The caller runs within that.
func (e *Endpoint) hand(shard int, d handedDatagram) {
	in := &e.socket.shards[shard].in
	in.handed = append(in.handed, d)
}

// mayLogSession reports whether the Logger may have a record of a session now, and
// how many were left out before it.
func (e *Endpoint) mayLogSession() (left uint64, ok bool) {
	return e.log.sessions.Allow(e.now(), time.Second/sessionLogRate, sessionLogRate)
}

// challengeOf returns the challenge for a path (RFC 9000 §8.2): a PING, whose
// arguments are a MAC of both addresses, the conversation and token with the endpoint's
// secret, as in a cookie. So no state is kept for addresses that the peer is not at,
// however many they are. A challenge is valid for 10 to 20 seconds.
func (e *Endpoint) challengeOf(path session.Source, conv, token uint32, at time.Duration) wire.Signal {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.table.Cookies.Challenge(admission.MakeKey(path.Addr, path.Peer, conv), path.Local.Addr(), token, at)
	return wire.Signal{Code: wire.Ping, SN: s[0], TS: s[1]}
}

// keepsWhole reports whether what a socket sends is fragmented nowhere, as probes of
// the path MTU must not be.
func (e *Endpoint) keepsWhole(shard int) bool { return e.socket.shards[shard].sock().KeepsWhole() }

// incastOf returns what a socket does against incast.
func (e *Endpoint) incastOf(shard int) *session.SocketIncast { return &e.socket.shards[shard].incast }

// takeReadTurn returns the socket that a call which would block is to read in place of
// the read goroutine, until endReadTurn; nil: the call waits.
func (e *Endpoint) takeReadTurn() *shard {
	if s := &e.socket.shards[0]; s.lead.Possible() && e.shared.Single() && s.lead.Acquire() {
		return s
	}
	return nil
}

// readForCall reads a batch for a call of c that has the read turn. It reports whether
// the turn has to end: the read goroutine has to deal with a socket that has failed, or
// to pause for a handover.
func (e *Endpoint) readForCall(s *shard, c *Conn) (end bool) {
	done := false
	defer func() {
		if !done {
			s.dropBatch()
		}
	}()
	_, ok := e.readOnce(s, c)
	done = true
	return !ok || s.failures.Many() || e.wantsPause(s) != nil
}

// endReadTurn ends the turn of a call of c. follow says that another call is expected.
func (e *Endpoint) endReadTurn(s *shard, c *Conn, follow bool) { s.lead.Release(c, s.in.size, follow) }

// arrivedUnit is what arrived counts in, in bytes.
const arrivedUnit = 64

// arrived returns how much has arrived at a socket so far, modulo 2^32, as its buffer
// counts it; what waits there is included only if the system tells.
func (e *Endpoint) arrived(shard int) uint32 {
	s, q := &e.socket.shards[shard], udp.Queue{}
	s.readQueue(&q)
	return s.taken.Load() + uint32(q.Used/arrivedUnit)
}

// unread reports whether sessions have not had yet some of what had arrived at a socket
// when arrived returned n: it is in the socket's buffer, or in a batch whose reader was
// interrupted. It is false if the system does not tell, or if the reader was interrupted
// right after it has taken them out of the buffer. In a process that lacks processor
// time, what has arrived since then counts too: ACKs in it are late for the same reason.
// In others it does not, as a flood would delay all time-outs.
func (e *Endpoint) unread(shard int, n uint32) bool {
	s, q := &e.socket.shards[shard], udp.Queue{}
	if int32(s.fed.Load()-n) >= 0 && !udp.IsDelayed() || e.takeover.Gate.Load() != nil { // after a handover, another process reads the socket
		return false
	}
	if since := s.taking.Load(); since != 0 && e.now()-time.Duration(since) > session.HoldTime {
		return true
	}
	return s.readQueue(&q) && q.Used > 0
}

// interruptCall makes the call return that has the read turn.
func (e *Endpoint) interruptCall() { e.socket.shards[0].interrupt() }
