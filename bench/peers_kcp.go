package main

import (
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
)

// minRTO is as in the kernel's TCP. With many busy goroutines on few
// processors, an acknowledgement may well take longer than 30 ms, kcp-go's least
// time-out, which it has no setting for.
const minRTO = 200 * time.Millisecond

// ourConfig returns the counterpart of how kcp-go is set up below.
func ourConfig(s settings) (*kcp.Config, error) {
	c := &kcp.Config{
		MTU:               wireMTU,
		MaxMTU:            -1, // the others know nothing larger
		SendWindow:        s.window,
		ReceiveWindow:     s.window,
		WriteBuffer:       min(s.window*wireMTU+1<<16, 4<<20), // the default is 4 MiB
		Tuning:            kcp.Tuning{NoDelay: kcp.NoDelayOn, Interval: 10 * time.Millisecond, FastResend: 2, MinRTO: minRTO},
		CongestionControl: congestion.NewNone,
		Limits:            kcp.Limits{Backlog: 4096},
		SocketBuffer:      -1, // openSocket sets them
	}
	var err error
	switch s.mode {
	case plain:
	case aesGCM:
		c.Cipher, err = crypt.AESGCM(packetKey)
	case aesCFB:
		block, e := aes.NewCipher(packetKey)
		if e != nil {
			return nil, e
		}
		c.Cipher = crypt.CFB(block)
	case overTLS:
		server, client, e := selfSigned()
		if e != nil {
			return nil, e
		}
		server.RootCAs, server.ServerName = client.RootCAs, client.ServerName // both ends can have it
		c.TLS = server
	case fecMix:
		c.FEC = kcp.FEC{Data: fecDataPart, Parity: fecExtraPart}
	default:
		err = fmt.Errorf("no mode %q", s.mode)
	}
	return c, err
}

// kcpPeer is this module.
type kcpPeer struct {
	*kcpEnd
	listener *kcp.Listener
	buffer   int
}

// kcpEnd is an endpoint with its socket.
type kcpEnd struct {
	*kcp.Endpoint
	socket *net.UDPConn
	config *kcp.Config
}

func (e *kcpEnd) Close() error { return errors.Join(e.Endpoint.Close(), e.socket.Close()) }

func newKCPEnd(c *kcp.Config, buffer int) (*kcpEnd, error) {
	socket, err := openSocket(buffer)
	if err != nil {
		return nil, err
	}
	e, err := kcp.NewEndpoint(socket, c)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &kcpEnd{e, socket, c}, nil
}

func newKCPPeer(s settings) (*kcpPeer, error) {
	c, err := ourConfig(s)
	if err != nil {
		return nil, err
	}
	e, err := newKCPEnd(c, s.buffer)
	if err != nil {
		return nil, err
	}
	l, err := e.Listen()
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &kcpPeer{e, l, s.buffer}, nil
}

func (p *kcpPeer) Accept() (io.ReadWriteCloser, error) { return p.listener.Accept() }

func (p *kcpPeer) Dial() (io.ReadWriteCloser, error) {
	e, err := newKCPEnd(p.config, p.buffer)
	if err != nil {
		return nil, err
	}
	c, err := p.dialFrom(e)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &ownSocket{c, e}, nil
}

// dialFrom dials from an endpoint that other sessions may use too.
func (p *kcpPeer) dialFrom(e *kcpEnd) (*kcp.Conn, error) {
	return e.Dial(context.Background(), p.LocalAddr(), nil)
}

// ownSocket is a connection that closes its socket too.
type ownSocket struct {
	io.ReadWriteCloser
	socket io.Closer
}

func (c *ownSocket) Close() error {
	return errors.Join(c.ReadWriteCloser.Close(), c.socket.Close())
}
