package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp/identity"
	"github.com/quic-go/quic-go"
)

// tcpPeer is the kernel's TCP, as package net sets it up.
type tcpPeer struct{ net.Listener }

func newTCPPeer() (tcpPeer, error) {
	l, err := net.Listen("tcp4", loopback)
	return tcpPeer{l}, err
}

func (p tcpPeer) Accept() (io.ReadWriteCloser, error) { return p.Listener.Accept() }

func (p tcpPeer) Dial() (io.ReadWriteCloser, error) {
	return dialTCP(context.Background(), p.Addr().String())
}

// dialTCP opens a connection that is reset when it is closed. It would occupy
// its port for a minute otherwise, and all ports would be taken in a second.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", addr)
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetLinger(0)
}

// quicPeer is quic-go, with TLS as always, and one stream a connection.
type quicPeer struct {
	transport   *quic.Transport
	socket      *net.UDPConn
	listener    *quic.Listener
	tls         *tls.Config // of clients
	certificate []byte      // of the listening end, in DER
	buffer      int
}

// quicConfig has windows that hold back nothing, and packets as large as the
// others'.
var quicConfig = &quic.Config{
	InitialStreamReceiveWindow:     16 << 20,
	MaxStreamReceiveWindow:         16 << 20,
	InitialConnectionReceiveWindow: 24 << 20,
	MaxConnectionReceiveWindow:     24 << 20,
	InitialPacketSize:              wireMTU,
	DisablePathMTUDiscovery:        true,
	MaxIdleTimeout:                 time.Minute,
}

func newQUICPeer(s settings) (*quicPeer, error) {
	server, client, err := selfSigned()
	if err != nil {
		return nil, err
	}
	socket, err := openSocket(s.buffer)
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: socket}
	l, err := t.Listen(server, quicConfig)
	if err != nil {
		return nil, errors.Join(err, t.Close(), socket.Close())
	}
	return &quicPeer{t, socket, l, client, server.Certificates[0].Certificate[0], s.buffer}, nil
}

// selfSigned returns the TLS settings of both ends with a certificate for this
// one measurement.
func selfSigned() (server, client *tls.Config, err error) {
	certificate, err := identity.New("bench")
	if err != nil {
		return nil, nil, err
	}
	server = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		NextProtos:   quicProtocols,
		MinVersion:   tls.VersionTLS13,
	}
	return server, trusting(identity.Pool(certificate)), nil
}

var quicProtocols = []string{"bench"}

// trusting returns the TLS settings of a client.
func trusting(roots *x509.CertPool) *tls.Config {
	return &tls.Config{RootCAs: roots, ServerName: "bench", NextProtos: quicProtocols, MinVersion: tls.VersionTLS13}
}

// quicStream is a stream that ends its connection when it is closed, and what
// the connection alone has use for.
type quicStream struct {
	*quic.Stream
	conn *quic.Conn
	own  closers
}

func (s *quicStream) Close() error {
	return errors.Join(s.conn.CloseWithError(0, ""), s.own.Close())
}

func (p *quicPeer) Accept() (io.ReadWriteCloser, error) {
	c, err := p.listener.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	s, err := c.AcceptStream(context.Background())
	if err != nil {
		return nil, err
	}
	return &quicStream{s, c, nil}, nil
}

func (p *quicPeer) Dial() (io.ReadWriteCloser, error) {
	return dialQUIC(context.Background(), p.listener.Addr(), p.tls, p.buffer)
}

// dialQUIC dials from a socket of its own, whose buffers have the given size.
func dialQUIC(ctx context.Context, addr net.Addr, tls *tls.Config, buffer int) (*quicStream, error) {
	socket, err := openSocket(buffer)
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: socket}
	own := closers{socket, t}
	c, err := t.Dial(ctx, addr, tls, quicConfig)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return &quicStream{s, c, own}, nil
}

func (p *quicPeer) Close() error { return closers{p.socket, p.transport, p.listener}.Close() }
