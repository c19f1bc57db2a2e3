package kcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
)

// CloseWithError is Close with a reason. After the last byte the peer's Read returns a
// *PeerCloseError with code and text in place of io.EOF, as do its other calls in place
// of ErrPeerClosed, and Read of each Stream for which this end has not called Close or
// CloseWrite before. Code 0 with an empty text is a reason too. The text should be UTF-8,
// and is cut to 256 bytes, or to what fits into a packet. The reason is lost if the
// session is aborted. Legacy peers do not learn it.
func (c *Conn) CloseWithError(code uint64, text string) error {
	begun := false
	return c.await(blocking{op: "close"}, func() (pause, error) {
		if !begun && c.session.closing.Caller == closing.Uses {
			c.session.closeReasons().ours = c.session.encodeReason(code, text, headerSize)
		}
		return c.tryClose(&begun, false)
	}, nil)
}

// AbortWithError is Abort with a reason: what is not delivered is lost, and the calls of
// the peer fail with a *PeerCloseError that has Aborted set, in place of ErrReset, after
// what it has received. The text should be UTF-8, and is cut to 256 bytes, or to what
// fits into a packet. If that is lost, the answer to the peer's next packet repeats it
// (docs/calls.md). Legacy peers learn of nothing. Errors are as for Abort.
func (c *Conn) AbortWithError(code uint64, text string) error {
	c.mu.Lock()
	defer c.unlockWhenSent()
	if c.session.closing.Phase < closing.Ended {
		r := c.session.closeReasons()
		r.ours, r.abrupt = c.session.encodeReason(code, text, 2*headerSize), true
	}
	return c.abortByCall()
}

// Close closes the session in both directions. Blocked calls return net.ErrClosed. Data
// that has arrived but was not read is dropped. Close waits until the peer has
// acknowledged all that was written and, if extended, the end of the stream: it reads
// io.EOF after the last byte. In a Group it does not wait.
//
// The peer reads io.EOF, after all that was written, on a Stream for which this end has
// called Close or CloseWrite before. It also does if something was written, and no call
// that writes was cut short, or fails before that end is sent. On any other stream the
// peer reads ErrPeerClosed in place of io.EOF, so that half an answer does not look
// whole.
//
// The session is aborted if nothing more is acknowledged for Config.Linger (see
// SetLinger), or not all within Config.MaxLinger. Close then returns ErrNotDelivered, or
// a *PeerLostError if the peer is gone. If the session had ended before and written data
// is lost, Close returns the cause, unless Read or Write has returned it. A further
// Close returns net.ErrClosed.
//
// Without an error the peer has acknowledged all that was written. With one, data need
// not be lost: acknowledgements may be (docs/calls.md).
func (c *Conn) Close() error {
	_, err := c.closeKeeping(false)
	return err
}

// closeKeeping locks c.mu, and is Close. With keep it returns what could be read.
func (c *Conn) closeKeeping(keep bool) (received [][]byte, err error) {
	begun := false
	err = c.await(blocking{op: "close"}, func() (pause, error) {
		for size := c.session.kcp.PeekSize(); keep && !begun && size >= 0; size = c.session.kcp.PeekSize() {
			b := make([]byte, size)
			_, _ = c.session.kcp.Recv(b) // it is there, and fits
			received = append(received, b)
		}
		return c.tryClose(&begun, true)
	}, nil)
	return received, err
}

// tryClose is Close without waiting, which begins unless it has begun. whole is as for
// startClose.
func (c *Conn) tryClose(begun *bool, whole bool) (p pause, err error) {
	if !*begun {
		*begun = true
		if c.session.closing.Caller != closing.Uses {
			return p, net.ErrClosed
		}
		grouped := c.io.member != nil // its goroutine may serve many sessions, or read the socket
		c.session.stopCalls()
		if c.session.closing.Phase >= closing.Ended {
			c.session.dropReceived()
			c.session.kcp.Compact()
			c.session.account()
			switch {
			case c.session.closing.Undelivered() && c.session.closing.Read == closing.ReadClosed:
				return p, ErrNotDelivered
			case c.session.closing.Undelivered() && !c.io.errReported && !errors.Is(c.session.closing.err, net.ErrClosed):
				return p, c.session.closing.err
			}
			return p, nil
		}
		c.session.startClose(c.session.closing.Linger <= 0 || grouped, whole)
	}
	switch {
	case c.session.closing.Caller != closing.Leaves && c.session.closing.Closing():
		p.on = &c.io.canWrite
	case !c.session.closing.Undelivered():
	case c.session.closing.Phase >= closing.Ended && c.session.closing.err != nil && c.session.closing.err != ErrPeerClosed:
		err = c.session.closing.err
	default:
		err = ErrNotDelivered
	}
	return p, err
}

