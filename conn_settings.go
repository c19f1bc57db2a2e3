package kcp

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
)

// Peer returns what the session knows of its peer now.
func (c *Conn) Peer() PeerInfo {
	c.mu.Lock()
	defer c.unlock()
	info, secured := c.session.Peer()
	return PeerInfo{Known: info.Known, Legacy: info.Legacy, Version: info.Version, TLS: secured}
}

// connect locks c.mu, starts the handshake, and waits for the peer's answer as
// Endpoint.Dial documents, which was called at a time since the epoch. If it returns an
// error, the session has ended. ErrReset means that the peer has dropped it.
func (c *Conn) connect(ctx context.Context, called time.Duration) (err error) {
	c.startTrace()
	begun, limit, as := false, c.ep.config.DialTimeout, opening.Dialled
	if limit > 0 {
		as = opening.Dialling
	}
	_ = c.await(blocking{ctx: ctx}, func() (pause, error) {
		if !begun {
			c.session.Dial(as)
		}
		begun = true
		// A session that has failed may have to tell the peer why, which the caller's
		// closing of the endpoint must not forestall.
		late, s := c.ep.now() >= called+limit, c.session.State()
		switch {
		case limit == 0:
		case !s.Reached && !s.Retired && !late && ctx.Err() == nil:
			return pause{on: &c.io.canWrite, until: called + limit}, nil
		default:
			err = c.session.Dialled(func() error { return c.unanswered(ctx, called) })
		}
		return pause{}, nil
	}, nil)
	return err
}

// unanswered returns why Dial fails without an answer. c.mu is held.
func (c *Conn) unanswered(ctx context.Context, called time.Duration) error {
	if err := ctx.Err(); err != nil && err != context.DeadlineExceeded {
		return err
	}
	return &NoAnswerError{Waited: c.ep.now() - called, Socket: c.ep.socketErrorSince(called)}
}

// begin locks c.mu and starts the timers of an accepted session. If offered, it
// puts the session into l's backlog. It reports false if the session has ended,
// be it because the backlog is full.
func (c *Conn) begin(l *Listener, offered bool) bool {
	c.startTrace()
	c.mu.Lock()
	defer c.unlock()
	if !offered {
		return c.session.Begin(nil)
	}
	return c.session.Begin(func(validated bool) bool { return l.offer(c, validated) })
}

// workTLS is the goroutine of advanceTLS. It locks c.mu, but not while TLS works.
func (c *Conn) workTLS(x *handshake.Exchange, work handshake.Work) {
	c.mu.Lock()
	over := x.Over() // while it waited
	c.unlock()
	var s handshake.Step
	if !over {
		s = work.Run()
	}
	c.mu.Lock()
	defer c.unlock()
	c.session.WorkedTLS(x, s)
}

// set locks c.mu, and changes settings.
func (c *Conn) set(to *session.Change) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.Set(to); err != nil {
		return c.opError("set", err)
	}
	return nil
}

// SetMTU takes the place of Config.MTU: 50 to 65507 bytes with what Cipher and FEC add,
// which must leave 50 bytes. Path MTU discovery does not exceed it. 0 returns to
// Config.MTU, and to discovery. A size out of range is a *ConfigError, which changes
// nothing.
func (c *Conn) SetMTU(n int) error {
	room := c.ep.shared.Overhead.Total
	if least := room + machine.MinMTU; n != 0 && (n < least || n > session.MaxUDPPayload) {
		return &ConfigError{"MTU", n, fmt.Sprintf("must be in [%d, %d], or 0 for the value of Config", least, session.MaxUDPPayload)}
	}
	return c.set(&session.Change{Of: session.OfMTU, N: n})
}

// SetWindow takes the place of Config.SendWindow and Config.ReceiveWindow, in segments: 1
// to 65535 each, 0 leaves one as it is. A receive window below 128 is raised to 128.
// Errors are as for SetMTU.
func (c *Conn) SetWindow(send, receive int) error {
	for _, w := range []struct {
		field string
		value int
	}{{"SendWindow", send}, {"ReceiveWindow", receive}} {
		if w.value < 0 || w.value > wire.MaxWindow {
			return &ConfigError{w.field, w.value, fmt.Sprintf("must be in [1, %d], or 0 to leave it", wire.MaxWindow)}
		}
	}
	return c.set(&session.Change{Of: session.OfWindow, N: send, M: receive})
}

