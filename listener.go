package kcp

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wakeup"
)

// Listener accepts the sessions that peers open on an Endpoint. It is a
// net.Listener. All methods are safe for concurrent use.
type Listener struct {
	ep *Endpoint // immutable

	mu       sync.Mutex   // guards the fields below
	changed  sync.Cond    // broadcast when a call of Accept may have something to return
	backlog  []*Conn      // sessions that Accept has not returned yet, oldest first
	deadline deadline     // of Accept
	member   *groupMember // the listener's place in a Group; nil: it is in none
	left     bool         // handed over, and nothing more comes into the backlog
	closed   bool
	cause    error // of closed: net.ErrClosed or a *SocketError
}

// Listen opens a UDP socket on address, or Config.Shards of them, and returns a listener
// on it. network is as for Dial; with "udp" and an empty host it listens on IPv4 and
// IPv6. Answers leave from the address that a peer has dialled. config is as for Dial,
// and must not be changed while the listener or its sessions are in use.
func Listen(network, address string, config *Config) (*Listener, error) {
	if err := config.validateFor(true); err != nil {
		return nil, err
	}
	if err := checkNetwork("listen", network); err != nil {
		return nil, err
	}
	d := config.withDefaults()
	sockets, err := withDescriptors(func() ([]net.PacketConn, error) {
		return udp.Listen(network, address, d.Shards, d.Control)
	})
	if err != nil {
		return nil, err
	}
	e := newEndpoint(config, true, sockets...)
	l, err := e.Listen()
	if err != nil {
		_ = e.Close() // the error that matters is err
		return nil, err
	}
	return l, nil
}

// newListener returns the listener of e.
func newListener(e *Endpoint) *Listener {
	l := &Listener{ep: e}
	l.changed.L = &l.mu
	return l
}

// offer puts c into the backlog, and reports whether there was space for it.
// validated says whether the peer's address is validated.
func (l *Listener) offer(c *Conn, validated bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fullLocked(validated) {
		return false
	}
	l.backlog = append(l.backlog, c)
	l.announceLocked()
	return true
}

// announceLocked announces that the backlog is not empty. l.mu is held.
func (l *Listener) announceLocked() {
	if l.member != nil {
		l.member.wake()
		return
	}
	l.changed.Broadcast()
}

// full reports whether the backlog has no space for another session.
func (l *Listener) full(validated bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fullLocked(validated)
}

// fullLocked is full with Listener.mu held. Peers whose addresses are not
// validated get half of the backlog, so that they cannot keep others out.
func (l *Listener) fullLocked(validated bool) bool {
	limit := l.ep.config.Limits.Backlog
	if !validated {
		limit = (limit + 1) / 2
	}
	return l.closed || len(l.backlog) >= limit
}

// Accept is AcceptKCP without a context. The net.Conn is a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptKCP(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptKCP waits for the next session: an extended peer's once its address is validated
// (WIRE.md §5.1) and its TLS handshake done, a legacy peer's with its first data. Errors,
// in a *net.OpError, are ctx.Err(), os.ErrDeadlineExceeded after the time of SetDeadline,
// net.ErrClosed or a *SocketError when the listener is closed, and ErrInUse in a Group.
func (l *Listener) AcceptKCP(ctx context.Context) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, opError("accept", nil, l.Addr(), l.cause)
		case l.member != nil:
			return nil, opError("accept", nil, l.Addr(), errGrouped)
		case ctx.Err() != nil:
			return nil, opError("accept", nil, l.Addr(), ctx.Err())
		case l.deadline.expired():
			return nil, opError("accept", nil, l.Addr(), os.ErrDeadlineExceeded)
		case len(l.backlog) > 0:
			return l.takeLocked(), nil
		case l.left:
			return nil, opError("accept", nil, l.Addr(), net.ErrClosed)
		}
		l.changed.Wait()
		l.ep.shared.Env.Woken(&l.mu, 0, wakeup.AtAccept)
	}
}

