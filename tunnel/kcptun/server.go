package kcptun

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/xtaci/smux"
)

const (
	// maxSessions is how many sessions a server has at most, and maxStreams how many
	// connections a session has.
	maxSessions = 4096
	maxStreams  = 16384
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
	s := &server{config: &config, room: make(chan struct{}, maxSessions)}
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
		select {
		case s.room <- struct{}{}:
		default:
			s.config.Logger.Warn("session refused: too many sessions", "client", conn.RemoteAddr())
			_ = conn.Close()
			continue
		}
		s.running.Go(func() {
			s.serve(ctx, conn)
			<-s.room
		})
	}
}

// server is what Serve works with.
type server struct {
	config  *Config
	room    chan struct{} // has an element for each session
	running sync.WaitGroup
}

// serve serves a session until it ends.
func (s *server) serve(ctx context.Context, conn *kcp.UDPSession) {
	log := s.config.Logger.With("client", conn.RemoteAddr().String())
	s.config.tune(conn)
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
