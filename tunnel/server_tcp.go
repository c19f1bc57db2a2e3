package tunnel

import (
	"cmp"
	"context"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/tcp"
)

// noTCP is a ServerConfig.TCP.
const noTCP = "none"

// listenTCP opens the socket for TCP, or takes it over from the server before this one.
func (s *Server) listenTCP() (err error) {
	c := &s.config
	s.tcpAt = cmp.Or(c.TCP, s.Addr().String())
	switch {
	case c.TCP == noTCP, c.TCP == "" && c.Socket != nil && c.TCPSocket == nil:
		return nil
	case c.TCPSocket != nil:
		s.tcp = c.TCPSocket
		return nil
	}
	if file := s.before.ask(request{What: wantTCP, Key: claimKey{Address: s.tcpAt}}); file != nil {
		defer file.Close()
		s.tcp, err = net.FileListener(file)
		return err
	}
	s.tcp, err = net.Listen("tcp", s.tcpAt)
	if err != nil && c.TCP == "" {
		s.log.Warn("not listening on TCP: clients that UDP does not reach cannot connect", "address", s.tcpAt, "error", err)
		return nil
	}
	return err
}

// serveTCP serves what arrives over TCP until the socket is closed.
func (s *Server) serveTCP(ctx context.Context, sessions *sync.WaitGroup) {
	if s.tcp == nil {
		return
	}
	context.AfterFunc(ctx, s.closeTCP)
	sessions.Go(func() {
		tcp.Accept(s.tcp, s.log, func(conn *net.TCPConn) {
			sessions.Go(func() { s.serveConn(ctx, carrier.NewTCP(conn, s.session, false)) })
		})
	})
}

func (s *Server) closeTCP() {
	if s.tcp != nil {
		_ = s.tcp.Close()
	}
}

// giveTCP returns a copy of the socket for TCP for a server that wants to listen at an
// address, and closes this one's: what connects meanwhile waits in the socket. It is nil
// if there is none.
func (s *Server) giveTCP(address string) *os.File {
	l, ok := s.tcp.(*net.TCPListener)
	if !ok || address != s.tcpAt {
		return nil
	}
	file, err := l.File()
	if err != nil {
		return nil
	}
	s.closeTCP()
	return file
}

// keepTCPFor closes the socket for TCP after the time within which the next server asks
// for it.
func (s *Server) keepTCPFor(wait time.Duration) { time.AfterFunc(wait, s.closeTCP) }
