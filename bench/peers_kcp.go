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
	kcpgo "github.com/xtaci/kcp-go/v5"
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
		NoDelay:           kcp.NoDelayOn,
		Interval:          10 * time.Millisecond,
		FastResend:        2,
		MinRTO:            minRTO,
		CongestionControl: congestion.NewNone,
		Backlog:           4096,
		SocketBuffer:      -1, // openSocket sets them
	}
	var err error
	switch s.mode {
	case plain:
	case aesGCM:
		c.Cipher, err = crypt.AESGCM(packetKey[:16])
	case aesCFB:
		block, e := aes.NewCipher(packetKey[:16])
		if e != nil {
			return nil, e
		}
		c.Cipher = crypt.CFB(block)
	case overTLS, tickets:
		c.TLS, err = sharedTLS(s)
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
	return newKCPPeerOf(c, s.buffer)
}

func newKCPPeerOf(c *kcp.Config, buffer int) (*kcpPeer, error) {
	e, err := newKCPEnd(c, buffer)
	if err != nil {
		return nil, err
	}
	l, err := e.Listen()
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &kcpPeer{e, l, buffer}, nil
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
	return e.Dial(context.Background(), p.LocalAddr())
}

// ownSocket is a connection that closes its socket too.
type ownSocket struct {
	io.ReadWriteCloser
	socket io.Closer
}

func (c *ownSocket) Close() error {
	return errors.Join(c.ReadWriteCloser.Close(), c.socket.Close())
}

// kcpGoPeer is kcp-go, set up as it is for speed: nodelay 1, interval 10,
// resend 2, no congestion control, stream mode, no write delay.
type kcpGoPeer struct {
	settings
	listener *kcpgo.Listener
	socket   *net.UDPConn
}

func newKCPGoPeer(s settings) (*kcpGoPeer, error) {
	block, data, parity, err := kcpGoMode(s.mode)
	if err != nil {
		return nil, err
	}
	socket, err := openSocket(s.buffer)
	if err != nil {
		return nil, err
	}
	l, err := kcpgo.ServeConn(block, data, parity, socket)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &kcpGoPeer{s, l, socket}, nil
}

// kcpGoMode returns the arguments that stand for a mode.
func kcpGoMode(mode string) (block kcpgo.BlockCrypt, data, parity int, err error) {
	switch mode {
	case plain:
	case aesGCM:
		block, err = kcpgo.NewAESGCMCrypt(packetKey[:16])
	case aesCFB:
		block, err = kcpgo.NewAESBlockCrypt(packetKey[:16])
	case fecMix:
		data, parity = fecDataPart, fecExtraPart
	default:
		err = fmt.Errorf("no mode %q", mode)
	}
	return block, data, parity, err
}

// tuneKCPGo has c work as the settings say.
func tuneKCPGo(s settings, c *kcpgo.UDPSession) *kcpgo.UDPSession {
	c.SetNoDelay(1, 10, 2, 1)
	c.SetWindowSize(s.window, s.window)
	//lint:ignore SA1019 there is no other way to have it
	c.SetStreamMode(true)
	c.SetWriteDelay(false)
	c.SetMtu(wireMTU)
	return c
}

func (p *kcpGoPeer) Accept() (io.ReadWriteCloser, error) {
	c, err := p.listener.AcceptKCP()
	if err != nil {
		return nil, err
	}
	return tuneKCPGo(p.settings, c), nil
}

func (p *kcpGoPeer) Dial() (io.ReadWriteCloser, error) {
	socket, err := openSocket(p.buffer)
	if err != nil {
		return nil, err
	}
	c, err := p.dialFrom(socket)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &ownSocket{c, socket}, nil
}

// dialFrom dials from a socket that no other session uses.
func (p *kcpGoPeer) dialFrom(socket *net.UDPConn) (io.ReadWriteCloser, error) {
	return dialKCPGo(p.settings, p.listener.Addr().String(), socket)
}

// dialKCPGo dials addr from a socket that no other session uses.
func dialKCPGo(s settings, addr string, socket *net.UDPConn) (*kcpgo.UDPSession, error) {
	block, data, parity, err := kcpGoMode(s.mode)
	if err != nil {
		return nil, err
	}
	c, err := kcpgo.NewConn(addr, block, data, parity, socket)
	if err != nil {
		return nil, err
	}
	return tuneKCPGo(s, c), nil
}

func (p *kcpGoPeer) Close() error { return errors.Join(p.listener.Close(), p.socket.Close()) }
