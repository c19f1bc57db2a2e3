package kcp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// PeerInfo is what a session knows of its peer.
type PeerInfo struct {
	// Known reports whether the peer's packets have shown its kind. Until then Legacy and
	// Version are zero.
	Known bool
	// Legacy reports whether the peer is without this package's signals. An extended peer
	// may count as a legacy one until its first signal arrives.
	Legacy bool
	// Version is the version of the peer's signals, now 2; 0 for a legacy peer, and
	// before INFO has arrived (WIRE.md §5).
	Version int
	// TLS is what the TLS handshake has agreed on, such as the peer's certificates. It is
	// nil without Config.TLS, and before the handshake is done.
	TLS *tls.ConnectionState
}

// countEnd counts a session that has ended with err. offered says whether it was
// dialled, or Accept could have returned it.
func countEnd(n *stats.Ended, err error, offered bool) { *endCounter(n, err, offered)++ }

// endCounter returns the counter of a session that has ended with err.
func endCounter(n *stats.Ended, err error, offered bool) *uint64 {
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

// limits returns the limits that stats.Endpoint has.
func (c *Config) limits() stats.Limits {
	return stats.Limits{Sessions: c.Limits.MaxSessions, Backlog: c.Limits.Backlog, HalfOpen: c.Limits.MaxHalfOpen, Buffered: c.Limits.MaxBuffered}
}

// Trace is the hooks of a session: go doc kcp/trace.Hooks.
type Trace = trace.Hooks
