package kcptun

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/arqnet/kcp/tunnel/internal/tcp"
	"github.com/xtaci/smux"
)

// Run accepts connections, and carries them over sessions with the server, until ctx
// is done, which is not an error. When it returns, everything has ended that it has
// begun.
func Run(ctx context.Context, config Config) error {
	if err := config.prepareClient(); err != nil {
		return fmt.Errorf("kcptun: %w", err)
	}
	block, err := config.block()
	if err != nil {
		return fmt.Errorf("kcptun: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", config.Listen)
	if err != nil {
		return fmt.Errorf("kcptun: cannot listen on %s: %w", config.Listen, err)
	}
	config.Logger.Info("listening", "address", l.Addr(), "server", config.Target, "crypt", config.Crypt)
	if config.Listening != nil {
		config.Listening(l.Addr())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &client{config: &config, block: block, ctx: ctx, slots: make([]slot, config.Conn), open: make(map[*smux.Session]*time.Timer)}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	c.accept(l)
	c.closeAll()
	c.running.Wait()
	return nil
}

// client is what Run works with.
type client struct {
	config   *Config
	block    kcp.BlockCrypt
	ctx      context.Context // of Run
	running  sync.WaitGroup
	observed observed

	mu     sync.Mutex // nobody waits for anything else with it
	slots  []slot
	next   int                           // of slots
	open   map[*smux.Session]*time.Timer // nil, or of the time when an expired one is closed
	closed bool
}

// slot is the place of one of the sessions that take connections.
type slot struct {
	session *smux.Session
	expires time.Time // zero: never
	dialing *dialing  // what takes its place; nil: nothing is under way
}

// dialing is a session that is about to begin.
type dialing struct {
	since   time.Time
	done    chan struct{} // closed when one of these is set
	session *smux.Session
	err     error
}

// alive reports whether the session takes connections.
func (s *slot) alive(now time.Time) bool {
	return s.session != nil && !s.session.IsClosed() && (s.expires.IsZero() || !now.After(s.expires))
}

// accept takes connections until the listener is closed.
func (c *client) accept(l net.Listener) {
	tcp.Accept(l, c.config.Logger, func(conn *net.TCPConn) {
		c.running.Go(func() {
			err := c.carry(conn)
			if !c.config.QuietConnections {
				c.config.Logger.Debug("connection ended", "from", conn.RemoteAddr(), "error", err)
			}
		})
	})
}

// carry carries a connection over one of the sessions.
func (c *client) carry(conn *net.TCPConn) error {
	session, err := c.session()
	if err == nil {
		var stream *smux.Stream
		if stream, err = session.OpenStream(); err == nil {
			return relay(conn, stream, c.config.CloseWait)
		}
		_ = session.Close() // it has no more numbers, or has ended
	}
	tcp.Abort(conn)
	c.config.Logger.Warn("connection refused", "server", c.config.Target, "error", err)
	return err
}

// dialPatience is how long connections wait for a session that begins, when another one
// could take them.
const dialPatience = 250 * time.Millisecond

// session returns the session for the next connection, in turn. If it has to begin, and
// that takes long because a name does not resolve, another one takes the connection.
func (c *client) session() (*smux.Session, error) {
	d, session, err := c.choose()
	if d == nil {
		return session, err
	}
	limit := time.NewTimer(time.Until(d.since.Add(dialPatience)))
	defer limit.Stop()
	select {
	case <-d.done:
	case <-limit.C:
		if session := c.other(); session != nil {
			return session, nil
		}
		<-d.done
	}
	if d.err != nil {
		if session := c.other(); session != nil {
			return session, nil
		}
	}
	return d.session, d.err
}

// choose returns the session whose turn it is, or what takes its place.
func (c *client) choose() (*dialing, *smux.Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, net.ErrClosed
	}
	s := &c.slots[c.next]
	c.next = (c.next + 1) % len(c.slots)
	if s.alive(time.Now()) {
		return nil, s.session, nil
	}
	if s.dialing == nil {
		d := &dialing{since: time.Now(), done: make(chan struct{})}
		s.dialing = d
		c.running.Go(func() { c.fill(s, d) })
	}
	return s.dialing, nil, nil
}

// other returns a session that can take a connection while those that should do not
// begin: one that has expired, if there is no better one. nil: there is none.
func (c *client) other() (found *smux.Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for i := range c.slots {
		s := &c.slots[i]
		if s.alive(now) {
			return s.session
		}
		if s.session != nil && !s.session.IsClosed() {
			found = s.session
		}
	}
	return found
}

// fill begins a session for a slot.
func (c *client) fill(s *slot, d *dialing) {
	defer close(d.done)
	session, err := c.dial()
	c.mu.Lock()
	defer c.mu.Unlock()
	s.dialing = nil
	if err == nil && c.closed {
		_ = session.Close()
		err = net.ErrClosed
	}
	if d.session, d.err = session, err; err != nil {
		return
	}
	if old := s.session; old != nil && !old.IsClosed() && c.config.ScavengeTTL >= 0 {
		c.open[old] = time.AfterFunc(c.config.ScavengeTTL, func() { _ = old.Close() })
	}
	s.session, s.expires = session, time.Time{}
	if c.config.AutoExpire > 0 {
		s.expires = time.Now().Add(c.config.AutoExpire)
	}
	c.open[session] = nil
	c.running.Go(func() { c.watch(session) })
}

// watch waits for the end of a session, which may be a mistake of the server's in the
// protocol, and forgets it.
func (c *client) watch(session *smux.Session) {
	for {
		stream, err := session.AcceptStream()
		if err == nil { // a server opens none
			_ = stream.Close()
			continue
		}
		if session.IsClosed() {
			c.config.Logger.Info("session ended", "address", session.LocalAddr(), "reason", err)
		} else {
			c.config.Logger.Warn("session ended", "address", session.LocalAddr(), "reason", explained(err))
			_ = session.Close()
		}
		break
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if timer := c.open[session]; timer != nil {
		timer.Stop()
	}
	delete(c.open, session)
}

// dial begins a session. Nothing is sent yet.
func (c *client) dial() (*smux.Session, error) {
	server, err := c.config.server.choose(c.ctx, c.config.lookUp)
	if err != nil {
		return nil, err
	}
	conn, err := kcp.DialWithOptions(server.String(), c.block, c.config.DataShard, c.config.ParityShard)
	if err != nil {
		return nil, err
	}
	c.config.tune(conn)
	c.config.tuneSocket(conn)
	below := net.Conn(conn)
	if !c.config.NoComp {
		below = compress(conn)
	}
	session, err := smux.Client(below, c.config.smux())
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	forget := c.observed.add(c.config, "client", kcp.EndpointOf(conn))
	c.running.Go(func() {
		<-session.CloseChan()
		forget()
	})
	log := c.config.Logger.With("server", server)
	log.Info("session begun", "address", conn.LocalAddr())
	c.running.Go(func() { watchAnswer(log, conn, session.CloseChan()) })
	return session, nil
}

// closeAll ends the sessions, and with them their connections.
func (c *client) closeAll() {
	c.mu.Lock()
	c.closed = true
	var all []*smux.Session
	for s := range c.open {
		all = append(all, s)
	}
	c.mu.Unlock()
	for _, s := range all {
		_ = s.Close()
	}
}
