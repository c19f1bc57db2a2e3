package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/cenkalti/backoff/v5"
)

// HelloError means that a server has turned the client away.
type HelloError struct {
	Code  string // as the protocol has it, such as "forbidden"
	Value string // what the code is about, such as the remote
}

func (e *HelloError) Error() string {
	switch helloCode(e.Code) {
	case helloVersion:
		return fmt.Sprintf("the server speaks version %s of the protocol, and the client %d", printable(e.Value), wireVersion)
	case helloMalformed:
		return "the server does not understand the client"
	case helloNoName:
		return "the server wants a user and a password, or a client certificate"
	case helloWrong:
		return "wrong user or password"
	case helloNoRules:
		return fmt.Sprintf("the server knows no user %s, the common name of the certificate", printable(e.Value))
	case helloForbidden:
		return fmt.Sprintf("the server does not allow %s", printable(e.Value))
	case helloAttempts:
		return fmt.Sprintf("too many attempts of this user from this address have failed: the server looks at none for %s", printable(e.Value))
	}
	return fmt.Sprintf("the server turns the client away (%s)", printable(e.Code))
}

// printable returns what a peer has said so that it prints on one line.
func printable(s string) string {
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// serverAt is a session with a server at the client.
type serverAt struct {
	session
	client *Client

	mu      sync.Mutex
	reverse map[uint32]Remote // by the number of the stream that asked to listen
}

// keep keeps a session on a way, until ctx is done, or the server is given up.
func (c *Client) keep(ctx context.Context, w way) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = c.config.RetryAfter, c.config.MaxRetryAfter, 2
	log := c.log.With("server", w)
	known := false
	for failed := 0; ; {
		err := c.connect(ctx, w, func() {
			known, failed = true, 0
			wait.Reset()
		})
		if ctx.Err() != nil {
			return nil
		}
		failed++
		switch {
		case !known && permanent(err):
			return fmt.Errorf("%v: %w", w, err)
		case c.config.MaxRetries > 0 && failed > c.config.MaxRetries:
			retries := "1 retry"
			if c.config.MaxRetries != 1 {
				retries = fmt.Sprintf("%d retries", c.config.MaxRetries)
			}
			return fmt.Errorf("%v: given up after %s: %w", w, retries, err)
		}
		pause := max(wait.NextBackOff(), awayPause(err, failed))
		log.Warn("no session", "error", err, "retry", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// permanent reports whether it makes no sense to try again after err.
func permanent(err error) bool {
	var hello *HelloError
	var handshake *kcp.HandshakeError
	var address *net.AddrError
	return errors.As(err, &hello) && helloCode(hello.Code) != helloAttempts ||
		errors.As(err, &handshake) || errors.As(err, &address)
}

// connect opens a session on a way, and serves it to its end. It calls welcomed once
// the server has let the client in.
func (c *Client) connect(ctx context.Context, w way, welcomed func()) error {
	conn, err := c.dialWay(ctx, w)
	if err != nil {
		return err
	}
	if err := c.hello(ctx, conn); err != nil {
		_ = conn.Abort()
		return err
	}
	welcomed()
	if c.config.Observe != nil {
		defer c.config.Observe(w.String(), conn.Endpoint())()
	}
	s := &serverAt{client: c, reverse: make(map[uint32]Remote)}
	s.session = session{
		conn: conn, log: c.log.With("server", w), admit: s.admit,
		account: c.account, dialTimeout: c.config.DialTimeout, connect: c.config.connect, failed: slog.LevelWarn,
	}
	s.log.Info("session begun", "address", conn.RemoteAddr())
	c.pool.add(s)
	err = s.serve(ctx, func(ctx context.Context) {
		for _, r := range c.config.Remotes {
			if r.Reverse {
				s.serving.Go(func() { s.hold(ctx, r) })
			}
		}
	}, func() { c.pool.remove(s) })
	return err
}

// hello says who the client is, and waits for the answer.
func (c *Client) hello(ctx context.Context, conn *kcp.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.config.OpenTimeout, errors.New("the server does not answer the hello"))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Abort() })
	defer stop()
	o := opening{kind: kindHello}
	stream, err := conn.OpenStream(ctx, &kcp.StreamOptions{Priority: o.priority()})
	if err != nil {
		return err
	}
	h := hello{User: c.config.User, Password: c.config.Password}
	for _, r := range c.config.Remotes {
		if r.Reverse || !r.Socks {
			h.Wants = append(h.Wants, r.opening().rule())
		}
	}
	var w welcome
	if _, err = stream.Write(o.append(nil)); err == nil {
		err = writeJSON(stream, h)
	}
	if err == nil {
		err = readJSON(stream, &w)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case w.Code != "":
		return &HelloError{string(w.Code), w.Value}
	}
	return stream.Close()
}

// admit says what to dial for what the server has accepted: the target of the
// remote for which it listens, and nothing else.
func (s *serverAt) admit(o opening) (string, error) {
	s.mu.Lock()
	r, ok := s.reverse[o.listener]
	s.mu.Unlock()
	switch {
	case !ok:
		return "", refusal(codeForbidden)
	case r.Socks && (o.kind == kindReverseTCP || o.kind == kindReverseUDP):
		target, err := canonicalTarget(o.target)
		if err != nil {
			return "", refusal(codeMalformed)
		}
		return target, nil
	case o.kind == kindReverseTCP && !r.UDP, o.kind == kindReverseUDP && r.UDP:
		return r.Target, nil
	}
	return "", refusal(codeForbidden)
}

// hold has the server listen for a remote, until ctx is done. If it cannot, as
// the address is in use, the client tries again.
func (s *serverAt) hold(ctx context.Context, r Remote) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = s.client.config.RetryAfter, s.client.config.MaxRetryAfter, 2
	for {
		err := s.listenThere(ctx, r)
		if ctx.Err() != nil {
			return
		}
		pause := wait.NextBackOff()
		s.log.Warn("the server does not listen", "remote", r, "error", err, "retry", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// listenThere has the server listen for a remote, and returns why it no longer does.
func (s *serverAt) listenThere(ctx context.Context, r Remote) error {
	s.mu.Lock() // until admit can know the stream
	stream, err := s.open(ctx, r.opening())
	if err == nil {
		s.reverse[stream.ID()] = r
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Reset(uint64(codeGone)) })
	defer func() {
		stop()
		_ = stream.Reset(uint64(codeGone))
		s.release(stream)
		s.mu.Lock()
		delete(s.reverse, stream.ID())
		s.mu.Unlock()
	}()
	if err := awaitOpen(stream); err != nil {
		return err
	}
	var port [2]byte
	if _, err := io.ReadFull(stream, port[:]); err != nil {
		return refused(err)
	}
	n := binary.BigEndian.Uint16(port[:])
	s.log.Info("the server listens", "remote", r, "port", n)
	if f := s.client.config.Listening; f != nil {
		f(r, s.listeningAt(r, n))
	}
	if _, err = io.Copy(io.Discard, stream); err == nil {
		err = io.ErrUnexpectedEOF
	}
	return refused(err)
}

// listeningAt returns the address where the server listens for a remote.
func (s *serverAt) listeningAt(r Remote, port uint16) net.Addr {
	host, _, _ := net.SplitHostPort(r.Listen) // ParseRemote has looked at it
	network := "tcp"
	if r.UDP {
		network = "udp"
	}
	return &remoteAddr{network, net.JoinHostPort(host, strconv.Itoa(int(port)))}
}

// remoteAddr is an address at the server.
type remoteAddr struct{ network, address string }

func (a *remoteAddr) Network() string { return a.network }
func (a *remoteAddr) String() string  { return a.address }
