package kcp

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/stats"
)

// notifier is what the calls of a session wait on: a condition variable with
// Conn.mu as its lock, whose Broadcast also reaches the call that reads the
// socket (see wakeup.ReadTurn). Conn.mu guards it.
type notifier struct {
	cond    sync.Cond // L is the *connLock of the session
	count   uint32    // broadcasts, modulo 2^32
	waiting int32     // calls that wait, without the one that reads the socket
}

// connLock is a Conn as the sync.Locker of its notifiers, which find the session by it.
type connLock Conn

func (l *connLock) Lock()   { l.mu.Lock() }
func (l *connLock) Unlock() { l.mu.Unlock() }

func (n *notifier) init(c *Conn) { n.cond.L = (*connLock)(c) }

// conn returns the session.
func (n *notifier) conn() *Conn { return (*Conn)(n.cond.L.(*connLock)) }

// Broadcast lets all calls that wait for n try again. c.mu is held.
func (n *notifier) Broadcast() {
	c := n.conn()
	n.count++
	if w := c.calls; w != nil && w.room != nil && n == &c.io.canWrite {
		c.announceRoom(w)
	}
	if m := c.io.member; m != nil && (n == &c.io.canRead || m.wantsRoom) {
		m.wake()
	}
	if n.waiting > 0 {
		c.io.woken = true
		// Of several calls of streams, none takes the read turn.
		c.io.wokeWaiter = c.io.wokeWaiter || c.calls == nil || c.calls.waiting <= 1
		switch held := c.io.wakes&holdWakes != 0; {
		case held && n == &c.io.canRead:
			c.io.wakes |= heldRead
		case held && n == &c.io.canWrite:
			c.io.wakes |= heldWrite
		default:
			n.cond.Broadcast()
		}
	}
	if c.io.readerWaitsFor == n {
		c.io.readerWaitsFor = nil
		c.ep.interruptCall()
	}
}

// heldWakes is which notifiers of a session have a wake-up of their waiting calls
// held back.
type heldWakes uint8

const (
	holdWakes heldWakes = 1 << iota // wake-ups are held back
	heldRead                        // some of canRead were
	heldWrite                       // some of canWrite were
)

// blocking is what await has to know of a call.
type blocking struct {
	op     string          // of the *net.OpError that says why the call fails
	ctx    context.Context // the call tries again when it is done; nil: it has none
	stream *Stream         // whose call it is; nil: of the session itself
}

// pause is what a call does before it tries again. The zero value: it is done.
type pause struct {
	on    *notifier     // it waits for the next Broadcast; nil: it does not wait
	until time.Duration // but no longer than that, since the epoch; 0: however long
	again bool          // it writes what it has collected, and tries again at once
}

// await is all calls of the application that may wait. It locks c.mu and calls try, which
// does not wait, until that is done or fails. It releases c.mu between two calls, so try
// has to look at everything again. end, if not nil, is called last with c.mu held, also
// if code of the application's panics.
func (c *Conn) await(call blocking, try func() (pause, error), end func()) error {
	var stop func() bool  // of the context; nil: it is not watched yet
	var watched *notifier // which its end wakes
	var timer *time.Timer // nil: none yet
	var at time.Duration  // when it fires
	c.mu.Lock()
	locked := true
	defer func() {
		if !locked {
			c.mu.Lock()
		}
		defer c.unlock()
		if stop != nil {
			stop()
		}
		if timer != nil {
			timer.Stop()
		}
		if end != nil {
			end()
		}
	}()
	for {
		p, err := try()
		if err != nil {
			return c.opError(call.op, err)
		} else if p.on == nil && !p.again {
			return nil
		}
		if call.ctx != nil && watched != p.on && call.ctx.Done() != nil {
			if stop != nil {
				stop()
			}
			stop, watched = context.AfterFunc(call.ctx, p.on.wake), p.on
		}
		if p.until != at {
			at = p.until
			if wait := at - c.ep.now(); timer == nil {
				timer = time.AfterFunc(wait, p.on.wake)
			} else {
				timer.Reset(wait)
			}
		}
		s, wait := c.beforeWait(p)
		switch {
		case wait:
			if call.stream != nil {
				c.calls.waiting++
			}
			p.on.waiting++
			p.on.cond.Wait()
			p.on.waiting--
			c.io.woken = false
			if c.ep.shared.Env != nil {
				c.ep.shared.Env.Woken(p.on.cond.L, c.Conv(), p.on.place(call.stream))
			}
			if call.stream != nil {
				c.calls.waiting--
			}
			continue
		case s == nil:
			locked = false
			c.unlock()
		default:
			locked = false
			count := p.on.count
			c.mu.Unlock()
			c.readWhile(p.on, count, s)
		}
		c.mu.Lock()
		locked = true
	}
}

// wake locks the session's mu, and is Broadcast.
func (n *notifier) wake() {
	c := n.conn()
	c.mu.Lock()
	defer c.unlock()
	n.Broadcast()
}

