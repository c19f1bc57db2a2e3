package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
)

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
	if s := &e.socket.shards[0]; s.lead.Possible() && e.Single() && s.lead.Acquire() {
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
