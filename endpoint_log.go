package kcp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
)

// Records of Config.Logger. Whatever a peer, or an attacker, can cause records
// of is bounded in rate.

const (
	// sessionLogRate is the most records of sessions a second, begins and ends
	// together, and as many may come at once.
	sessionLogRate = 100
	// handshakeLogEvery is the least time between two records of failed
	// handshakes.
	handshakeLogEvery = time.Second
	// unopenedLogEvery is the least time between two records of packets that do
	// not open.
	unopenedLogEvery = 10 * time.Second
)

// endpointLog bounds the records of an endpoint. It needs no lock.
type endpointLog struct {
	warnings, sessions, handshakes, unopened admission.Limit

	unopenedBefore atomic.Uint64 // endpointCounters.dropCipher as of the last record of unopened
}

// debug logs an event of a session.
func (e *Endpoint) debug(msg string, remote net.Addr, conv uint32) {
	log := e.config.Logger
	if log == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	left, ok := e.log.sessions.Allow(e.now(), time.Second/sessionLogRate)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("remote", remote.String()), slog.String("conv", fmt.Sprintf("%08x", conv))}
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
	if _, ok := e.log.warnings.Allow(e.now(), time.Second); ok {
		e.config.Logger.Warn("kcp: "+msg, "local", e.LocalAddr().String(), "err", err)
	}
}

// warnHandshake logs that a handshake has failed that a peer has begun.
func (e *Endpoint) warnHandshake(remote net.Addr, err error) {
	if e.config.Logger == nil {
		return
	}
	if left, ok := e.log.handshakes.Allow(e.now(), handshakeLogEvery); ok {
		e.config.Logger.Warn("kcp: TLS handshake of a peer failed", "local", e.LocalAddr().String(),
			"remote", remote.String(), "err", err, "left_out", left)
	}
}

// warnUnopened logs that a packet from an address did not open, and how many
// did not since the last such record: at once for the first, and then every
// unopenedLogEvery at most.
func (e *Endpoint) warnUnopened(from source) {
	if e.config.Logger == nil {
		return
	}
	if _, ok := e.log.unopened.Allow(e.now(), unopenedLogEvery); !ok {
		return
	}
	total := e.counters.dropCipher.Load()
	e.config.Logger.Warn("kcp: packets cannot be opened: keys or ciphers differ, or the packets are damaged or forged",
		"local", e.LocalAddr().String(), "last_from", from.netAddr().String(),
		"packets", total-e.log.unopenedBefore.Swap(total))
}