// CloseWrite closes the session for writing: the peer reads io.EOF after the last byte.
// Reading goes on. It does not wait for the peer to acknowledge the end, but may wait
// until the session knows whether the peer supports it: for its first answer, or on an
// accepted session 300 ms from the beginning at most.
//
// Errors are net.ErrClosed after Close, Abort or CloseWrite; ErrLegacyPeer for a legacy
// peer, to which Write still works; os.ErrDeadlineExceeded when the write deadline
// passes during the wait; ErrPeerClosed when the peer has closed the session, with a
// reason or before all was taken; and the error with which the session ended.
func (c *Conn) CloseWrite() error {
	return c.await(blocking{op: "close"}, c.tryCloseWrite, nil)
}

// tryCloseWrite is CloseWrite without waiting, as long as the peer's kind is not known.
func (c *Conn) tryCloseWrite() (p pause, err error) {
	l, now := &c.session.hs, c.ep.now()
	switch {
	case c.session.closing.Caller != closing.Uses || c.session.closing.Write != closing.WriteOpen:
		return p, net.ErrClosed
	case c.session.closing.Read == closing.ReadClosed && !c.session.closing.Undelivered() && c.session.reason(ErrPeerClosed) == ErrPeerClosed:
		return p, nil
	case c.session.closing.Read == closing.ReadClosed:
		return p, c.session.reason(ErrPeerClosed)
	case c.session.closing.err != nil:
		return p, c.session.reason(c.session.closing.err)
	case l.Peer >= opening.Extended:
		c.session.dropSpentMessages()
		c.session.closing.Fin()
		c.session.step.ready |= writers
		c.session.kick(now)
		return p, nil
	case l.Peer == opening.Legacy, l.Role < opening.Dialled && now-l.born >= helloAfterData:
		return p, ErrLegacyPeer
	case c.io.writeDeadline.expired():
		return p, os.ErrDeadlineExceeded
	}
	if p.on = &c.io.canWrite; l.Role < opening.Dialled {
		p.until = l.born + helloAfterData
	}
	c.session.hs.kindAwaited = true
	if l.Role == opening.Quiet && l.silent() {
		c.session.startHandshake(now)
	}
	return p, nil
}

// Abort ends the session at once, also one that lingers after Close. What is not
// delivered is lost, and the calls of an extended peer fail with ErrReset. While another
// goroutine is sending packets of the session, Abort waits until they and its own have
// left, for a second at most, so that the program may exit then. It returns net.ErrClosed
// if Close or Abort was called before and the session has ended.
func (c *Conn) Abort() error {
	c.mu.Lock()
	defer c.unlockWhenSent()
	return c.abortByCall()
}

// unlockWhenSent releases c.mu after an abort, and waits until what the session sends has
// left. What is in a batch of several sessions leaves soon by itself, and may have to
// wait for the caller.
func (c *Conn) unlockWhenSent() {
	wait := c.session.outgoing.sending && !c.session.outgoing.batched
	c.unlock()
	if wait {
		awaitWrites([]*Conn{c})
	}
}

// abortByCall is Abort with c.mu held, which does not wait.
func (c *Conn) abortByCall() error {
	if c.session.closing.Caller != closing.Uses && c.session.closing.Phase >= closing.Ended {
		return c.opError("close", net.ErrClosed)
	}
	c.session.forget(net.ErrClosed)
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
	c.mu.Lock()
	defer c.unlock()
	if c.session.closing.Caller != closing.Uses {
		return c.opError("set", net.ErrClosed)
	}
	c.session.closing.Linger = d
	return nil
}

// retire removes an ended session from the endpoint, which keeps its TIME-WAIT
// entry (RFC 9293 §3.6.1).
func (c *Conn) retire() {
	if c.session.closing.Phase != closing.Retired {
		c.session.release()
		c.ep.remove(c, c.session.timeWaitState())
		c.calls.end()
		c.session.wakeAll() // last: a call that returns finds the session gone from the endpoint
	}
}

// waitClosed locks c.mu and waits until the session has ended, or only the
// answer to CLOSE is missing. It aborts the session if ctx ends first.
func (c *Conn) waitClosed(ctx context.Context) (result shutResult) {
	_ = c.await(blocking{ctx: ctx}, func() (p pause, err error) {
		switch {
		case c.session.shutting() && ctx.Err() == nil:
			p.on = &c.io.canWrite
		case c.session.closing.Undelivered():
			result = shutUndelivered
		case c.session.shutting() && c.session.closing.Phase != closing.Draining:
			c.session.forget(net.ErrClosed)
			result = shutCut
		default:
			result = shutDelivered
		}
		return p, nil
	}, nil)
	return result
}
