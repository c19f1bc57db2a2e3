package kcptun

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/xtaci/smux"
)

// Run accepts connections, and carries them over sessions with the server, until ctx
// is done, which is no error. When it returns, everything has ended that it has begun.
func Run(ctx context.Context, config Config) error {
	if err := config.prepare(); err != nil {
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
	c := &client{config: &config, block: block, slots: make([]slot, config.Conn), open: make(map[*smux.Session]*time.Timer)}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	err = c.accept(l)
	c.closeAll()
	c.running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("kcptun: %w", err)
}

// client is what Run works with.
type client struct {
	config   *Config
	block    kcp.BlockCrypt
	running  sync.WaitGroup
	observed observed

	mu     sync.Mutex
	slots  []slot
	next   int                           // of slots
	open   map[*smux.Session]*time.Timer // nil, or of the time when an expired one is closed
	closed bool
}

// slot is one of the sessions that take connections.
type slot struct {
	session *smux.Session
	expires time.Time // zero: never
}

// accept takes connections until the listener is closed.
func (c *client) accept(l net.Listener) error {
	pause := 5 * time.Millisecond
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // such as no more file descriptors
			c.config.Logger.Warn("cannot accept", "error", err)
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		c.running.Go(func() {
			err := c.carry(conn.(*net.TCPConn))
			if !c.config.QuietConnections {
				c.config.Logger.Debug("connection ended", "from", conn.RemoteAddr(), "error", err)
			}
		})
	}
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
	abort(conn)
	c.config.Logger.Warn("connection refused", "server", c.config.Target, "error", err)
	return err
}

// session returns the session for the next connection, in turn.
func (c *client) session() (*smux.Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	s := &c.slots[c.next]
	c.next = (c.next + 1) % len(c.slots)
	now := time.Now()
	expired := !s.expires.IsZero() && now.After(s.expires)
	if s.session != nil && !s.session.IsClosed() && !expired {
		return s.session, nil
	}
	if s.session != nil && expired {
		old := s.session
		c.open[old] = time.AfterFunc(c.config.ScavengeTTL, func() { _ = old.Close() })
	}
	session, err := c.dial()
	if err != nil {
		return nil, err
	}
	*s = slot{session: session}
	if c.config.AutoExpire > 0 {
		s.expires = now.Add(c.config.AutoExpire)
	}
	c.open[session] = nil
	c.running.Go(func() { c.watch(session) })
	return session, nil
}

// watch forgets a session when it ends.
func (c *client) watch(session *smux.Session) {
	<-session.CloseChan()
	c.config.Logger.Info("session ended", "address", session.LocalAddr())
	c.mu.Lock()
	defer c.mu.Unlock()
	if timer := c.open[session]; timer != nil {
		timer.Stop()
	}
	delete(c.open, session)
}

// dial begins a session. Nothing is sent yet.
func (c *client) dial() (*smux.Session, error) {
	conn, err := kcp.DialWithOptions(c.config.Target, c.block, c.config.DataShard, c.config.ParityShard)
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
	c.config.Logger.Info("session begun", "server", conn.RemoteAddr(), "address", conn.LocalAddr())
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
