package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"sync/atomic"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
)

// serverProcess is the server's process.
type serverProcess struct {
	job     serverJob
	end     serverEnd
	profile *os.File

	mu       sync.Mutex
	tallies  []*tally
	ended    int
	firstErr error // of a session, or of accepting
}

// tally counts what a session has got done. Sessions do not share its cache
// line.
type tally struct {
	received atomic.Uint64 // bytes; messages count when answered
	_        [56]byte
}

// serverEnd is an implementation's listening end. It decides how sessions are
// accepted and read.
type serverEnd interface {
	Addr() net.Addr
	// serve accepts and serves sessions until accepting fails.
	serve(p *serverProcess) error
}

// do carries out an order.
func (p *serverProcess) do(o order) (answer, error) {
	switch o.Do {
	case doPrepare:
		return p.listen(o)
	case doBegin:
		if err := p.startProfile(); err != nil {
			return answer{}, err
		}
		return p.report()
	case doMark:
		a, err := p.report()
		return a, errors.Join(err, p.stopProfile())
	case doCount:
		p.mu.Lock()
		defer p.mu.Unlock()
		return answer{Sessions: len(p.tallies), Ended: p.ended}, nil
	case doMemory:
		debug.FreeOSMemory()
		m, err := residentMemory()
		return answer{Memory: m}, err
	}
	return answer{}, errOrder
}

// listen starts the listening end.
func (p *serverProcess) listen(o order) (a answer, err error) {
	p.job = *o.Job
	if p.end, err = serverImpls[p.job.Impl].listen(&p.job); err != nil {
		return a, err
	}
	go func() { p.fail(p.end.serve(p)) }()
	a.Addr = p.end.Addr().String()
	if q, ok := p.end.(quicEnd); ok {
		a.Certificate = q.certificate
	}
	return a, nil
}

// report returns what the process has used and received. It fails if a session
// has ended.
func (p *serverProcess) report() (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := usedSoFar()
	a.Goroutines = runtime.NumGoroutine()
	if e, ok := p.end.(*stateEnd); ok {
		a.Sent = e.sent()
	}
	for _, t := range p.tallies {
		a.Received = append(a.Received, t.received.Load())
	}
	return a, p.firstErr
}

// startProfile starts a profile if one is wanted.
func (p *serverProcess) startProfile() (err error) {
	if p.job.Profile == "" {
		return nil
	}
	if p.profile, err = os.Create(p.job.Profile); err != nil {
		return err
	}
	return pprof.StartCPUProfile(p.profile)
}

// stopProfile ends the profile if there is one.
func (p *serverProcess) stopProfile() error {
	if p.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	f := p.profile
	p.profile = nil
	return f.Close()
}

// fail keeps the first error.
func (p *serverProcess) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.firstErr == nil {
		p.firstErr = err
	}
}

// begin counts a new session.
func (p *serverProcess) begin() *tally {
	t := new(tally)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tallies = append(p.tallies, t)
	return t
}

// serveSession serves one session to its end.
func (p *serverProcess) serveSession(c io.ReadWriteCloser) {
	err := p.converse(c, p.begin())
	_ = c.Close() // what matters is err
	p.mu.Lock()
	p.ended++
	p.mu.Unlock()
	if err != io.EOF || p.job.Kind != serverOpen {
		p.fail(err)
	}
}

// converse reads and answers until the session ends.
func (p *serverProcess) converse(c io.ReadWriteCloser, t *tally) error {
	upload := false
	if p.job.Kind != serverOpen {
		var role [1]byte
		if _, err := io.ReadFull(c, role[:]); err != nil {
			return err
		}
		upload = role[0] == greetingUpload
		if _, err := c.Write([]byte{greeting}); err != nil {
			return err
		}
	}
	if upload {
		b := make([]byte, readSize)
		for {
			n, err := c.Read(b)
			if err != nil {
				return err
			}
			t.received.Add(uint64(n))
		}
	}
	b := make([]byte, messageSize)
	for {
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

// streamEnd is a listening end that gives each session a goroutine, as users
// write it.
type streamEnd struct {
	addr   net.Addr
	accept func() (io.ReadWriteCloser, error)
}

func (e *streamEnd) Addr() net.Addr { return e.addr }

func (e *streamEnd) serve(p *serverProcess) error {
	for {
		c, err := e.accept()
		if err != nil {
			return err
		}
		go p.serveSession(c)
	}
}

// quicEnd is as streamEnd, but a connection is accepted before its stream: few
// may wait.
type quicEnd struct{ *quicPeer }

func (e quicEnd) Addr() net.Addr { return e.listener.Addr() }

func (e quicEnd) serve(p *serverProcess) error {
	for {
		c, err := e.listener.Accept(context.Background())
		if err != nil {
			return err
		}
		go func() {
			s, err := c.AcceptStream(context.Background())
			if err != nil {
				p.fail(err)
				return
			}
			p.serveSession(&quicStream{s, c, nil})
		}()
	}
}

// datagramEnd answers each datagram, without sessions.
type datagramEnd struct{ *net.UDPConn }

func (e datagramEnd) Addr() net.Addr { return e.LocalAddr() }

func (e datagramEnd) serve(p *serverProcess) error {
	t := p.begin()
	b := make([]byte, 2*messageSize)
	for {
		n, from, err := e.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		if _, err := e.WriteToUDPAddrPort(b[:n], from); err != nil {
			return err
		}
		if n == messageSize {
			t.received.Add(messageSize)
		}
	}
}

// serverConfig returns the Config of either end: the default one, except for what
// the case says.
func serverConfig(job *serverJob) (*kcp.Config, error) {
	c := new(kcp.Config)
	if job.LowLatency {
		*c = kcp.LowLatency()
	}
	if job.Kind == serverState {
		c.DialTimeout = setupLimit // a machine that others use, too, may be slow
	}
	if job.GCM {
		var err error
		if c.Cipher, err = crypt.AESGCM(packetKey[:16]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func listenKCP(job *serverJob) (serverEnd, error) {
	l, err := newKCPListener(job)
	if err != nil {
		return nil, err
	}
	return &streamEnd{addr: l.Addr(), accept: func() (io.ReadWriteCloser, error) { return l.Accept() }}, nil
}

func newKCPListener(job *serverJob) (*kcp.Listener, error) {
	c, err := serverConfig(job)
	if err != nil {
		return nil, err
	}
	if job.Shards {
		c.Shards = runtime.GOMAXPROCS(0)
	}
	if job.Kind == serverOpen || job.Kind == serverState {
		// All sessions come from one address, which may have no more than half of
		// MaxSessions by default.
		c.MaxSessions, c.MaxSessionsPerAddress = job.Clients+1, job.Clients+1
	}
	return kcp.Listen("udp4", loopback, c)
}

func listenKCPGo(job *serverJob) (serverEnd, error) {
	p, err := newKCPGoPeer(job.settings())
	if err != nil {
		return nil, err
	}
	return &streamEnd{addr: p.listener.Addr(), accept: p.Accept}, nil
}

func listenQUIC(job *serverJob) (serverEnd, error) {
	p, err := newQUICPeer(job.settings())
	if err != nil {
		return nil, err
	}
	return quicEnd{p}, nil
}

func listenTCP(*serverJob) (serverEnd, error) {
	p, err := newTCPPeer()
	if err != nil {
		return nil, err
	}
	return &streamEnd{addr: p.Addr(), accept: p.Accept}, nil
}

func listenUDP(*serverJob) (serverEnd, error) {
	socket, err := openSocket(serverBuffer)
	if err != nil {
		return nil, err
	}
	return datagramEnd{socket}, nil
}
