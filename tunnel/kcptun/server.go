package kcptun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/arqnet/kcp/tunnel/internal/lobby"
	"github.com/xtaci/smux"
)

const (
	// maxSessions is how many sessions a server has at most, and maxUnvalidated how many
	// besides of peers that have not shown yet that they receive what is sent to them.
	maxSessions    = 4096
	maxUnvalidated = 1024
	// maxStreams is how many connections a session has.
	maxStreams = 16384
	// dialTimeout is how long a target may take to answer.
	dialTimeout = 10 * time.Second
)

// Serve accepts sessions, and connects their streams with the target, until ctx is
// done, which is not an error. When it returns, everything has ended that it has begun.
func Serve(ctx context.Context, config Config) error {
	if err := config.prepareServer(); err != nil {
		return fmt.Errorf("kcptun: %w", err)
	}
	block, err := config.block()
	if err != nil {
		return fmt.Errorf("kcptun: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var shown observed
	var listeners []*kcp.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for _, address := range config.server.all() {
		l, err := kcp.ListenWithOptions(address, block, config.DataShard, config.ParityShard)
		if err != nil {
			return fmt.Errorf("kcptun: cannot listen on %s: %w", address, err)
		}
		listeners = append(listeners, l)
		config.tuneSocket(l)
		defer shown.add(&config, "server", kcp.EndpointOf(l))()
	}
	config.Logger.Info("listening", "address", listeners[0].Addr(), "ports", len(listeners), "target", config.Target, "crypt", config.Crypt)
	s := &server{config: &config, strangers: lobby.New(maxUnvalidated, maxUnvalidated), nop: config.nop(), room: make(chan struct{}, maxSessions)}
	s.running.Go(func() { watchKeys(ctx, config.Logger) })
	ends := make(chan error, len(listeners))
	for _, l := range listeners {
		s.running.Go(func() { ends <- s.accept(ctx, l) })
		if config.Listening != nil {
			config.Listening(l.Addr())
		}
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-ends:
		err = fmt.Errorf("kcptun: %w", err)
	}
	cancel()
	s.running.Wait()
	return err
}

// accept accepts sessions until ctx is done.
func (s *server) accept(ctx context.Context, l *kcp.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.AcceptKCP()
		if err != nil {
			return err
		}
		s.running.Go(func() { s.admit(ctx, conn) })
	}
}

// errFull is why a session was ended to make room.
var errFull = errors.New("too many clients have not answered yet")

// admit serves a session once its peer has shown that it receives what is sent to it, if
// there is room. Anybody who has the password, or a recording, can forge what a session
// begins with: until then it has no buffers, and no connection to the target.
func (s *server) admit(ctx context.Context, conn *kcp.UDPSession) {
	s.config.tune(conn)
	log := s.config.Logger.With("client", conn.RemoteAddr().String())
	if err := s.validate(ctx, conn); err != nil {
		if err == errFull {
			s.strangers.Warn(log, "session refused", "reason", err)
		}
		_ = conn.Close()
		return
	}
	select {
	case s.room <- struct{}{}:
	default:
		log.Warn("session refused: too many sessions")
		_ = conn.Close()
		return
	}
	defer func() { <-s.room }()
	s.serve(ctx, conn, log)
}

// validate waits until the peer of a session has acknowledged something. It sends a
// NOP of smux for that, which the peer ignores.
func (s *server) validate(ctx context.Context, conn *kcp.UDPSession) error {
	session, validated := kcp.SessionOf(conn), kcp.Validated(conn)
	select {
	case <-validated:
		return nil
	default:
	}
	stranger := s.strangers.Enter(conn.RemoteAddr(), func() { _ = session.Abort(0, "") })
	defer s.strangers.Leave(stranger)
	_, _ = conn.Write(s.nop) // if it fails, the session has ended
	var err error
	select {
	case <-validated:
		return nil
	case <-session.Done():
		err = session.Err()
	case <-ctx.Done():
		err = ctx.Err()
	}
	if stranger.Ended() {
		err = errFull
	}
	_ = session.Abort(0, "")
	return err
}

// server is what Serve works with.
type server struct {
	config    *Config
	strangers *lobby.Lobby  // of sessions whose peers are not validated
	nop       []byte        // what they are sent
	room      chan struct{} // has an element for each other session
	running   sync.WaitGroup
}

// serve serves a session until it ends.
func (s *server) serve(ctx context.Context, conn *kcp.UDPSession, log *slog.Logger) {
	below := net.Conn(conn)
	if !s.config.NoComp {
		below = compress(conn)
	}
	session, err := smux.Server(below, s.config.smux())
	if err != nil {
		log.Error("session", "error", err)
		_ = conn.Close()
		return
	}
	log.Info("session begun")
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	defer stop()
	defer session.Close()
	var streams sync.WaitGroup
	defer streams.Wait()
	var connecting atomic.Int64 // also those whose streams have ended meanwhile
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			if session.IsClosed() {
				log.Info("session ended", "reason", err)
			} else {
				log.Warn("session ended", "reason", explained(err))
			}
			_ = session.Close()
			return
		}
		if session.NumStreams() > maxStreams || connecting.Load() >= maxStreams {
			log.Warn("connection refused: too many connections in the session", "id", stream.ID())
			_ = stream.Close()
			continue
		}
		connecting.Add(1)
		streams.Go(func() {
			err := s.connect(ctx, stream)
			connecting.Add(-1)
			var op *net.OpError
			switch {
			case errors.As(err, &op) && op.Op == "dial":
				log.Warn("connection refused", "target", s.config.Target, "error", err)
			case !s.config.QuietConnections:
				log.Debug("connection ended", "id", stream.ID(), "error", err)
			}
		})
	}
}

// connect connects a stream with the target.
func (s *server) connect(ctx context.Context, stream *smux.Stream) error {
	network := "tcp"
	if _, _, err := net.SplitHostPort(s.config.Target); err != nil {
		network = "unix"
	}
	d := net.Dialer{Timeout: dialTimeout}
	local, err := d.DialContext(ctx, network, s.config.Target)
	if err != nil {
		_ = stream.Close()
		return err
	}
	return relay(local.(halfConn), stream, s.config.CloseWait)
}
