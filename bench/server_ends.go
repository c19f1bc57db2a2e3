package main

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// serverProcess is the server's process.
type serverProcess struct {
	job serverJob

	mu      sync.Mutex
	tallies []*tally
	err     error // the first of a session, or of accepting
}

// tally counts what a session has got done. Sessions do not share its cache
// line.
type tally struct {
	received atomic.Uint64 // bytes; messages count when answered
	_        [56]byte
}

// Address is where a server listens.
type Address struct {
	Addr        string
	Certificate []byte // in DER, of QUIC
}

// Usage is what a server's process has used and received since it began.
type Usage struct {
	At, CPU  time.Duration
	Received []uint64 // bytes, by session
}

// moved returns the bytes of all sessions.
func (u *Usage) moved() (n uint64) {
	for _, bytes := range u.Received {
		n += bytes
	}
	return n
}

// Listen starts the server.
func (p *serverProcess) Listen(to Target, at *Address) (err error) {
	p.job = to.Job
	*at, err = serverEnds[p.job.Impl].listen(p)
	return err
}

// Use reports what was used and received. It fails if a session has.
func (p *serverProcess) Use(_ int, u *Usage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	u.At, u.CPU = time.Since(processStart), cpuTime()
	for _, t := range p.tallies {
		u.Received = append(u.Received, t.received.Load())
	}
	return p.err
}

var processStart = time.Now()

// fail keeps the first error.
func (p *serverProcess) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// begin counts a new session.
func (p *serverProcess) begin() *tally {
	t := new(tally)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tallies = append(p.tallies, t)
	return t
}

// acceptAll gives each session a goroutine, as users write it.
func (p *serverProcess) acceptAll(accept func() (io.ReadWriteCloser, error)) {
	for {
		c, err := accept()
		if err != nil {
			p.fail(err)
			return
		}
		go func() { p.fail(p.converse(c)) }()
	}
}

// converse reads and answers until the session ends.
func (p *serverProcess) converse(c io.ReadWriter) error {
	t := p.begin()
	var role [1]byte
	if _, err := io.ReadFull(c, role[:]); err != nil {
		return err
	}
	if _, err := c.Write([]byte{greeting}); err != nil {
		return err
	}
	b := make([]byte, readSize)
	for role[0] == greetingUpload {
		n, err := c.Read(b)
		if err != nil {
			return err
		}
		t.received.Add(uint64(n))
	}
	for b = b[:messageSize]; ; {
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
		p.answered(t)
	}
}

// answered counts a message. Beside an upload only that counts.
func (p *serverProcess) answered(t *tally) {
	if p.job.Kind != serverChat {
		t.received.Add(messageSize)
	}
}

// clientStream is a client's end of a session.
type clientStream interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
}

// dialFunc opens a session.
type dialFunc func(ctx context.Context) (clientStream, error)

// serverEnds are the implementations.
var serverEnds = map[string]struct {
	listen func(*serverProcess) (Address, error) // in the server's process
	dialer func(Target) (dialFunc, error)        // in the clients' process

	// sent returns how many segments the clients have sent, and how many of
	// those were retransmissions. nil means that nobody knows.
	sent func([]clientStream) (all, again uint64)
}{
	ours:      {listenKCP, kcpDialer, kcpSent},
	kcpGroup:  {listenGroup, kcpDialer, kcpSent},
	kcpGo:     {listenKCPGo, kcpGoDialer, kcpGoSent},
	quicGo:    {listenQUIC, quicDialer, nil},
	kernelTCP: {listenTCP, tcpDialer, nil},
}

func listenKCP(p *serverProcess) (at Address, err error) {
	l, err := kcp.Listen("udp4", loopback, nil)
	if err != nil {
		return at, err
	}
	go p.acceptAll(func() (io.ReadWriteCloser, error) { return l.Accept() })
	return Address{Addr: l.Addr().String()}, nil
}

func listenKCPGo(p *serverProcess) (at Address, err error) {
	l, err := newKCPGoPeer(p.job.settings())
	if err != nil {
		return at, err
	}
	go p.acceptAll(l.Accept)
	return Address{Addr: l.addr.String()}, nil
}

func listenTCP(p *serverProcess) (at Address, err error) {
	l, err := newTCPPeer()
	if err != nil {
		return at, err
	}
	go p.acceptAll(l.Accept)
	return Address{Addr: l.Addr().String()}, nil
}

// listenQUIC accepts a connection before its stream: few may wait.
func listenQUIC(p *serverProcess) (at Address, err error) {
	q, err := newQUICPeer(p.job.settings())
	if err != nil {
		return at, err
	}
	go func() {
		for {
			c, err := q.listener.Accept(context.Background())
			if err != nil {
				p.fail(err)
				return
			}
			go func() {
				s, err := c.AcceptStream(context.Background())
				if err == nil {
					err = p.converse(s)
				}
				p.fail(err)
			}()
		}
	}()
	return Address{q.listener.Addr().String(), q.certificate}, nil
}

func kcpDialer(to Target) (dialFunc, error) {
	return func(ctx context.Context) (clientStream, error) {
		return new(kcp.Dialer).DialContext(ctx, "udp4", to.At.Addr)
	}, nil
}

func kcpGoDialer(to Target) (dialFunc, error) {
	addr, err := net.ResolveUDPAddr("udp4", to.At.Addr)
	return func(context.Context) (clientStream, error) {
		socket, err := openSocket(serverBuffer)
		if err != nil {
			return nil, err
		}
		p := &kcpGoPeer{settings: to.Job.settings(), dial: func(to net.Addr, socket *net.UDPConn) (kcpGoSession, error) {
			return kcpgo.NewConn2(to, nil, 0, 0, socket)
		}}
		return p.dialFrom(addr, socket)
	}, err
}

func quicDialer(to Target) (dialFunc, error) {
	certificate, err := x509.ParseCertificate(to.At.Certificate)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	addr, err := net.ResolveUDPAddr("udp4", to.At.Addr)
	return func(ctx context.Context) (clientStream, error) {
		return dialQUIC(ctx, addr, trusting(roots), serverBuffer)
	}, err
}

func tcpDialer(to Target) (dialFunc, error) {
	return func(ctx context.Context) (clientStream, error) { return dialTCP(ctx, to.At.Addr) }, nil
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

// kcpGoSent counts ACKs among all segments, as kcp-go does.
func kcpGoSent([]clientStream) (all, again uint64) {
	return atomic.LoadUint64(&kcpgo.DefaultSnmp.OutSegs), atomic.LoadUint64(&kcpgo.DefaultSnmp.RetransSegs)
}
