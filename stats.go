package kcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
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

// Records of Config.Logger. Whatever a peer, or an attacker, can cause records
// of is bounded in rate.

const (
	// sessionLogRate is the most records of sessions a second, begins and ends
	// together, and as many may come at once.
	sessionLogRate = 100
	// handshakeLogEvery is the least time between two records of failed handshakes.
	handshakeLogEvery = time.Second
	// unopenedLogEvery is the least time between two records of packets that do not open.
	unopenedLogEvery = 10 * time.Second
)

// endpointLog bounds the records of an endpoint. It needs no lock.
type endpointLog struct {
	warnings, sessions, handshakes, unopened fair.Limit

	unopenedBefore atomic.Uint64 // session.Counters.DropCipher as of the last record of unopened

	begun    bool     // the endpoint has started; immutable then
	refusals []error  // until then: what the system refuses
	known    sync.Map // texts of refusals that have a record
}

// convAttr returns a conversation id as records, traces and pages have it.
func convAttr(conv uint32) slog.Attr { return slog.String("conv", fmt.Sprintf("%08x", conv)) }

// debug logs an event of a session.
func (e *Endpoint) debug(msg string, remote net.Addr, conv uint32) {
	log := e.config.Logger
	if log == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	left, ok := e.log.sessions.Allow(e.now(), time.Second/sessionLogRate, sessionLogRate)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("remote", remote.String()), convAttr(conv)}
	if left > 0 {
		attrs = append(attrs, slog.Uint64("left_out", left))
	}
	log.LogAttrs(context.Background(), slog.LevelDebug, "kcp: "+msg, attrs...)
}

// warn logs an error of the endpoint, at most one a second.
func (e *Endpoint) warn(msg string, err error) {
	if e.config.Logger == nil {
		return
	}
	if _, ok := e.log.warnings.Allow(e.now(), time.Second, 1); ok {
		e.config.Logger.Warn("kcp: "+msg, "local", e.LocalAddr().String(), "err", err)
	}
}

// refused records, before the endpoint starts, what the system refuses.
func (l *endpointLog) refused(err error) { l.refusals = append(l.refusals, err) }

// warnRefusals logs, in one record, what the system has refused to the sockets before the
// endpoint starts.
func (e *Endpoint) warnRefusals() {
	l := &e.log
	err := onOneLine(l.refusals)
	l.begun, l.refusals = true, nil
	if err != nil && e.config.Logger != nil {
		e.config.Logger.Warn("kcp: "+refusedBySystem, "local", e.LocalAddr().String(), "err", err)
	}
}

const refusedBySystem = "the system refuses operations of sockets, as sandboxes do"

// onOneLine returns errors as one that prints on one line, each text once; nil if there
// are none.
func onOneLine(errs []error) error {
	var texts []string
	for _, err := range errs {
		if text := err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// warnRefusal logs what the system refuses to a socket. Of a call it is the first one, as
// the other sockets of the endpoint meet it too.
func (e *Endpoint) warnRefusal(err error) {
	l := &e.log
	if call := (*udp.CallError)(nil); errors.As(err, &call) {
		if !l.begun {
			l.refused(err)
		} else if _, known := l.known.LoadOrStore(call.Call, true); !known && e.config.Logger != nil {
			e.config.Logger.Warn("kcp: "+refusedBySystem, "local", e.LocalAddr().String(), "err", err)
		}
		return
	}
	e.warn("the system refuses merged datagrams", err)
}

// warnHandshake logs that a handshake has failed that a peer has begun.
func (e *Endpoint) warnHandshake(remote net.Addr, err error) {
	if e.config.Logger == nil {
		return
	}
	if left, ok := e.log.handshakes.Allow(e.now(), handshakeLogEvery, 1); ok {
		e.config.Logger.Warn("kcp: TLS handshake of a peer failed", "local", e.LocalAddr().String(),
			"remote", remote.String(), "err", err, "left_out", left)
	}
}

// warnUnopened logs that a packet from an address did not open, and how many
// did not since the last such record: at once for the first, and then every
// unopenedLogEvery at most.
func (e *Endpoint) warnUnopened(from session.Source) {
	if e.config.Logger == nil {
		return
	}
	if _, ok := e.log.unopened.Allow(e.now(), unopenedLogEvery, 1); !ok {
		return
	}
	total := e.shared.Counters.DropCipher.Load()
	e.config.Logger.Warn("kcp: packets cannot be opened: keys or ciphers differ, or the packets are damaged or forged",
		"local", e.LocalAddr().String(), "last_from", from.NetAddr().String(),
		"packets", total-e.log.unopenedBefore.Swap(total))
}
