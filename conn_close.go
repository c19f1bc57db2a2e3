package kcp

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/arqnet/kcp/internal/session"
)

// CloseWithError is Close with a reason. After the last byte the peer's Read returns a
// *PeerCloseError with code and text in place of io.EOF, as do its other calls. Code 0
// with an empty text is a reason too. The text should be UTF-8, and is cut to 256 bytes,
// or to what fits into a packet. Legacy peers do not learn the reason.
func (c *Conn) CloseWithError(code uint64, text string) error {
	return c.close(&session.CloseCall{Explained: true, Code: code, Text: text})
}

// Close closes the session in both directions. Blocked calls return net.ErrClosed, and
// what was not read is dropped. Close waits until the peer has acknowledged all that was
// written and, if extended, the end: it reads io.EOF after the last byte. In a Group it
// does not wait. Streams that this end has not closed end as well. If it has written
// nothing to one, or a call that writes was cut short, the peer reads ErrPeerClosed
// there, not io.EOF.
//
// If nothing more is acknowledged for Config.Linger, or not all within Config.MaxLinger,
// the session is aborted, and Close returns ErrNotDelivered or a *PeerLostError. If
// written data was lost before, it returns the cause, unless Read or Write has.
func (c *Conn) Close() error { return c.close(new(session.CloseCall)) }

// close locks c.mu, and is Close.
func (c *Conn) close(call *session.CloseCall) error {
	return c.await(blocking{op: "close"}, func() (p pause, err error) {
		call.Background = c.io.member != nil // its goroutine may serve many sessions, or read the socket
		waits, err := c.session.Close(call)
		if waits {
			p.on = &c.io.canWrite
		}
		return p, err
	}, nil)
}

// CloseWrite closes the session for writing: the peer reads io.EOF after the last byte.
// Reading goes on. It waits at most until the session knows whether the peer supports it,
// on an accepted session for 300 ms. Errors are ErrLegacyPeer, after which Write still
// works, net.ErrClosed after CloseWrite, os.ErrDeadlineExceeded, and ErrPeerClosed when
// the peer has closed the session.
func (c *Conn) CloseWrite() error {
	return c.await(blocking{op: "close"}, func() (p pause, err error) {
		late := c.io.writeDeadline.expired()
		waits, until, err := c.session.CloseWrite(late)
		switch {
		case waits && late:
			return p, os.ErrDeadlineExceeded
		case waits:
			p.on, p.until = &c.io.canWrite, until
		}
		return p, err
	}, nil)
}

// Abort ends the session at once, also one that lingers after Close. What is not
// delivered is lost. The calls of an extended peer fail with a *PeerCloseError that has
// Aborted set, or with ErrReset if code is 0 and text empty. The text is as for
// CloseWithError. Abort waits until its packets have left, for a second at most. It
// returns net.ErrClosed if the session has ended after Close or Abort.
func (c *Conn) Abort(code uint64, text string) error {
	return c.abort(&session.CloseCall{Abrupt: true, Explained: code != 0 || text != "", Code: code, Text: text})
}

// abort locks c.mu, and is Abort, which waits until what the session sends has left. What
// is in a batch of several sessions leaves soon by itself, and may have to wait for the
// caller.
func (c *Conn) abort(call *session.CloseCall) error {
	sending := false
	err := func() error {
		c.mu.Lock()
		defer c.unlock()
		_, err := c.session.Close(call)
		sending = c.session.State().Sending
		return err
	}()
	if sending {
		awaitWrites([]*Conn{c})
	}
	if err != nil {
		return c.opError("close", err)
	}
	return nil
}

// SetLinger takes the place of Config.Linger: up to a year (8760 h). With d <= 0 Close
// does not wait. A longer d is a *ConfigError, which changes nothing.
func (c *Conn) SetLinger(d time.Duration) error {
	if d > maxTimeout {
		return &ConfigError{"Linger", d, fmt.Sprintf("must be at most %v", maxTimeout)}
	}
	return c.set(&session.Change{Of: session.OfLinger, Wait: d})
}

// retire removes an ended session from the endpoint, which keeps its TIME-WAIT
// entry (RFC 9293 §3.6.1). A call that returns finds the session gone from there.
func (c *Conn) retire() {
	if end, first := c.session.Retire(); first {
		c.ep.remove(c, end)
		c.calls.end()
	}
}

// waitClosed locks c.mu and waits until the session has ended, or only the
// answer to CLOSE is missing. It aborts the session if ctx ends first.
func (c *Conn) waitClosed(ctx context.Context) (result session.ShutResult) {
	_ = c.await(blocking{ctx: ctx}, func() (p pause, err error) {
		if result = c.session.Shut(ctx.Err() != nil); result == session.ShutWaits {
			p.on = &c.io.canWrite
		}
		return p, nil
	}, nil)
	return result
}
