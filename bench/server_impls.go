package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/arqnet/kcp"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// serverImpl is an implementation in the server suite.
type serverImpl struct {
	// listen starts a listening end, in the server's process.
	listen func(*serverJob) (serverEnd, error)
	// dialer returns what opens a session, in the clients' process.
	dialer func(*order) (dialFunc, error)
	// sent returns how many segments the clients have sent, and how many of
	// those were retransmissions. nil means that nobody knows.
	sent func([]clientStream) (all, again uint64)
}

// dialFunc opens the i-th session.
type dialFunc func(ctx context.Context, i int) (clientStream, error)

// serverImpls are the implementations. One that serves sessions of kcp in another
// way differs in what listen returns.
var serverImpls = map[string]serverImpl{
	ours:         {listenKCP, kcpDialer, kcpSent},
	kcpGroup:     {listenGroup, kcpDialer, kcpSent},
	kcpHandler:   {listenHandler, kcpDialer, kcpSent},
	kcpFromKCPGo: {listenKCP, kcpGoDialer, kcpGoSent},
	kcpGo:        {listenKCPGo, kcpGoDialer, kcpGoSent},
	quicGo:       {listenQUIC, quicDialer, nil},
	kernelTCP:    {listenTCP, tcpDialer, nil},
	bareUDP:      {listenUDP, udpDialer, nil},
}

const (
	spareFiles      = 100 // that a process has open besides its sockets
	sharedEndpoints = 64  // of clients that cannot have a socket each
)

// roomForSockets fails if the process cannot have a socket for each client.
func roomForSockets(job *serverJob) error {
	if files := maxFiles(); job.Clients > files-spareFiles {
		return fmt.Errorf("%d clients need a socket each, and the process may open %d files (ulimit -n)", job.Clients, files)
	}
	return nil
}

// kcpDialer dials from a socket for each session, or from a few endpoints if so
// many sockets cannot be.
func kcpDialer(o *order) (dialFunc, error) {
	config, err := serverConfig(o.Job)
	if err != nil {
		return nil, err
	}
	if o.Job.Kind != serverOpen && roomForSockets(o.Job) == nil {
		d := kcp.Dialer{Config: config}
		return func(ctx context.Context, _ int) (clientStream, error) {
			return asStream(d.DialContext(ctx, "udp4", o.Addr))
		}, nil
	}
	to, err := netip.ParseAddrPort(o.Addr)
	if err != nil {
		return nil, err
	}
	var ends []*kcpEnd
	for range min(o.Job.Clients, sharedEndpoints) {
		e, err := newKCPEnd(config, serverBuffer)
		if err != nil {
			return nil, err
		}
		ends = append(ends, e)
	}
	addr := net.UDPAddrFromAddrPort(to)
	return func(ctx context.Context, i int) (clientStream, error) {
		return asStream(ends[i%len(ends)].Dial(ctx, addr))
	}, nil
}

// asStream makes a nil session a nil interface.
func asStream[T clientStream](c T, err error) (clientStream, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// kcpSent asks all sessions at once: a busy one may take long to answer.
func kcpSent(streams []clientStream) (all, again uint64) {
	var sent, resent atomic.Uint64
	_ = inParallel(len(streams), len(streams), func(i int) error {
		n := streams[i].(*kcp.Conn).Stats().Counters
		sent.Add(n.SegmentsSent + n.Retransmits())
		resent.Add(n.Retransmits())
		return nil
	})
	return sent.Load(), resent.Load()
}

func kcpGoDialer(o *order) (dialFunc, error) {
	return func(context.Context, int) (clientStream, error) {
		socket, err := openSocket(serverBuffer)
		if err != nil {
			return nil, err
		}
		c, err := dialKCPGo(o.Job.settings(), o.Addr, socket)
		if err != nil {
			return nil, errors.Join(err, socket.Close())
		}
		return c, nil
	}, roomForSockets(o.Job)
}

// kcpGoSent counts ACKs among all segments, as kcp-go does.
func kcpGoSent([]clientStream) (all, again uint64) {
	return atomic.LoadUint64(&kcpgo.DefaultSnmp.OutSegs), atomic.LoadUint64(&kcpgo.DefaultSnmp.RetransSegs)
}

func quicDialer(o *order) (dialFunc, error) {
	certificate, err := x509.ParseCertificate(o.Certificate)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	addr, err := net.ResolveUDPAddr("udp4", o.Addr)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ int) (clientStream, error) {
		return asStream(dialQUIC(ctx, addr, trusting(roots), serverBuffer))
	}, roomForSockets(o.Job)
}

func tcpDialer(o *order) (dialFunc, error) {
	return func(ctx context.Context, _ int) (clientStream, error) { return asStream(dialTCP(ctx, o.Addr)) }, roomForSockets(o.Job)
}

// datagramStream is a socket for messages that may get lost.
type datagramStream struct{ *net.UDPConn }

func udpDialer(o *order) (dialFunc, error) {
	to, err := net.ResolveUDPAddr("udp4", o.Addr)
	if err != nil {
		return nil, err
	}
	return func(context.Context, int) (clientStream, error) {
		c, err := net.DialUDP("udp4", nil, to)
		if err != nil {
			return nil, err
		}
		return datagramStream{c}, nil
	}, roomForSockets(o.Job)
}
