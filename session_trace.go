package kcp

import (
	"context"
	"log/slog"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
)

// startTrace gets the hooks of the session from Config.Tracer, and shows its
// first state. It locks c.mu, but not while it calls the application's code. No
// hook of the session is called before.
func (c *Conn) startTrace(first SessionState) {
	tracer := c.ep.config.Tracer
	if tracer == nil {
		return
	}
	t := tracer(c)
	if t == nil {
		return
	}
	c.mu.Lock()
	defer c.unlock()
	if c.closing.Phase >= closing.Ended {
		return
	}
	c.kcp.SetTrace(t)
	c.traceState(first, nil)
	if first == SessionAccepted && !c.hs.unvalidated.Load() {
		c.traceState(SessionEstablished, nil)
	}
	if t.MTU != nil {
		c.call(func() { t.MTU(c.kcp.packetSize()) })
	}
}

// traceState calls Trace.State.
func (c *session) traceState(s SessionState, err error) {
	if t := c.kcp.tracing(); t != nil && t.State != nil {
		c.call(func() { t.State(s, err) })
	}
}

// traceMoved calls Trace.Moved with the address that the peer now has.
func (c *session) traceMoved() {
	if t := c.kcp.tracing(); t != nil && t.Moved != nil {
		c.call(func() { t.Moved(c.ends.Load().remote.String()) })
	}
}

// traceDropped calls Trace.Dropped.
func (c *session) traceDropped(size int, reason error) {
	if t := c.kcp.tracing(); t != nil && t.Dropped != nil {
		c.call(func() { t.Dropped(size, reason) })
	}
}

// traceSignal calls Trace.Signal for a signal that does not pass the state
// machine.
func (c *session) traceSignal(sent bool, code signalCode) {
	if t := c.kcp.tracing(); t != nil && t.Signal != nil {
		c.call(func() { t.Signal(sent, code.String()) })
	}
}

// logEnd returns what tells the Logger that the session has ended, with the cause and its
// figures; nil: nothing does. That runs without locks, as a Logger may call anything.
func (c *Conn) logEnd() func() {
	e := c.ep
	log := e.config.Logger
	if log == nil || !log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	left, ok := e.mayLogSession()
	if !ok {
		return nil
	}
	k := c.kcp.snapshot()
	n := *c.kcp.counts()
	cause := "closed in order"
	if c.closing.err != nil {
		cause = c.closing.err.Error()
	}
	attrs := []slog.Attr{
		slog.String("remote", c.RemoteAddr().String()),
		slog.Uint64("conv", uint64(c.Conv())),
		slog.String("cause", cause),
		slog.Bool("undelivered", c.closing.Undelivered()),
		slog.Duration("age", (e.now() - c.hs.born).Round(time.Millisecond)),
		slog.Uint64("bytes_sent", n.BytesSent),
		slog.Uint64("bytes_received", n.BytesReceived),
		slog.Uint64("segments_sent", n.SegmentsSent),
		slog.Uint64("retransmits", n.Retransmits()),
		slog.Uint64("spurious", n.SpuriousRetransmits),
		slog.Duration("rtt", time.Duration(k.srtt)*time.Millisecond),
		slog.Int("mtu", c.mtu()),
		slog.Uint64("dropped", c.dropCounts().Total()),
	}
	if left > 0 {
		attrs = append(attrs, slog.Uint64("left_out", left))
	}
	return func() { log.LogAttrs(context.Background(), slog.LevelDebug, "kcp: session ended", attrs...) }
}

// Dialled reports whether this end has opened the session.
func (c *Conn) Dialled() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.hs.Role >= opening.Dialled
}
