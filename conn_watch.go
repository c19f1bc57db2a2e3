package kcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// callState is what only some applications have of a session besides Read and Write:
// streams, channels and handlers. Conn.mu guards it.
type callState struct {
	done    chan struct{}    // closed when the session has ended; nil: not asked for
	closed  bool             // done is closed
	room    chan struct{}    // closed when there is room; nil: not asked for since
	handler *datagramHandler // nil: there is none

	canAccept notifier
	ready     container.List[Stream] // that may have an event for the session's group, or the next
	reported  bool                   // a group had the events of streams, and the session has left it
	waiting   int32                  // calls of streams that do not read the socket while they wait
}

// state returns c.calls, which it makes.
func (c *Conn) state() *callState {
	if c.calls == nil {
		c.calls = new(callState)
		c.calls.canAccept.init(c)
	}
	return c.calls
}

// end closes done. w may be nil.
func (w *callState) end() {
	if w != nil && w.done != nil && !w.closed {
		w.closed = true
		close(w.done)
	}
}

// Done returns a channel that is closed when the session has ended, for whatever reason;
// Err then returns it. After Close that may take as long as delivery in the background
// does. What has arrived before can still be read. A peer's CloseWrite does not end the
// session.
func (c *Conn) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.unlock()
	w := c.state()
	if w.done == nil {
		w.done = make(chan struct{})
		if c.session.State().Retired {
			w.end()
		}
	}
	return w.done
}

// Err returns nil until the session has ended, and then always the same cause, not
// wrapped in a *net.OpError:
//   - net.ErrClosed after Close, once all was delivered; after Abort or Endpoint.Close;
//   - ErrPeerClosed, where Read returns io.EOF, or a *PeerCloseError with the peer's
//     reason;
//   - ErrReset, ErrNotDelivered, ErrMemoryPressure, a *PeerLostError, a *SocketError;
//   - ErrRefused, ErrTLSRequired, ErrNoTLS, a *HandshakeError, if Dial did not wait;
//   - with TLS, that the peer changes its keys too fast (RFC 9001 §6.2); an error of
//     Cipher.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.unlock()
	s := c.session.State()
	if s.Ended && s.Err == nil {
		return net.ErrClosed
	} else if !s.Ended {
		return nil
	}
	return s.Err
}

// Endpoint returns the endpoint that carries the session. Dial makes a new one.
func (c *Conn) Endpoint() *Endpoint { return c.ep }

// Stats returns a snapshot of the session.
func (c *Conn) Stats() stats.Conn {
	c.mu.Lock()
	defer c.unlock()
	return c.session.Stats()
}

// tally adds the figures of the session, which has ended, to t. Conn.mu and
// Endpoint.mu are held.
func (c *Conn) tally(t *sessionTally) {
	s := c.session.State()
	countEnd(&t.ended, s.Err, s.Offered)
	c.session.AddTo(&t.totals)
}

// total locks c.mu and adds the session's figures to t.
func (c *Conn) total(t *stats.Totals) {
	c.mu.Lock()
	defer c.unlock()
	c.session.AddTo(t)
}

// startTrace gets the hooks of the session from Config.Tracer, and shows its
// first state. It locks c.mu, but not while it calls the application's code. No
// hook of the session is called before.
func (c *Conn) startTrace(first trace.SessionState) {
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
	c.session.StartTrace(t, first)
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
	n := c.session.Report()
	cause := "closed in order"
	if n.Err != nil {
		cause = n.Err.Error()
	}
	attrs := []slog.Attr{
		slog.String("remote", c.RemoteAddr().String()),
		convAttr(c.Conv()),
		slog.String("cause", cause),
		slog.Bool("undelivered", n.Undelivered),
		slog.Duration("age", n.Age.Round(time.Millisecond)),
		slog.Uint64("bytes_sent", n.BytesSent),
		slog.Uint64("bytes_received", n.BytesReceived),
		slog.Uint64("segments_sent", n.SegmentsSent),
		slog.Uint64("retransmits", n.Retransmits()),
		slog.Uint64("spurious", n.SpuriousRetransmits),
		slog.Duration("rtt", n.Rtt),
		slog.Int("mtu", n.Mtu),
		slog.Uint64("dropped", n.Dropped.Total()),
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
	return c.session.State().Dialled
}

// Flush waits until the peer's endpoint has acknowledged all that was written before the
// call, but not what streams send. It returns nil if the data has arrived, even if the
// session has ended since. Errors are ctx.Err(), and ErrPeerClosed if the peer has closed
// the session without taking the data. It must not be called from a handler of
// Group.Handle.
func (c *Conn) Flush(ctx context.Context) error {
	var call session.FlushCall
	return c.await(blocking{op: "flush", ctx: ctx}, func() (pause, error) {
		if done, err := c.session.Delivered(&call, ctx.Err()); done || err != nil {
			return pause{}, err
		}
		return pause{on: &c.io.canWrite}, nil
	}, func() { c.session.FlushEnds(&call) })
}

// Receipts: calls of MessageOptions.Done. They run on a goroutine of the session, one
// after another and without locks, so that the application may do in them what it
// likes.

// runReceipts calls the receipts that are due. It locks c.mu, but not while it calls one.
func (c *Conn) runReceipts() {
	for {
		c.mu.Lock()
		due := c.session.TakeReceipts()
		if len(due) == 0 {
			c.io.receipts = false
			c.unlock()
			return
		}
		c.unlock()
		for _, r := range due {
			r.Done(r.Err)
		}
	}
}

// Ping sends a PING to the peer's endpoint, waits for the answer, and returns the time
// between them. It repeats PING after a retransmission time-out, 50 ms at least, and then
// at doubled distances up to 2 s; the answer to any of them counts. Errors are ctx.Err(),
// and ErrLegacyPeer. It must not be called from a handler of Group.Handle.
func (c *Conn) Ping(ctx context.Context) (rtt time.Duration, err error) {
	var call session.PingCall
	err = c.await(blocking{op: "ping", ctx: ctx}, func() (pause, error) {
		if waits, err := c.session.Measure(&call, ctx.Err()); !waits {
			return pause{}, err
		}
		return pause{on: &c.io.canWrite, until: call.Next}, nil
	}, nil)
	return call.Rtt, err
}
