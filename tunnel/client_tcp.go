package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

const (
	// tcpAfter is how long a way may be without a session over UDP before TCP is tried
	// (compare RFC 8305 §5).
	tcpAfter = time.Second
	// tcpLook is how often a client looks at how its sessions over UDP are.
	tcpLook = 250 * time.Millisecond
)

// keepers is what those know of each other who keep the sessions of one way: over UDP,
// and over TCP.
type keepers struct {
	known    atomic.Bool // the server has let the client in
	answered atomic.Bool // the last attempt over UDP has got an answer
	noTCP    atomic.Bool // the last attempt over TCP has failed, or none is made
}

// keepWay keeps sessions on a way, until ctx is done, or the server is given up.
func (c *Client) keepWay(ctx context.Context, w way) error {
	ctx, cancel := context.WithCancel(ctx)
	var both sync.WaitGroup
	defer both.Wait()
	defer cancel()
	shared := new(keepers)
	ended := make(chan error, 2)
	if !c.config.tcpOnly {
		both.Go(func() { ended <- c.keep(ctx, w, shared) })
	}
	if c.config.TCPPort < 0 {
		shared.noTCP.Store(true)
	} else {
		both.Go(func() { ended <- c.keepTCP(ctx, w, shared) })
	}
	return <-ended
}

// transport returns what the session runs over: "udp" or "tcp".
func (s *clientSession) transport() string { return s.conn.Transport() }

// answered reports whether an attempt over UDP has failed with what the server says: UDP
// passes.
func answered(err error) bool {
	var hello *HelloError
	var handshake *kcp.HandshakeError
	return errors.As(err, &hello) || errors.As(err, &handshake)
}

// keepTCP keeps a session over TCP on a way while UDP does not pass there, until ctx is
// done, or the server turns the client away. Other failures are no reason to give up:
// what answers over TCP may be a portal of the network.
func (c *Client) keepTCP(ctx context.Context, w way, shared *keepers) error {
	wait, log := c.backOff(), c.log.With("server", w, "transport", "tcp")
	without, said := time.Now(), c.config.tcpOnly // since when no session over UDP was there
	if c.config.tcpOnly {
		without = time.Time{}
	}
	look := time.NewTicker(tcpLook)
	defer look.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		there, healthy := c.pool.over(w, "udp")
		if healthy || shared.answered.Load() {
			without, said = time.Now(), said && !healthy
			continue
		}
		if !there && time.Since(without) < tcpAfter {
			continue
		}
		err := c.attempt(ctx, w, "tcp", func() {
			shared.known.Store(true)
			shared.noTCP.Store(false)
			failed = 0
			wait.Reset()
			if _, healthy := c.pool.over(w, "udp"); !said && !healthy {
				log.Warn("UDP is closed on this path, using TCP")
				said = true
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errLeaving) {
			continue
		}
		failed++
		shared.noTCP.Store(true)
		var away *HelloError
		turned := errors.As(err, &away)
		if turned && !shared.known.Load() && c.attended() {
			return fmt.Errorf("%v over TCP: %w", w, err)
		}
		pause := max(wait.NextBackOff(), awayPause(err, failed))
		level := slog.LevelDebug // one of UDP says that there is no session
		switch {
		case turned: // until somebody changes something
			level = slog.LevelError
		case failed == 1:
			level = slog.LevelWarn
		}
		log.Log(ctx, level, "no session over TCP, trying again", "error", err, "retry", pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// dialTCP dials a session on a way over TCP.
func (c *Client) dialTCP(ctx context.Context, w way) (carrier.Conn, error) {
	d := carrier.Dialer{Config: c.settings, Proxy: c.config.Proxy}
	from, control, err := w.leaves()
	if err != nil {
		return nil, err
	}
	if d.Net.Control = control; from.IsValid() {
		d.Net.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	host, port, err := net.SplitHostPort(w.server)
	if err != nil {
		return nil, err
	}
	if c.config.TCPPort > 0 {
		port = strconv.Itoa(c.config.TCPPort)
	}
	conn, err := d.Dial(ctx, net.JoinHostPort(host, port))
	if err != nil {
		return nil, w.dialError(err)
	}
	return conn, nil
}

// yield has a session over TCP end with its last connection once the server answers over
// UDP.
func (s *clientSession) yield(ctx context.Context) {
	look := time.NewTicker(tcpLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if _, healthy := s.client.pool.over(s.way, "udp"); healthy {
			s.leave()
			return
		}
	}
}