// SetNoDelay sets these fields of Tuning. NoDelayDefault leaves the mode as it is, and 0
// the others. interval is 10 ms to 5 s; a negative fastResend means no fast
// retransmission. Another mode also sets its minimum time-out, unless MinRTO is set.
// Errors are as for SetMTU.
func (c *Conn) SetNoDelay(mode NoDelay, interval time.Duration, fastResend int) error {
	if mode > NoDelayTurbo {
		return &ConfigError{"Tuning.NoDelay", mode, "must be one of the NoDelay modes"}
	}
	const least, most = machine.MinInterval * time.Millisecond, machine.MaxInterval * time.Millisecond
	if interval != 0 && (interval < least || interval > most) {
		return &ConfigError{"Tuning.Interval", interval, fmt.Sprintf("must be in [%v, %v], or 0 to leave it", least, most)}
	}
	return c.set(&session.Change{Of: session.OfTuning, Machine: machine.Settings{
		NoDelay: machine.NoDelay(mode), MinRTO: int(c.ep.config.Tuning.MinRTO.Milliseconds()),
		Interval: int(interval.Milliseconds()), FastResend: min(fastResend, maxInt32),
	}})
}

// SetCongestionControl makes the session use the controller that f returns, in place of
// Config.CongestionControl; nil returns to that. f is called now, and again with the
// session's lock held if the session migrates. Neither f nor a controller may call the
// Conn.
func (c *Conn) SetCongestionControl(f func() congestion.Control) error {
	first := f
	if f == nil {
		first = c.ep.config.CongestionControl
	}
	return c.set(&session.Change{Of: session.OfCongestion, Control: f, First: first()})
}

// SetMessageMode sets whether Write and WriteMessage send messages or a byte stream, in
// place of Config.MessageMode. How the session reads does not change, but for the events
// of a Group. Streams are not concerned.
func (c *Conn) SetMessageMode(on bool) error {
	return c.set(&session.Change{Of: session.OfMessages, On: on})
}

// SetWriteBuffer takes the place of Config.WriteBuffer: 4096 bytes to 1 GiB; 0 returns to
// that. Errors are as for SetMTU.
func (c *Conn) SetWriteBuffer(bytes int) error {
	if bytes != 0 && (bytes < minWriteBuffer || bytes > maxConfigWriteBuffer) {
		return &ConfigError{"WriteBuffer", bytes, fmt.Sprintf("must be in [%d, %d], or 0 for the value of Config", minWriteBuffer, maxConfigWriteBuffer)}
	}
	return c.set(&session.Change{Of: session.OfWriteBuffer, N: bytes})
}

// SetMaxRate takes the place of Config.MaxRate: 1000 bytes of UDP payload a second or
// more; 0 means no cap. In any time no more leaves than the rate allows and one packet,
// and above 1 MB/s what it allows in 1 ms. ACKs, signals and probes do not wait; until
// they are paid for, the rest has half of the rate. Datagrams leave before data, up to
// half of the rate. The write buffer, unless its size is set, is what the rate carries in
// a second, at least 64 KiB. Errors are as for SetMTU.
func (c *Conn) SetMaxRate(bytes int) error {
	if err := validateRate(bytes); err != nil {
		return err
	}
	return c.set(&session.Change{Of: session.OfRate, N: bytes})
}

// SetKeepAlive takes the place of Config.KeepAlive: 10 ms to a year, 0 returns to that,
// negative means never. It counts from what has arrived last. Errors are as for SetMTU.
func (c *Conn) SetKeepAlive(d time.Duration) error {
	if err := validateTimeout("KeepAlive", d, minSilence); err != nil {
		return err
	}
	return c.set(&session.Change{Of: session.OfKeepAlive, Wait: d})
}

// SetPeerTimeout is SetKeepAlive for Config.PeerTimeout. A peer that has answered nothing
// for longer than d is lost at once. The keep-alive stays: set both for an end that seldom
// writes.
func (c *Conn) SetPeerTimeout(d time.Duration) error {
	if err := validateTimeout("PeerTimeout", d, minSilence); err != nil {
		return err
	}
	return c.set(&session.Change{Of: session.OfPeerTimeout, Wait: d})
}

// SetTrace has the hooks of t called from now on, in place of those of Config.Tracer or
// of the last call; nil means none. They are first shown the states that the session has
// been through. When SetTrace returns, the hooks before have returned, and are not called
// any more, with Stopped the last. No hook may call it.
func (c *Conn) SetTrace(t *Trace) {
	c.mu.Lock()
	defer c.unlock()
	c.session.SetTrace(t)
}

// SetValue keeps a value of the application's with the session, which Value returns; nil
// at first. Both lock nothing, and work after the session has ended: the value lives as
// long as the Conn is referenced.
func (c *Conn) SetValue(v any) { c.value.Store(&v) }

// Value returns what SetValue was last called with.
func (c *Conn) Value() any {
	if v := c.value.Load(); v != nil {
		return *v
	}
	return nil
}

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
