package kcp

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
)

// port is a socket with the engine's endpoint on it.
type port struct {
	pc       net.PacketConn // as the program has given it
	own      bool           // shut closes pc
	fec      bool           // error correction is on
	overhead int            // bytes that encryption and error correction add to a packet
	endpoint *engine.Endpoint
	meter    meter
	gone     atomic.Bool // shut was called
}

// errNoSocket is for a nil net.PacketConn, with which kcp-go panics later.
var errNoSocket = errors.New("kcp: the net.PacketConn is nil")

// openPort starts an endpoint on pc.
// validated is called when the peer of a session has validated its address; nil: nothing
// is.
func openPort(block BlockCrypt, dataShards, parityShards int, own bool, pc net.PacketConn, validated func(*engine.Conn)) (*port, error) {
	if pc == nil {
		return nil, errNoSocket
	}
	config := newConfig(block, dataShards, parityShards)
	e, err := engine.NewEndpoint(pc, config)
	if err != nil {
		return nil, err
	}
	compat.Set(e, compat.Options{SegmentBound: true, DataBeforeDeadline: true, Validated: validated})
	p := &port{pc: pc, own: own, endpoint: e, fec: config.FEC != engine.FEC{}}
	if config.Cipher != nil {
		head, tail := config.Cipher.Overhead()
		p.overhead = head + tail
	}
	if p.fec {
		p.overhead += fecHeader
	}
	meters.add(p)
	return p, nil
}

// dial opens a session without a word to the peer, which learns of it with the
// first data.
func (p *port) dial(raddr net.Addr, conv uint32) (*engine.Conn, error) {
	return p.endpoint.Dial(context.Background(), raddr, &engine.DialOptions{Conv: &conv, Quiet: true})
}

// shut ends the endpoint and its sessions, and closes an owned socket. Further
// calls do nothing. A socket whose ReadFrom cannot be interrupted keeps a
// goroutine until that returns; so does a call from within a handler of
// out-of-band packets until that returns. shut waits for neither.
func (p *port) shut() error {
	if p.gone.Swap(true) {
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.endpoint.Close() // it was open, and the reader of the socket ends some time
		meters.remove(p)
	}()
	limit := time.NewTimer(shutWait)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
	}
	if p.own {
		return p.pc.Close()
	}
	return nil
}

// shutWait is how long shut waits for the reader of the socket.
const shutWait = 100 * time.Millisecond

// shutAfter calls shut when c, the only session, has ended, unless too many
// sockets wait for that.
func (p *port) shutAfter(c *engine.Conn) error {
	if waitingPorts.Add(1) > mostWaitingPorts {
		waitingPorts.Add(-1)
		return p.shut()
	}
	go func() {
		defer waitingPorts.Add(-1)
		<-c.Done()
		_ = p.shut() // nobody is left to be told
	}()
	return nil
}

// waitingPorts counts the sockets of closed sessions that still deliver.
var waitingPorts atomic.Int32

// mostWaitingPorts keeps a program that dials and closes in a loop from running
// out of descriptors.
const mostWaitingPorts = 1024
