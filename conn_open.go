package kcp

import (
	"context"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/trace"
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
	c.startTrace(trace.SessionDialled)
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
	c.startTrace(trace.SessionAccepted)
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
