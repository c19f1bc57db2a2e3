package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/selfsigned"
	"github.com/quic-go/quic-go"
)

// tcpPeer is the kernel's TCP, as package net sets it up.
type tcpPeer struct{ net.Listener }

func newTCPPeer() (tcpPeer, error) {
	l, err := net.Listen("tcp4", loopback)
	return tcpPeer{l}, err
}

func (p tcpPeer) Accept() (io.ReadWriteCloser, error) { return p.Listener.Accept() }

// Dial opens a connection that is reset when it is closed. It would occupy its
// port for a minute otherwise, and all ports would be taken in a second.
func (p tcpPeer) Dial() (io.ReadWriteCloser, error) {
	c, err := net.Dial("tcp4", p.Addr().String())
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetLinger(0)
}

// quicPeer is quic-go, with TLS as always, and one stream a connection.
type quicPeer struct {
	transport *quic.Transport
	socket    *net.UDPConn
	listener  *quic.Listener
	tls       *tls.Config // of clients
	buffer    int
}

// quicConfig has windows that hold back nothing, and packets as large as those
// of the others.
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
	return &quicPeer{t, socket, l, client, s.buffer}, nil
}

// selfSigned returns the TLS settings of both ends with a certificate for this
// one measurement.
func selfSigned() (server, client *tls.Config, err error) {
	certificate, roots, err := selfsigned.New("bench")
	if err != nil {
		return nil, nil, err
	}
	protocols := []string{"bench"}
	server = &tls.Config{
		Certificates: []tls.Certificate{*certificate},
		NextProtos:   protocols,
		MinVersion:   tls.VersionTLS13,
	}
	client = &tls.Config{RootCAs: roots, ServerName: "bench", NextProtos: protocols, MinVersion: tls.VersionTLS13}
	return server, client, nil
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
	socket, err := openSocket(p.buffer)
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: socket}
	own := closers{socket, t}
	c, err := t.Dial(context.Background(), p.listener.Addr(), p.tls, quicConfig)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	s, err := c.OpenStreamSync(context.Background())
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return &quicStream{s, c, own}, nil
}

func (p *quicPeer) Close() error { return closers{p.socket, p.transport, p.listener}.Close() }
