package kcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
)

// Dial opens a session with the peer at addr; options nil means none. It sends HELLO
// (WIRE.md §5.1) and waits for any answer, unless Config.DialTimeout is negative. Every
// KCP endpoint that accepts sessions answers. After Dial has returned, ctx has no effect
// on the session.
//
// Errors are wrapped in a *net.OpError:
//   - ErrRefused if the peer or its system says that it accepts no sessions;
//   - a *NoAnswerError after Config.DialTimeout, or the deadline of ctx; ctx.Err() if ctx
//     is cancelled;
//   - ErrReset if the peer has dropped the session four times before its answer arrived,
//     or once if options choose the id, without Config.SharedConvs;
//   - ErrNoTLS, ErrTLSRequired, a *HandshakeError;
//   - a *net.AddrError if a UDP socket cannot send to addr, or that is the endpoint's
//     own;
//   - net.ErrWriteToConnected if the UDP socket is connected elsewhere;
//   - ErrTooManySessions if the endpoint has Limits.MaxSessions already;
//   - ErrInUse if the endpoint has a session of the chosen id with that peer or, without
//     SharedConvs, had one within the last minute;
//   - an *OptionError for options that exclude each other; net.ErrClosed.
func (e *Endpoint) Dial(ctx context.Context, addr net.Addr, options *DialOptions) (*Conn, error) {
	var o DialOptions
	if options != nil {
		o = *options
	}
	if err := ctx.Err(); err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	if err := e.checkAddress(addr); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.beginsNoMoreLocked() { // another process may have the socket
			err = net.ErrClosed
		}
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	if o.SimultaneousOpen {
		c, err := e.openSimultaneously(ctx, addr, &o)
		if err != nil {
			return nil, opError("dial", e.LocalAddr(), addr, err)
		}
		return c, nil
	}
	_, key := addressOf(addr)
	if e.opens.N.Load() > 0 {
		each(e.opens.Claim(key), func(c *Conn) { c.endFor(session.CauseFailed, ErrReset) })
	}
	if o.Conv != nil {
		key.Conv = *o.Conv
	} else {
		key.Conv = e.Env.Uint32()
	}
	c, err := e.dial(ctx, key, addr, o.Conv != nil, o.Quiet)
	if err != nil {
		return nil, opError("dial", e.LocalAddr(), addr, err)
	}
	return c, nil
}

// checkAddress returns an error if the endpoint's socket cannot send to addr, or has it
// itself. A socket that is not one of the system's may take any type of address.
func (e *Endpoint) checkAddress(addr net.Addr) error {
	if addr == nil {
		return &net.AddrError{Err: "missing address"}
	}
	pc := e.socket.shards[0].conn()
	system, open := pc.(*net.UDPConn)
	if _, detached := pc.(*udp.Detached); !open && !detached {
		return nil
	}
	to, ok := addr.(*net.UDPAddr)
	if !ok {
		return &net.AddrError{Err: fmt.Sprintf("a %T, not a *net.UDPAddr", addr), Addr: addr.String()}
	}
	if to == nil || !to.AddrPort().IsValid() {
		return &net.AddrError{Err: "missing address"}
	}
	local, ok := e.LocalAddr().(*net.UDPAddr)
	if ok && local.IP.To4() != nil && to.IP.To4() == nil {
		return &net.AddrError{Err: "non-IPv4 address", Addr: addr.String()}
	}
	if !open {
		return nil // another process has the socket
	}
	if peer, ok := system.RemoteAddr().(*net.UDPAddr); ok && udp.Unmap(peer.AddrPort()) != udp.Unmap(to.AddrPort()) {
		return net.ErrWriteToConnected
	}
	if ok && isOwn(udp.Unmap(local.AddrPort()), udp.Unmap(to.AddrPort())) {
		return errOwnAddress
	}
	return nil
}

// isOwn reports whether what a socket at local sends to an address arrives at itself. It
// does not know which addresses the host has; takeHello finds those.
func isOwn(local, to netip.AddrPort) bool {
	return to == local || to.Port() == local.Port() &&
		(to.Addr().IsUnspecified() || local.Addr().IsUnspecified() && to.Addr().IsLoopback())
}

// maxDials is how many sessions a Dial opens at most, one after the other.
const maxDials = 4

// dial opens a session, and waits for the peer's answer unless quiet. It starts
// over if the peer has dropped the session meanwhile, as an outage of the path was
// longer than a listener waits: with another conversation id, since the peer
// ignores that one for a while.
func (e *Endpoint) dial(ctx context.Context, key session.Key, addr net.Addr, chosen, quiet bool) (*Conn, error) {
	e.holdForDial(1)
	defer e.holdForDial(-1)
	called := e.now()
	for dials := 1; ; dials++ {
		c, err := e.openSession(key, addr, chosen)
		if err != nil {
			return nil, err
		}
		if err = e.connect(ctx, c, quiet, called); err == nil {
			return c, nil
		}
		if err != ErrReset || dials == maxDials || chosen && !e.config.SharedConvs {
			return nil, err
		}
		if !chosen {
			key.Conv = e.Env.Uint32()
		}
	}
}

// connect starts a session that was dialled at a time since the epoch, and waits for the
// peer's answer unless quiet.
func (e *Endpoint) connect(ctx context.Context, c *Conn, quiet bool, called time.Duration) (err error) {
	defer discardIfUnwound(&c)
	e.debug("session dialled", c.RemoteAddr(), c.Conv())
	if quiet {
		c.do(func(s *session.Session) { s.Dial(opening.Quiet) })
	} else {
		err = c.connect(ctx, called)
	}
	c = nil
	return err
}

// discardIfUnwound is deferred while a session begins. It discards the session, unless
// that is nil, as code of the application's has panicked.
func discardIfUnwound(c **Conn) {
	if *c != nil {
		(*c).endFor(session.CauseDiscarded, errUnwound)
	}
}

// holdForDial adds n to the calls of Dial that may still open a session. The
// sockets are not closed meanwhile for lack of sessions.
func (e *Endpoint) holdForDial(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.socket.dials += n
	e.shutIfUnusedLocked()
}
