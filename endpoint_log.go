package kcp

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
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

// logLimit bounds the rate of records: a token bucket as one number (the
// generic cell rate algorithm). The zero value is ready. It needs no lock.
type logLimit struct {
	next    atomic.Int64  // ns since the epoch: when the bucket is full again
	leftOut atomic.Uint64 // records that were not allowed since the last one that was
}

// allow reports whether a record may be written at now, in nanoseconds since
// the epoch, and how many were left out before it. every is the mean time between
// two records; those of a second may come at once.
func (l *logLimit) allow(now int64, every time.Duration) (leftOut uint64, ok bool) {
	each := int64(every)
	for {
		next := l.next.Load()
		full := max(next, now)
		if full-now > int64(time.Second)-each {
			l.leftOut.Add(1)
			return 0, false
		}
		if l.next.CompareAndSwap(next, full+each) {
			return l.leftOut.Swap(0), true
		}
	}
}

// debug logs an event of a session.
func (e *Endpoint) debug(msg string, remote net.Addr, conv uint32) {
	log := e.config.Logger
	if log == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	left, ok := e.sessionLog.allow(int64(e.now()), time.Second/sessionLogRate)
	if !ok {
		return
	}
	attrs := []slog.Attr{slog.String("remote", remote.String()), slog.Uint64("conv", uint64(conv))}
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
	now, after := int64(e.now()), e.logAfter.Load()
	if now >= after && e.logAfter.CompareAndSwap(after, now+int64(time.Second)) {
		e.config.Logger.Warn("kcp: "+msg, "local", e.LocalAddr().String(), "err", err)
	}
}

// warnHandshake logs that a handshake has failed that a peer has begun.
func (e *Endpoint) warnHandshake(remote net.Addr, err error) {
	if e.config.Logger == nil {
		return
	}
	if left, ok := e.handshakeLog.allow(int64(e.now()), handshakeLogEvery); ok {
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
	now, after := int64(e.now()), e.unopenedLogAfter.Load()
	if now < after || !e.unopenedLogAfter.CompareAndSwap(after, now+int64(unopenedLogEvery)) {
		return
	}
	total := e.counters.dropCipher.Load()
	e.config.Logger.Warn("kcp: packets do not open: another key or cipher, damaged, or forged",
		"local", e.LocalAddr().String(), "last_from", from.netAddr().String(),
		"packets", total-e.unopenedLogged.Swap(total))
}
