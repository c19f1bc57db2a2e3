package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp"
	facade "github.com/arqnet/kcp/kcpgo"
)

// kcpGoAPI is kcp-go's API on this module's engine: package kcpgo.
const kcpGoAPI = "kcpgo"

// kcpGoAPIPeer is set up by the same calls as kcpGoPeer.
type kcpGoAPIPeer struct {
	settings
	listener *facade.Listener
	socket   *net.UDPConn
}

func newKCPGoAPIPeer(s settings) (*kcpGoAPIPeer, error) {
	block, data, parity, err := kcpGoAPIMode(s.mode)
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
	return &kcpGoAPIPeer{s, l, socket}, nil
}

// kcpGoAPIMode is kcpGoMode for package kcpgo.
func kcpGoAPIMode(mode string) (block facade.BlockCrypt, data, parity int, err error) {
	switch mode {
	case plain:
	case aesGCM:
		block, err = facade.NewAESGCMCrypt(packetKey[:16])
	case aesCFB:
		block, err = facade.NewAESBlockCrypt(packetKey[:16])
	case fecMix:
		data, parity = fecDataPart, fecExtraPart
	default:
		err = fmt.Errorf("no mode %q", mode)
	}
	return block, data, parity, err
}

// tune is tuneKCPGo.
func (p *kcpGoAPIPeer) tune(c *facade.UDPSession) *facade.UDPSession {
	c.SetNoDelay(1, 10, 2, 1)
	c.SetWindowSize(p.window, p.window)
	c.SetStreamMode(true)
	c.SetWriteDelay(false)
	c.SetMtu(wireMTU)
	return c
}

func (p *kcpGoAPIPeer) Accept() (io.ReadWriteCloser, error) {
	c, err := p.listener.AcceptKCP()
	if err != nil {
		return nil, err
	}
	return p.tune(c), nil
}

func (p *kcpGoAPIPeer) Dial() (io.ReadWriteCloser, error) {
	block, data, parity, err := kcpGoAPIMode(p.mode)
	if err != nil {
		return nil, err
	}
	socket, err := openSocket(p.buffer)
	if err != nil {
		return nil, err
	}
	c, err := facade.NewConn2(p.listener.Addr(), block, data, parity, socket)
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &ownSocket{p.tune(c), socket}, nil
}

func (p *kcpGoAPIPeer) Close() error { return errors.Join(p.listener.Close(), p.socket.Close()) }

// machineEnd is the dialling end of an idle pair: the bare state machine on a
// socket, without a goroutine. So a pair of package kcpgo costs what its
// accepted end does, and a state machine.
type machineEnd struct {
	machine *kcp.KCP
	socket  *net.UDPConn
	start   time.Time
	in      []byte
}

// machineWait is how long an answer may take.
const machineWait = 10 * time.Second

func newMachineEnd(conv uint32, socket *net.UDPConn, to net.Addr, in []byte) *machineEnd {
	return &machineEnd{
		machine: kcp.New(conv, func(p []byte) { _, _ = socket.WriteTo(p, to) }), // what is lost shows in Read
		socket:  socket,
		start:   time.Now(),
		in:      in,
	}
}

func (e *machineEnd) tick() { e.machine.SetClock(uint32(time.Since(e.start).Milliseconds())) }

func (e *machineEnd) Write(b []byte) (int, error) {
	e.tick()
	n, err := e.machine.Send(b)
	e.machine.Flush()
	return n, err
}

func (e *machineEnd) Read(b []byte) (int, error) {
	if err := e.socket.SetReadDeadline(time.Now().Add(machineWait)); err != nil {
		return 0, err
	}
	for {
		n, err := e.machine.Recv(b)
		if err == nil {
			e.machine.Compact()
			return n, nil
		}
		n, _, err = e.socket.ReadFromUDPAddrPort(e.in)
		if err != nil {
			return 0, err
		}
		e.tick()
		err = e.machine.Input(e.in[:n])
		if errors.Is(err, kcp.ErrConv) {
			continue // for the socket that had the port before
		}
		if err != nil {
			return 0, err
		}
		e.machine.Flush() // the acknowledgement
	}
}

// Close does nothing: the socket belongs to the suite.
func (e *machineEnd) Close() error { return nil }
