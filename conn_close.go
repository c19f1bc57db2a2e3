package kcp

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/arqnet/kcp/internal/session"
)

// CloseWithError is Close with a reason. After the last byte the peer's Read returns a
// *PeerCloseError with code and text in place of io.EOF, as do its other calls in place
// of ErrPeerClosed. Code 0 with an empty text is a reason too. The text should be UTF-8,
// and is cut to 256 bytes, or to what fits into a packet. The reason is lost if the
// session is aborted. Legacy peers do not learn it.
func (c *Conn) CloseWithError(code uint64, text string) error {
	return c.close(&session.CloseCall{Explained: true, Code: code, Text: text})
}

// Close closes the session in both directions. Blocked calls return net.ErrClosed. Data
// that has arrived but was not read is dropped. Close waits until the peer has
// acknowledged all that was written and, if extended, the end: it reads io.EOF after the
// last byte. In a Group Close does not wait.
//
// On a Stream the peer reads io.EOF if this end has called Close or CloseWrite, or has
// written something and no call that writes was cut short. On others it reads
// ErrPeerClosed, so that half an answer does not look whole.
//
// The session is aborted if nothing more is acknowledged for Config.Linger, or not all
// within Config.MaxLinger. Close then returns ErrNotDelivered, or a *PeerLostError. If the
// session had ended before and written data is lost, it returns the cause, unless Read or
// Write has. A further Close returns net.ErrClosed. Without an error the peer has
// acknowledged all that was written.
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
// Reading goes on. It does not wait for an acknowledgement, but may wait until the session
// knows whether the peer supports it, on an accepted session for 300 ms at most.
//
// Errors are net.ErrClosed after Close, Abort or CloseWrite; ErrLegacyPeer, after which
// Write still works; os.ErrDeadlineExceeded when the write deadline passes; ErrPeerClosed
// when the peer has closed the session, with a reason or before all was taken; and the
// error with which the session ended.
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
// returns net.ErrClosed if Close or Abort was called before and the session has ended.
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

// SetLinger sets how long Close waits for the next acknowledgement, in place of
// Config.Linger. With d <= 0 Close does not wait, and delivery goes on in the
// background, as Config.Linger says. Errors are a *ConfigError for more than a year
// (8760 h), which changes nothing, and net.ErrClosed after Close or Abort.
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
