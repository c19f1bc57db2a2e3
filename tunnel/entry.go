package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/tcp"
)

// socket is what listens: a *net.TCPListener or a *net.UDPConn.
type socket interface {
	File() (*os.File, error)
	Close() error
}

// listenOn returns a socket of "tcp" or "udp" at an address.
func listenOn(ctx context.Context, network, address string) (socket, error) {
	var lc net.ListenConfig
	if network == "udp" {
		return socketOf(lc.ListenPacket(ctx, listenNetwork(network, address), address))
	}
	return socketOf(lc.Listen(ctx, listenNetwork(network, address), address))
}

// socketOf returns what package net has opened for "tcp" or "udp" as a socket.
func socketOf[T any](opened T, err error) (socket, error) {
	if err != nil {
		return nil, err
	}
	return any(opened).(socket), nil
}

// listenNetwork returns the network to listen with: an address of IPv4 is not all
// addresses of IPv6, too, as package net has it.
func listenNetwork(network, addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return network
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		return network + "4"
	}
	return network
}

// addressOf returns the address of a socket, and its port.
func addressOf(s socket) (at net.Addr, port int) {
	if l, ok := s.(*net.TCPListener); ok {
		return l.Addr(), l.Addr().(*net.TCPAddr).Port
	}
	at = s.(*net.UDPConn).LocalAddr()
	return at, at.(*net.UDPAddr).Port
}

// openFunc opens a stream to a target, which is empty if the peer knows it. The kind is
// one of kindTCP, kindUDP, kindSocksTCP and kindSocksUDP.
type openFunc func(ctx context.Context, k kind, target string) (*session, carrier.Stream, error)

// entry is where an end listens, for a remote of its own or of its peer, and has what it
// accepts carried to the other end.
type entry struct {
	log     *slog.Logger
	failed  slog.Level // of records of connections that the peer refuses
	socks   bool       // connections speak SOCKS5
	limited bool       // as front has it
	target  string     // what the peer is asked for
	remote  string     // what it counts for
	of      *account   // that connections count for; nil: none
	open    openFunc
}

// serve carries what arrives until the socket is closed. Connections may go on until ctx
// is done.
func (e *entry) serve(ctx context.Context, s socket) {
	switch s := s.(type) {
	case *net.TCPListener:
		var handling sync.WaitGroup
		defer handling.Wait()
		tcp.Accept(s, e.log, func(conn *net.TCPConn) { handling.Go(func() { e.accepted(ctx, conn) }) })
	case *net.UDPConn:
		f := front{pc: s, log: e.log, limited: e.limited, remote: e.remote, open: func(string) (*session, carrier.Stream, error) {
			return e.open(ctx, kindUDP, e.target)
		}}
		f.serve()
	}
}

// accepted carries a connection to its end.
func (e *entry) accepted(ctx context.Context, conn *net.TCPConn) {
	log := e.log.With("from", conn.RemoteAddr())
	if e.of != nil {
		if !e.of.addConn() {
			tcp.Abort(conn)
			log.Info("connection refused", "error", errTooMany)
			return
		}
		defer e.of.removeConn()
	}
	if e.socks {
		serveSocks(ctx, conn, e.log, e.of, e.remote, e.open)
		return
	}
	began := time.Now()
	err := e.carry(ctx, conn)
	var why refusal
	if errors.As(err, &why) && why != codeGone {
		log.Log(ctx, e.failed, "connection refused", "error", err)
	} else {
		log.Debug("connection ended", since(began), cause(err))
	}
}

// carry carries a connection to the target.
func (e *entry) carry(ctx context.Context, conn localConn) error {
	s, stream, err := e.open(ctx, kindTCP, e.target)
	if err != nil {
		tcp.Abort(conn)
		return err
	}
	return s.relay(conn, stream, true, subject{remote: e.remote, target: e.target})
}