// beforeWait sends a reply that is pending. It reports whether the call may wait, as
// nothing is to be written before. If it returns a socket the call has the read turn, and
// reads it.
func (c *Conn) beforeWait(p pause) (s *shard, wait bool) {
	if c.calls != nil && p.on == &c.calls.canAccept {
		c.letGoOn()
		return nil, true // for as long as the session lasts, while others read and reply
	}
	c.letGoOn() // what has been sent may be the reply
	pending := c.io.reply == replyLeft
	if pending {
		c.io.reply = noReply
		c.session.Respond(c.ep.now(), c.io.woken)
		c.letGoOn()
	}
	if pending || p.again || c.session.ToWrite(session.Nobody) {
		return nil, false
	}
	if s = c.ep.takeReadTurn(); s != nil {
		c.io.readerWaitsFor = p.on
	}
	return s, s == nil
}

// place returns the place of a call among the session's calls that are woken at once.
func (n *notifier) place(s *Stream) wakeup.Place {
	switch c := n.conn(); {
	case s != nil:
		return wakeup.AtStream(uint64(s.state.ID()), n == &s.canWrite)
	case n == &c.io.canRead:
		return wakeup.AtRead
	case n == &c.io.canWrite:
		return wakeup.AtWrite
	}
	return wakeup.AtAcceptStream
}

// readWhile reads the socket, as the leader of the leader/followers pattern, until n has
// another count of broadcasts, or what has arrived is for the calling Read or Write. It
// runs without c.mu, and ends the read turn.
func (c *Conn) readWhile(n *notifier, count uint32, s *shard) {
	done := false
	defer func() {
		if !done { // code of the application's has panicked
			c.mu.Lock()
			defer c.unlock()
			c.endReading(s, false)
		}
	}()
	for !done {
		end := c.ep.readForCall(s, c)
		done = c.afterReading(n, count, s, end)
	}
}

// afterReading locks c.mu after a batch of input that a call has read, as readWhile says.
// end says that the read turn has to end. It reports whether that has ended.
func (c *Conn) afterReading(n *notifier, count uint32, s *shard, end bool) bool {
	c.mu.Lock()
	defer c.unlock()
	follow := c.ep.shared.Single() && (c.calls == nil || c.calls.waiting == 0)
	switch {
	case end:
		follow = false
	case c.io.reply != noReply && c.mayDeferReply(n):
		c.io.reply = replyLeft
	default:
		if c.io.reply != noReply {
			c.io.reply = noReply
			c.session.Respond(c.ep.now(), c.io.woken)
		}
		c.letGoOn()
		if n.count == count {
			c.io.readerWaitsFor = n
			return false
		}
	}
	c.endReading(s, follow && !c.session.State().Ended)
	return true
}

// endReading ends the read turn of a call. follow says that another call is expected.
func (c *Conn) endReading(s *shard, follow bool) {
	c.io.readerWaitsFor = nil
	c.ep.endReadTurn(s, c, follow)
	if c.othersWait() {
		c.io.canRead.Broadcast() // one of them takes the read turn
		c.io.canWrite.Broadcast()
	}
}

// mayDeferReply reports whether the reply to what has arrived may be left to the call
// that waits for n: it can go on, and no other call waits, be it for the session's Group.
func (c *Conn) mayDeferReply(n *notifier) bool {
	switch {
	case c.othersWait() || c.io.member != nil:
		return false
	case n == &c.io.canRead:
		return c.session.Waiting().Any
	}
	return c.session.Room() > 0
}

// othersWait reports whether calls wait besides the one that reads the socket.
func (c *Conn) othersWait() bool { return c.io.canRead.waiting+c.io.canWrite.waiting > 0 }

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

// startTrace gets the hooks of the session from Config.Tracer. It locks c.mu, but not while
// it calls the application's code.
func (c *Conn) startTrace() {
	tracer := c.ep.config.Tracer
	if tracer == nil {
		return
	}
	if t := tracer(c); t != nil {
		c.mu.Lock()
		defer c.unlock()
		c.session.SetTrace(t)
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
		slog.Duration("rtt", n.RTT),
		slog.Int("mtu", n.MTU),
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
// after another and without locks, so that the application may do in them what it likes.

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
	return call.RTT, err
}

// deadline is a point in time after which calls fail. Its owner's lock guards
// it. The zero value means no deadline.
type deadline struct {
	timer *time.Timer // nil: no deadline; past: it has passed
}

// past takes the place of the timer of a deadline that has passed.
var past = &time.Timer{}

// expired reports whether the deadline has passed.
func (d *deadline) expired() bool { return d.timer == past }

// err returns os.ErrDeadlineExceeded if the deadline has passed.
func (d *deadline) err() error {
	if d.timer == past {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// set moves the deadline; the zero time means never. The caller holds mu, which
// guards the deadline. When the deadline passes, set or its timer calls
// changed.Broadcast, with mu held.
func (d *deadline) set(t time.Time, mu sync.Locker, changed interface{ Broadcast() }) {
	if d.timer != nil && !d.expired() {
		d.timer.Stop()
	}
	d.timer = nil
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.timer = past
		changed.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		mu.Lock()
		defer mu.Unlock()
		if d.timer == timer { // not moved since
			d.timer = past
			changed.Broadcast()
		}
	})
	d.timer = timer
}
