package kcp

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
)

// Listener accepts the sessions that peers open on a socket. It is a
// net.Listener. All methods are safe for concurrent use.
type Listener struct {
	port     *port
	listener *engine.Listener
	accepted chan *UDPSession

	closing sync.Once
	died    chan struct{} // closed when nothing more is accepted
	cause   error         // why; set before died is closed

	mu       sync.Mutex // guards the fields below
	deadline time.Time
	moved    chan struct{}                // closed, and replaced, when deadline changes
	latest   map[addressKey]*UDPSession   // the newest session of an address, which leads to the older ones
	unshown  map[*engine.Conn]*UDPSession // sessions that settle was not called for
	closed   bool
}

// addressKey is an address as a key.
type addressKey struct {
	addr  netip.AddrPort
	other string // of an address that is not UDP's
}

func keyOf(a net.Addr) addressKey {
	if u, ok := a.(*net.UDPAddr); ok {
		return addressKey{addr: u.AddrPort()}
	}
	return addressKey{other: a.String()}
}

// Listen listens on laddr, a UDP address, without encryption and error
// correction. See ListenWithOptions.
func Listen(laddr string) (net.Listener, error) {
	l, err := ListenWithOptions(laddr, nil, 0, 0)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ListenWithOptions listens on laddr, a UDP address. The other arguments are
// as of DialWithOptions, for all sessions.
func ListenWithOptions(laddr string, block BlockCrypt, dataShards, parityShards int) (*Listener, error) {
	addr, err := net.ResolveUDPAddr("udp", laddr)
	if err != nil {
		return nil, err
	}
	pc, err := openSocket("udp", addr)
	if err != nil {
		return nil, err
	}
	l, err := serve(block, dataShards, parityShards, true, pc)
	if err != nil {
		_ = pc.Close() // err is what the caller needs
		return nil, err
	}
	return l, nil
}

// ServeConn is ListenWithOptions on a socket of the program. Close does not
// close it. Until the listener and all its sessions are closed nothing else may
// read from conn.
func ServeConn(block BlockCrypt, dataShards, parityShards int, conn net.PacketConn) (*Listener, error) {
	return serve(block, dataShards, parityShards, false, conn)
}

func serve(block BlockCrypt, dataShards, parityShards int, own bool, pc net.PacketConn) (*Listener, error) {
	l := &Listener{
		accepted: make(chan *UDPSession, acceptBacklog),
		died:     make(chan struct{}),
		moved:    make(chan struct{}),
		latest:   make(map[addressKey]*UDPSession),
		unshown:  make(map[*engine.Conn]*UDPSession),
	}
	var err error
	if l.port, err = openPort(block, dataShards, parityShards, own, pc, l.validated); err != nil {
		return nil, err
	}
	if l.listener, err = l.port.endpoint.Listen(); err != nil {
		_ = l.port.shut()
		return nil, err
	}
	go l.run()
	return l, nil
}

// run takes the sessions that the engine accepts, so that a second one from an
// address can end the first even if the program does not call Accept.
func (l *Listener) run() {
	for {
		c, err := l.listener.AcceptKCP(context.Background())
		if err != nil {
			l.die(sessionError(err))
			return
		}
		s := l.take(c)
		select {
		case l.accepted <- s:
		case <-l.died:
			s.supersede()
			l.forget(s)
			return
		}
		select {
		case <-l.died: // discard may have come before s
			l.discard()
		default:
		}
	}
}

// take makes a session of c.
func (l *Listener) take(c *engine.Conn) *UDPSession {
	s := newSession(c, l.port, c.RemoteAddr(), l)
	if compat.Validated(c) { // validated may have come before s
		l.settle(s)
	}
	if l.port.fec {
		s.handleOOB(nil)
	}
	DefaultSnmp.opened(&DefaultSnmp.PassiveOpens)
	return s
}

// add notes the latest session of an address.
func (l *Listener) add(s *UDPSession) {
	key := keyOf(s.remote)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.older = l.latest[key]; s.older != nil {
		s.older.newer = s
	}
	l.latest[key], l.unshown[s.conn] = s, s
}

// removeLocked undoes add. It does nothing if that was done before. l.mu is held.
func (l *Listener) removeLocked(s *UDPSession) {
	delete(l.unshown, s.conn)
	key := keyOf(s.remote)
	switch {
	case s.newer != nil:
		s.newer.older = s.older
	case l.latest[key] != s:
		return
	case s.older != nil:
		l.latest[key] = s.older
	default:
		delete(l.latest, key)
	}
	if s.older != nil {
		s.older.newer = s.newer
	}
	s.older, s.newer = nil, nil
}

// validated settles the session of c, unless take has yet to make it.
func (l *Listener) validated(c *engine.Conn) {
	l.mu.Lock()
	s := l.unshown[c]
	l.mu.Unlock()
	if s != nil {
		l.settle(s)
	}
}

// settle ends the sessions of an address that are older than s, as the peer has
// shown that it receives what is sent there, and has started over. Anyone can forge
// the first packet of a session (RFC 9000 §8), so a session that has yet to show
// it ends none.
func (l *Listener) settle(s *UDPSession) {
	l.mu.Lock()
	delete(l.unshown, s.conn)
	select {
	case <-s.validated: // take and validated may both have come here
	default:
		close(s.validated)
	}
	var ended []*UDPSession
	for s.older != nil {
		ended = append(ended, s.older)
		l.removeLocked(s.older)
	}
	l.mu.Unlock()
	for _, old := range slices.Backward(ended) { // oldest first
		old.supersede()
	}
}

// die makes pending and future calls of Accept fail with err.
func (l *Listener) die(err error) {
	l.closing.Do(func() {
		l.cause = err
		close(l.died)
	})
}

// Accept waits for the next session: a *UDPSession.
func (l *Listener) Accept() (net.Conn, error) {
	s, err := l.AcceptKCP()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// AcceptKCP waits for the next session. It fails with
//   - a net.Error with the text "timeout" when the deadline has passed;
//   - an error that matches io.ErrClosedPipe and net.ErrClosed after Close;
//   - the error of the socket, if it has failed for good.
func (l *Listener) AcceptKCP() (*UDPSession, error) {
	for {
		late, moved, stop := l.timer()
		select {
		case s := <-l.accepted:
			stop()
			return s, nil
		case <-l.died:
			stop()
			return nil, l.cause
		case <-late:
			return nil, errTimeout
		case <-moved:
			stop()
		}
	}
}

// timer returns a channel that is ready when the deadline has passed, and one
// that is closed when it changes.
func (l *Listener) timer() (late <-chan time.Time, moved chan struct{}, stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deadline.IsZero() {
		return nil, l.moved, func() {}
	}
	t := time.NewTimer(time.Until(l.deadline))
	return t.C, l.moved, func() { t.Stop() }
}

// SetDeadline sets the time after which Accept and AcceptKCP fail, also calls
// that wait already. The zero time, the default, means none. It returns nil.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	close(l.moved)
	l.moved = make(chan struct{})
	return nil
}

// SetReadDeadline is SetDeadline.
func (l *Listener) SetReadDeadline(t time.Time) error { return l.SetDeadline(t) }

// SetWriteDeadline returns an error: a listener does not write.
func (l *Listener) SetWriteDeadline(t time.Time) error { return errInvalidOperation }

// Addr returns the address of the socket.
func (l *Listener) Addr() net.Addr { return l.port.pc.LocalAddr() }

// Close stops accepting. A listener that has opened its socket closes it, and
// all sessions end with it. One of ServeConn lets its sessions go on, and
// leaves the socket when the last of them is closed and has delivered what was
// written. Further calls return an
// error that matches io.ErrClosedPipe.
func (l *Listener) Close() error {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	last := len(l.latest) == 0
	l.mu.Unlock()
	if was {
		return errClosed
	}
	l.die(errClosed)
	_ = l.listener.Close() // it was open, unless the socket has failed
	l.discard()
	if l.port.own {
		return l.port.shut()
	}
	if last {
		go l.release()
	}
	return nil
}

// release leaves the socket when what closed sessions go on with is over.
func (l *Listener) release() {
	for c := range l.port.endpoint.Sessions() {
		<-c.Done()
	}
	_ = l.port.shut() // nobody is left to be told
}

// discard ends the sessions that Accept has not returned.
func (l *Listener) discard() {
	for {
		select {
		case s := <-l.accepted:
			s.supersede()
			l.forget(s)
		default:
			return
		}
	}
}

// forget drops a session that was closed. The last one of a closed listener
// releases the socket.
func (l *Listener) forget(s *UDPSession) {
	l.mu.Lock()
	l.removeLocked(s)
	last := l.closed && len(l.latest) == 0
	l.mu.Unlock()
	if last {
		go l.release()
	}
}

// Control calls f with the socket.
func (l *Listener) Control(f func(conn net.PacketConn) error) error { return f(l.port.pc) }

// SetDSCP sets the DSCP field of the socket's packets over IPv4, and the traffic
// class over IPv6. It fails if the socket cannot do it.
func (l *Listener) SetDSCP(dscp int) error { return setDSCP(l.port.pc, dscp) }

// SetReadBuffer sets the receive buffer of the socket in bytes. It fails if the
// socket cannot do it.
func (l *Listener) SetReadBuffer(bytes int) error { return setReadBuffer(l.port.pc, bytes) }

// SetWriteBuffer sets the send buffer of the socket in bytes. It fails if the
// socket cannot do it.
func (l *Listener) SetWriteBuffer(bytes int) error { return setWriteBuffer(l.port.pc, bytes) }