// takeLocked takes the oldest session out of the backlog. l.mu is held.
func (l *Listener) takeLocked() *Conn {
	c := l.backlog[0]
	l.backlog[0] = nil
	l.backlog = l.backlog[1:]
	return c
}

// AcceptInto makes sessions go into a group as soon as they can be accepted, with the
// event EventAccepted first; sessions of the backlog, too. Calls of Accept return
// ErrInUse. Limits.Backlog bounds the sessions whose EventAccepted was not taken. With a
// nil group, or when the group is closed, sessions go to Accept again. It fails with
// ErrInUse if the listener has a group already, and with net.ErrClosed if either is
// closed.
func (l *Listener) AcceptInto(g *Group) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return opError("accept", nil, l.Addr(), net.ErrClosed)
	case g == nil:
		l.leaveGroupLocked()
		return nil
	case l.member != nil:
		return opError("accept", nil, l.Addr(), errGroupedBefore)
	}
	m := &groupMember{group: g, listener: l}
	if !g.attach(m) {
		return opError("accept", nil, l.Addr(), net.ErrClosed)
	}
	l.member = m
	l.changed.Broadcast()
	m.wake()
	return nil
}

// leaveGroupLocked takes l out of its group, if it is in one. l.mu is held.
func (l *Listener) leaveGroupLocked() {
	if l.member != nil {
		l.member.group.set.Remove(l.member)
		l.member = nil
	}
}

// acceptFor takes the oldest session out of the backlog, for the group in which
// m is l's place. It returns nil if there is none.
func (l *Listener) acceptFor(m *groupMember) *Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.ready = false
	if l.member != m || len(l.backlog) == 0 {
		return nil
	}
	c := l.takeLocked()
	if len(l.backlog) > 0 {
		m.wake()
	}
	return c
}

// putBack puts c, which acceptFor has returned, into the backlog again. It
// reports false if l is closed.
func (l *Listener) putBack(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.backlog = slices.Insert(l.backlog, 0, c)
	l.announceLocked()
	return true
}

// SetDeadline sets the time at which Accept and AcceptKCP fail with
// os.ErrDeadlineExceeded. The zero time, the default, means never.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return opError("set", nil, l.Addr(), net.ErrClosed)
	}
	l.deadline.set(t, &l.mu, &l.changed)
	return nil
}

// Addr returns the address of the socket.
func (l *Listener) Addr() net.Addr { return l.ep.LocalAddr() }

// Endpoint returns the endpoint that l listens on.
func (l *Listener) Endpoint() *Endpoint { return l.ep }

// Close stops accepting: calls of Accept return net.ErrClosed. Accepted sessions go on;
// those in the backlog, and those not validated yet, are ended. A socket that Listen has
// opened is closed with its last session, or up to three seconds later if a peer may
// still need an answer.
func (l *Listener) Close() error {
	waiting, ok := l.end(net.ErrClosed)
	if !ok {
		return opError("close", nil, l.Addr(), net.ErrClosed)
	}
	for _, c := range waiting {
		c.endFor(session.CauseDiscarded, net.ErrClosed)
	}
	l.ep.dropListener(l)
	return nil
}

// leave makes calls of Accept return net.ErrClosed once the backlog is empty.
func (l *Listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.left {
		l.left = true
		l.changed.Broadcast()
	}
}

// end closes l and returns its backlog. ok is false if l was closed already.
func (l *Listener) end(cause error) (waiting []*Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false
	}
	l.closed, l.cause = true, net.ErrClosed
	if !errors.Is(cause, net.ErrClosed) {
		l.cause = cause
	}
	l.leaveGroupLocked()
	waiting, l.backlog = l.backlog, nil
	l.deadline.set(time.Time{}, &l.mu, &l.changed)
	l.changed.Broadcast()
	return waiting, true
}
