package main

import (
	"errors"
	"io"
	"net"
	"time"

	facade "github.com/arqnet/kcp/kcpgo"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// kcpGoAPI is kcp-go's API on this module's engine: package kcpgo.
const kcpGoAPI = "kcpgo"

// kcpGoSession is what sessions of both have.
type kcpGoSession interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetNoDelay(nodelay, interval, resend, nc int)
	SetWindowSize(sent, received int)
	SetStreamMode(bool)
	SetWriteDelay(bool)
	SetMtu(int) bool
}

// kcpGoPeer is kcp-go, set up as it is for speed: nodelay 1, interval 10,
// resend 2, no congestion control, stream mode, no write delay. It may be package
// kcpgo too.
type kcpGoPeer struct {
	settings
	addr   net.Addr
	accept func() (kcpGoSession, error)
	dial   func(addr net.Addr, socket *net.UDPConn) (kcpGoSession, error)
	closers
}

func newKCPGoPeer(s settings) (*kcpGoPeer, error) {
	return newKCPGoPeerOf(s, kcpgo.NewAESGCMCrypt, kcpgo.NewAESBlockCrypt, kcpgo.ServeConn, (*kcpgo.Listener).AcceptKCP, kcpgo.NewConn2)
}

// newFacadePeer is package kcpgo.
func newFacadePeer(s settings) (*kcpGoPeer, error) {
	return newKCPGoPeerOf(s, facade.NewAESGCMCrypt, facade.NewAESBlockCrypt, facade.ServeConn, (*facade.Listener).AcceptKCP, facade.NewConn2)
}

// newKCPGoPeerOf starts the listening end by calls that both packages have.
func newKCPGoPeerOf[B any, L net.Listener, S kcpGoSession](
	s settings, gcm, cfb func([]byte) (B, error), serve func(B, int, int, net.PacketConn) (L, error),
	accept func(L) (S, error), dial func(net.Addr, B, int, int, net.PacketConn) (S, error),
) (*kcpGoPeer, error) {
	var data, parity int
	var block B
	var err error
	switch s.mode {
	case fecMix:
		data, parity = fecDataPart, fecExtraPart
	case aesGCM:
		block, err = gcm(packetKey)
	case aesCFB:
		block, err = cfb(packetKey)
	}
	if err != nil {
		return nil, err
	}
	socket, err := openSocket(s.buffer)
	if err != nil {
		return nil, err
	}
	l, err := serve(block, data, parity, socket)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &kcpGoPeer{
		s, l.Addr(), func() (kcpGoSession, error) { return accept(l) },
		func(to net.Addr, socket *net.UDPConn) (kcpGoSession, error) {
			return dial(to, block, data, parity, socket)
		},
		closers{socket, l},
	}, nil
}

// tune has c work as the settings say.
func (p *kcpGoPeer) tune(c kcpGoSession, err error) (kcpGoSession, error) {
	if err != nil {
		return nil, err
	}
	c.SetNoDelay(1, 10, 2, 1)
	c.SetWindowSize(p.window, p.window)
	c.SetStreamMode(true)
	c.SetWriteDelay(false)
	c.SetMtu(wireMTU)
	return c, nil
}

func (p *kcpGoPeer) Accept() (io.ReadWriteCloser, error) { return p.tune(p.accept()) }

func (p *kcpGoPeer) Dial() (io.ReadWriteCloser, error) {
	socket, err := openSocket(p.buffer)
	if err != nil {
		return nil, err
	}
	c, err := p.dialFrom(p.addr, socket)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &ownSocket{c, socket}, nil
}

// dialFrom dials from a socket that no other session uses.
func (p *kcpGoPeer) dialFrom(addr net.Addr, socket *net.UDPConn) (kcpGoSession, error) {
	return p.tune(p.dial(addr, socket))
}
