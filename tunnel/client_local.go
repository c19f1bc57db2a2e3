package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// local is a remote for which the client listens.
type local struct {
	remote Remote
	socket socket
}

// listenAll listens for all remotes that want it, or for none.
func (c *Client) listenAll(ctx context.Context) (all []*local, err error) {
	defer func() {
		if err != nil {
			for _, l := range all {
				_ = l.socket.Close()
			}
			all = nil
		}
	}()
	for _, r := range c.config.Remotes {
		if r.Reverse || r.Stdio {
			continue
		}
		if r.Listen, err = zoneHere(r.Listen); err != nil {
			return all, fmt.Errorf("remote %v: %w", r, err)
		}
		s, err := listenOn(ctx, r.network(), r.Listen)
		if err != nil {
			return all, fmt.Errorf("remote %v: %w", r, hint(err))
		}
		all = append(all, &local{r, s})
		at, _ := addressOf(s)
		at = withZone(at, r.Listen)
		c.log.Info("listening", "remote", r, "address", at)
		if f := c.config.Listening; f != nil {
			f(r, at)
		}
	}
	return all, nil
}

// withZone returns an address with the zone of what was asked for: Linux leaves it out
// of the address of a socket that listens.
func withZone(at net.Addr, asked string) net.Addr {
	host, _, _ := net.SplitHostPort(asked) // ParseRemote has looked at it
	a, err := netip.ParseAddr(host)
	if err != nil || a.Zone() == "" {
		return at
	}
	switch at := at.(type) {
	case *net.TCPAddr:
		return &net.TCPAddr{IP: at.IP, Port: at.Port, Zone: a.Zone()}
	case *net.UDPAddr:
		return &net.UDPAddr{IP: at.IP, Port: at.Port, Zone: a.Zone()}
	}
	return at
}

// entry returns the entry of a remote.
func (c *Client) entry(r Remote) *entry {
	return &entry{log: c.log.With(text("target", r.Target)), failed: slog.LevelWarn, socks: r.Socks, target: r.Target, remote: r.name(), open: c.openAny}
}

// serve carries what arrives, until the socket is closed.
func (c *Client) serve(ctx context.Context, l *local) {
	e := c.entry(l.remote)
	if pc, ok := l.socket.(*net.UDPConn); ok {
		// The system lets no packet in that comes from elsewhere to a loopback address.
		e.limited = !pc.LocalAddr().(*net.UDPAddr).IP.IsLoopback()
	}
	e.serve(ctx, l.socket)
}

// openAny is the openFunc of a client. What is UDP does not wait for a session.
func (c *Client) openAny(ctx context.Context, k kind, target string) (*session, carrier.Stream, error) {
	if k.packets() {
		return c.openNow(ctx, opening{kind: k, target: target})
	}
	return c.open(ctx, opening{kind: k, target: target})
}

// open opens a stream on the session that has least to do. It waits for a session
// if there is none.
func (c *Client) open(ctx context.Context, o opening) (*session, carrier.Stream, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.config.OpenTimeout, errors.New("no session with a server"))
	defer cancel()
	var failed []*clientSession
	for {
		s, err := c.pool.pick(ctx, failed)
		if err != nil {
			return nil, nil, context.Cause(ctx)
		}
		stream, err := s.open(ctx, o)
		if err == nil {
			return &s.session, stream, nil
		}
		failed = append(failed, s) // it has just ended
	}
}

// openNow is open for UDP, which does not wait for a session.
func (c *Client) openNow(ctx context.Context, o opening) (*session, carrier.Stream, error) {
	now, cancel := context.WithCancel(ctx)
	cancel()
	s, err := c.pool.pick(now, nil)
	if err != nil {
		return nil, nil, errors.New("no session with a server")
	}
	stream, err := s.open(ctx, o)
	return &s.session, stream, err
}

// pipe connects standard input and output with the target of a remote, until the
// target has nothing more to say.
func (c *Client) pipe(ctx context.Context, r Remote) error {
	conn := &stdio{in: c.config.Stdin, out: c.config.Stdout, ended: make(chan struct{})}
	err := c.entry(r).carry(ctx, conn)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Target, err)
	}
	return nil
}

// stdio is standard input and output as a connection. It ends, as netcat does, once
// the other end has nothing more to say.
type stdio struct {
	in    io.Reader
	out   io.Writer
	reads chan read // what was asked of in and not taken yet; nil: nothing
	ended chan struct{}
	once  sync.Once
}

// read is what a Read of standard input has returned.
type read struct {
	b   []byte
	err error
}

// Read reads standard input. When the connection has ended it returns io.EOF, and
// leaves a goroutine behind that reads.
func (s *stdio) Read(b []byte) (int, error) {
	if s.reads == nil {
		s.reads = make(chan read, 1)
		buf := make([]byte, len(b))
		reads := s.reads
		go func() {
			n, err := s.in.Read(buf)
			reads <- read{buf[:n], err}
		}()
	}
	select {
	case r := <-s.reads:
		s.reads = nil
		return copy(b, r.b), r.err
	case <-s.ended:
		return 0, io.EOF
	}
}

func (s *stdio) Write(b []byte) (int, error) { return s.out.Write(b) }

// CloseWrite ends the connection.
func (s *stdio) CloseWrite() error {
	s.once.Do(func() {
		close(s.ended)
		if c, ok := s.out.(io.Closer); ok {
			_ = c.Close()
		}
	})
	return nil
}

func (s *stdio) Close() error { return s.CloseWrite() }
