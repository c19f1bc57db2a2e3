package kcp

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/stats"
)

// Figures of sessions, streams and endpoints. go doc shows the fields of an alias under
// the name that its comment gives.

type (
	ConnStats     = stats.Conn      // of a session: go doc kcp/stats.Conn
	StreamStats   = stats.Stream    // of a stream: go doc kcp/stats.Stream
	EndpointStats = stats.Endpoint  // of an endpoint and its listener: go doc kcp/stats.Endpoint
	SessionTotals = stats.Totals    // sums over the sessions of an endpoint: go doc kcp/stats.Totals
	EndedSessions = stats.Ended     // sessions that have ended, by cause: go doc kcp/stats.Ended
	Drops         = stats.Drops     // packets dropped, by reason: go doc kcp/stats.Drops
	TrafficStats  = stats.Traffic   // packets of a session in one direction, and their loss: go doc kcp/stats.Traffic
	DatagramStats = stats.Datagrams // datagrams: go doc kcp/stats.Datagrams
	FECStats      = stats.FEC       // forward error correction: go doc kcp/stats.FEC
	PathMTUStats  = stats.PathMTU   // path MTU discovery: go doc kcp/stats.PathMTU
)

// countDrop counts one packet that the state machine has dropped with err.
func countDrop(d *Drops, err error) {
	switch err {
	case ErrPacketShort:
		d.Short++
	case ErrConv:
		d.Conv++
	case ErrSegmentLength:
		d.Length++
	case ErrCommand:
		d.Command++
	case ErrForgedUna:
		d.Una++
	case ErrPiece:
		d.Piece++
	case ErrRequests:
		d.Requests++
	}
}

// Stats returns a snapshot of the session.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.unlock()
	return c.session.stats()
}

// countEnd counts a session that has ended with err. offered says whether it was
// dialled, or Accept could have returned it.
func countEnd(n *EndedSessions, err error, offered bool) { *endCounter(n, err, offered)++ }

// endCounter returns the counter of a session that has ended with err.
func endCounter(n *EndedSessions, err error, offered bool) *uint64 {
	var lost *PeerLostError
	var silent *NoAnswerError
	switch {
	case !offered:
		return &n.Unaccepted
	case err == nil:
		return &n.Closed
	case errors.Is(err, ErrPeerClosed):
		return &n.PeerClosed
	case errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled):
		return &n.Aborted
	case errors.Is(err, ErrNotDelivered):
		return &n.NotDelivered
	case errors.Is(err, ErrReset):
		return &n.Reset
	case errors.Is(err, ErrRefused):
		return &n.Refused
	case errors.Is(err, ErrMemoryPressure):
		return &n.Memory
	case errors.As(err, &silent):
		return &n.NoAnswer
	case errors.As(err, &lost) && lost.Idle:
		return &n.Idle
	case lost != nil && lost.Stalled > 0:
		return &n.Stalled
	case lost != nil:
		return &n.Lost
	}
	return &n.Failed
}

// limits returns the limits that EndpointStats has.
func (c *Config) limits() stats.Limits {
	return stats.Limits{Sessions: c.MaxSessions, Backlog: c.Backlog, HalfOpen: c.MaxHalfOpen, Buffered: c.MaxBuffered}
}

// endpointCounters are the counters behind EndpointStats.
type endpointCounters struct {
	packetsSent, packetsReceived atomic.Uint64
	bytesSent, bytesReceived     atomic.Uint64
	readErrors, writeErrors      atomic.Uint64
	tooLarge                     atomic.Uint64

	dropShort, dropUnknown, dropEnded atomic.Uint64
	dropCipher, dropReplay            atomic.Uint64
	dropSessions, dropBacklog         atomic.Uint64
	dropHalfOpen, dropReplies         atomic.Uint64
	dropCredit, dropHandshake         atomic.Uint64
	handshakeErrors                   atomic.Uint64
	cookiesSent, endedForMemory       atomic.Uint64
	resetsSent                        atomic.Uint64
}

// count counts packets without a session, and the answers to them.
func (n *endpointCounters) count(what ...admission.Reason) {
	counters := [...]*atomic.Uint64{
		admission.Short: &n.dropShort, admission.Cipher: &n.dropCipher, admission.Replay: &n.dropReplay,
		admission.Unknown: &n.dropUnknown, admission.EndedSession: &n.dropEnded, admission.Sessions: &n.dropSessions,
		admission.Backlog: &n.dropBacklog, admission.HalfOpen: &n.dropHalfOpen, admission.Shaking: &n.dropHandshake,
		admission.Limited: &n.dropReplies, admission.CookieSent: &n.cookiesSent, admission.ResetSent: &n.resetsSent,
	}
	for _, w := range what {
		if w != admission.NoReason {
			counters[w].Add(1)
		}
	}
}

// Stats returns a snapshot of the endpoint. Totals has the sums over its sessions.
func (e *Endpoint) Stats() EndpointStats {
	e.mu.RLock()
	sessions, l := e.table.Len(), e.acceptorLocked()
	tally := &e.table.tally
	peak, dialled, accepted, ended := tally.peak, tally.dialled, tally.accepted, tally.ended
	e.mu.RUnlock()
	n := &e.counters
	s := EndpointStats{
		Sessions:        sessions,
		Peak:            peak,
		Dialled:         dialled,
		Accepted:        accepted,
		Ended:           ended,
		PacketsSent:     n.packetsSent.Load(),
		PacketsReceived: n.packetsReceived.Load(),
		BytesSent:       n.bytesSent.Load(),
		BytesReceived:   n.bytesReceived.Load(),
		ReadErrors:      n.readErrors.Load(),
		WriteErrors:     n.writeErrors.Load(),
		TooLarge:        n.tooLarge.Load(),
		DropShort:       n.dropShort.Load(),
		DropCipher:      n.dropCipher.Load(),
		DropReplay:      n.dropReplay.Load(),
		DropUnknown:     n.dropUnknown.Load(),
		DropEnded:       n.dropEnded.Load(),
		DropSessions:    n.dropSessions.Load(),
		DropBacklog:     n.dropBacklog.Load(),
		DropHalfOpen:    n.dropHalfOpen.Load(),
		DropReplies:     n.dropReplies.Load(),
		DropCredit:      n.dropCredit.Load(),
		DropHandshake:   n.dropHandshake.Load(),
		HandshakeErrors: n.handshakeErrors.Load(),
		CookiesSent:     n.cookiesSent.Load(),
		ResetsSent:      n.resetsSent.Load(),
		HalfOpen:        int(e.load.halfOpen.Load()),
		Buffered:        int(e.load.held()),
		WriteBuffered:   int(e.load.written.Load()) * writeGrain,
		EndedForMemory:  n.endedForMemory.Load(),
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
func (l *Listener) Stats() EndpointStats { return l.ep.Stats() }
