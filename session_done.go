package kcp

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/list"
)

// callState is what only some applications have of a session besides Read and Write:
// streams, channels and handlers. Conn.mu guards it.
type callState struct {
	done    chan struct{}    // closed when the session has ended; nil: not asked for
	closed  bool             // done is closed
	room    chan struct{}    // closed when there is room; nil: not asked for since
	handler *datagramHandler // nil: there is none

	canAccept notifier
	ready     list.List[Stream] // that may have an event for the session's group, or the next
	reported  bool              // a group had the events of streams, and the session has left it
	waiting   int32             // calls of streams that do not read the socket while they wait
}

// state returns c.calls, which it makes.
func (c *Conn) state() *callState {
	if c.calls == nil {
		c.calls = new(callState)
		c.calls.canAccept.init(c)
	}
	return c.calls
}

// measurement is what a session watches for Flush and Ping. Conn.mu guards it.
type measurement struct {
	flushed  seq    // the lowest snd_una that a call of Flush waits for
	flushes  bool   // flushed is valid
	flushing []*seq // what each call of Flush waits for

	ping   signal        // of Ping, or beside datagrams; the last one
	pingAt time.Duration // when it was sent, since the epoch; 0: answered, or none
	pongs  uint32        // answers
	pong   time.Duration // the round-trip time that the last of them has shown
}

// end closes done. w may be nil.
func (w *callState) end() {
	if w != nil && w.done != nil && !w.closed {
		w.closed = true
		close(w.done)
	}
}

// Done returns a channel that is closed when the session has ended, for whatever reason;
// Err then returns it, and may do so a moment before. That may be after Close has
// returned, while what was written is delivered in the background. Data that has arrived
// before can still be read. A peer's CloseWrite does not end the session.
func (c *Conn) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.unlock()
	w := c.state()
	if w.done == nil {
		w.done = make(chan struct{})
		if c.closing.Phase == closing.Retired {
			w.end()
		}
	}
	return w.done
}

// Err returns nil until the session has ended, and then always the same cause, not
// wrapped in a *net.OpError:
//   - net.ErrClosed after Close, once all was delivered; after Abort; and after
//     Endpoint.Close;
//   - ErrPeerClosed if the peer has closed the session, where Read returns io.EOF; a
//     *PeerCloseError if it has said why;
//   - ErrReset if the peer has aborted it;
//   - ErrNotDelivered if Close has given up;
//   - a *PeerLostError if the peer is gone;
//   - after a Dial that did not wait, with a negative Config.DialTimeout, what it would
//     have returned: ErrRefused, ErrTLSRequired, ErrNoTLS or a *HandshakeError;
//   - a *SocketError if the endpoint has ended because its socket cannot be read;
//   - with TLS, ErrKeyUpdate;
//   - ErrMemoryPressure, or an error of the Cipher.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case c.closing.Phase < closing.Ended:
		return nil
	case c.closing.err == nil:
		return net.ErrClosed
	}
	return c.reason(c.closing.err)
}

// Endpoint returns the endpoint that carries the session. Dial makes one for the session
// alone.
func (c *Conn) Endpoint() *Endpoint { return c.ep }
