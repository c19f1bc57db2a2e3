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
	var data, parity int
	if s.mode == fecMix {
		data, parity = fecDataPart, fecExtraPart
	}
	var block kcpgo.BlockCrypt
	var err error
	switch s.mode {
	case aesGCM:
		block, err = kcpgo.NewAESGCMCrypt(packetKey)
	case aesCFB:
		block, err = kcpgo.NewAESBlockCrypt(packetKey)
	}
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
	return &kcpGoPeer{
		s, l.Addr(), func() (kcpGoSession, error) { return l.AcceptKCP() },
		func(to net.Addr, socket *net.UDPConn) (kcpGoSession, error) {
			return kcpgo.NewConn2(to, block, data, parity, socket)
		},
		closers{socket, l},
	}, nil
}

// newFacadePeer is set up by the same calls as newKCPGoPeer.
func newFacadePeer(s settings) (*kcpGoPeer, error) {
	var data, parity int
	if s.mode == fecMix {
		data, parity = fecDataPart, fecExtraPart
	}
	var block facade.BlockCrypt
	var err error
	switch s.mode {
	case aesGCM:
		block, err = facade.NewAESGCMCrypt(packetKey)
	case aesCFB:
		block, err = facade.NewAESBlockCrypt(packetKey)
	}
	if err != nil {
		return nil, err
	}
	socket, err := openSocket(s.buffer)
	if err != nil {
		return nil, err
	}
	l, err := facade.ServeConn(block, data, parity, socket)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &kcpGoPeer{
		s, l.Addr(), func() (kcpGoSession, error) { return l.AcceptKCP() },
		func(to net.Addr, socket *net.UDPConn) (kcpGoSession, error) {
			return facade.NewConn2(to, block, data, parity, socket)
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
