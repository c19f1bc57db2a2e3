package kcp

import (
	"context"
	"net"
	"os"
	"sync"

	"github.com/arqnet/kcp/internal/session"
)

// datagramHandler is a handler of datagrams. running is held while handle runs.
// It is locked before Conn.mu, and while no other lock is held. So calls do not
// overlap, although two sockets may receive the session's packets.
type datagramHandler struct {
	running sync.Mutex
	handle  func(b []byte)
}

// handleDatagrams makes f take the datagrams that arrive from now on, as
// compat.HandleDatagrams says.
func (c *Conn) handleDatagrams(f func(b []byte)) {
	c.mu.Lock()
	defer c.unlock()
	_ = c.session.Set(&session.Change{Of: session.OfDatagrams, On: f != nil}) // which does not fail
	if f != nil {
		c.state().handler = &datagramHandler{handle: f}
	} else if c.calls != nil {
		c.calls.handler = nil
	}
}

// handleDatagram locks c.mu to find the handler and count the datagram, and
// passes b to it without a lock of the session. If the handler was removed, or
// the session closed, within the batch, it drops b.
func (c *Conn) handleDatagram(b []byte) {
	c.mu.Lock()
	h := c.handlerOf(b)
	if h == nil {
		return
	}
	h.running.Lock()
	defer h.running.Unlock()
	h.handle(b)
}

// handlerOf counts a datagram that has arrived, and returns the handler that takes it;
// nil: it is dropped. It unlocks c.mu, also if a hook of the trace panics.
func (c *Conn) handlerOf(b []byte) *datagramHandler {
	defer c.unlock()
	h := c.state().handler
	if !c.session.Handed(len(b), h != nil) {
		return nil
	}
	return h
}

// MaxDatagramSize returns the size in bytes of the largest datagram that is known to
// pass: at first what fits into 1200 bytes of UDP payload, or a smaller Config.MTU. The
// first call, or SendDatagram, has the path MTU of an extended peer probed; then what
// fits into that.
func (c *Conn) MaxDatagramSize() int {
	c.mu.Lock()
	defer c.unlock()
	return c.session.DatagramSize()
}

// SendDatagram sends a copy of b as one packet beside the byte stream, for
// ReceiveDatagram or kcp-go's OOB handler: unreliable, unordered, without FEC, and not
// limited by the windows. It does not wait, and returns a *SizeError if b is too large.
// Until the path MTU has been confirmed, and to a legacy peer, all is taken that fits
// into stats.PathMTU.MTU.
//
// b is dropped, and counted as stats.Datagrams.Unsent, if 4096 packets of the session
// wait for the socket, or at the anti-amplification limit (RFC 9000 §8.1). With a cap of
// the rate, up to 256 datagrams wait for 100 ms.
func (c *Conn) SendDatagram(b []byte) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.SendDatagram(b); err != nil {
		return c.opError("write", err)
	}
	return nil
}

// ReceiveDatagram waits for the next datagram of the peer and returns it. At most 256
// wait for it; further ones push out the oldest. Errors are ctx.Err(),
// os.ErrDeadlineExceeded when the read deadline has passed, ErrInUse in a Group, and
// after the last datagram ErrPeerClosed, not io.EOF, if the peer has closed the session.
func (c *Conn) ReceiveDatagram(ctx context.Context) (next []byte, err error) {
	err = c.await(blocking{op: "read", ctx: ctx}, func() (pause, error) {
		s := c.session.State()
		switch {
		case s.Left:
			return pause{}, net.ErrClosed
		case c.io.member != nil:
			return pause{}, errGrouped
		case ctx.Err() != nil:
			return pause{}, ctx.Err()
		case c.io.readDeadline.expired():
			return pause{}, os.ErrDeadlineExceeded
		}
		b, ok := c.session.ReceiveDatagram()
		if ok {
			next = b
			return pause{}, nil
		}
		return pause{on: &c.io.canRead}, s.Err
	}, nil)
	return next, err
}
