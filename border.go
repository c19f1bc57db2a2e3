package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
)

// The border between sessions and endpoints: what either may ask of the other.
// Files of sessions use no fields that are declared in files of endpoints, and the
// reverse (TestBorder).

// What an endpoint asks of its sessions. Without Conn.mu, unless the comment says
// otherwise.

// tableEntry returns the place of c in the endpoint's table. Endpoint.mu guards it.
func (c *Conn) tableEntry() *admission.Entry[Conn] { return &c.entry }

// becomeDialled makes a new session one that this end dials.
func (c *Conn) becomeDialled() { c.hs.dialled, c.hs.offered = true, true }

// setConv gives a new session, which is in no table yet, another conversation id.
func (c *Conn) setConv(conv uint32) {
	c.entry.Conv = conv
	c.kcp.setConv(conv)
	c.protect()
}

// extended reports whether the peer is known to be an extended one.
func (c *Conn) extended() bool { return c.hs.greeted.Load() }

// halfOpen reports whether the peer's address is not validated.
func (c *Conn) halfOpen() bool { return c.hs.unvalidated.Load() }

// evictable reports whether the session may be ended to make room. A packet since
// the last call keeps it.
func (c *Conn) evictable(now time.Duration) admission.Look {
	switch {
	case !c.halfOpen():
		return admission.Established
	case now-c.hs.born < evictAfter:
		return admission.Young
	case c.hs.active.Swap(false):
		return admission.Active
	}
	return admission.Idle
}

// tally adds the figures of the session, which has ended, to t. Conn.mu and
// Endpoint.mu are held.
func (c *Conn) tally(t *sessionTally) {
	t.ended.count(c.closing.err, c.hs.offered)
	c.addTo(&t.totals)
}

// total locks c.mu and adds the session's figures to t.
func (c *Conn) total(t *SessionTotals) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addTo(t)
}

// timeWaitState returns the state to remember of a session that has ended.
// Conn.mu is held.
func (c *Conn) timeWaitState() timeWait {
	l := &c.hs
	tw := timeWait{una: c.kcp.recvNext(), protection: c.in.protection}
	if t := c.tls; t != nil && t.ended != nil {
		tw.protection, tw.shaking = t.ended, true
	}
	if l.kind == peerExtended {
		tw.token, tw.own = l.peerToken, l.token
		tw.aborted = c.closing.err != nil && c.closing.err != ErrPeerClosed
		tw.dropped = !l.offered
	}
	return tw
}

// acceptTLS gives a new session the keys that have opened its first packet; nil:
// it is one without TLS.
func (c *Conn) acceptTLS(initial *packetkeys.Initial) {
	if initial != nil {
		c.tls.handshake.initial = initial
	}
}

// appKeys returns what opens packets under the application keys of a session with
// TLS.
func (c *Conn) appKeys() *protect.TLS { return c.tls.app }

// resetBy reports whether a packet that did not open is a stateless reset of the
// peer of a session with TLS.
func (c *Conn) resetBy(packet []byte) bool { return c.tls.reset.by(packet) }

// shutResult is how a session has ended in Shutdown.
type shutResult uint8

const (
	shutDelivered shutResult = iota
	shutUndelivered
	shutCut // the context has ended first
)

// weight returns how many bytes the session holds because of its peer, and how
// many have arrived, or were read, in the last seconds.
func (c *Conn) weight(now time.Duration) (held, lately int64) {
	return c.in.holding.bytes.Load(), c.in.holding.lately(now)
}

// What a session asks of its endpoint.

// acceptor returns the listener; nil: there is none.
func (e *Endpoint) acceptor() *Listener {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.listener
}

// disposable reports whether the system chose the local port, for a single session.
func (e *Endpoint) disposable() bool { return e.socket.disposable }

// oneHalfOpenLess takes note that a session is not half open any more.
func (e *Endpoint) oneHalfOpenLess() { e.load.halfOpen.Add(-1) }

// hand leaves a datagram to the reader of a socket, which calls handleDatagram after
// the batch. The caller runs within that.
func (e *Endpoint) hand(shard int, d handedDatagram) {
	in := &e.socket.shards[shard].in
	in.handed = append(in.handed, d)
}

// mayLogSession reports whether the Logger may have a record of a session now, and
// how many were left out before it.
func (e *Endpoint) mayLogSession() (left uint64, ok bool) {
	return e.sessionLog.allow(int64(e.now()), time.Second/sessionLogRate)
}
