package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
)

// trial is a run of a plan.
type trial struct {
	*testing.T
	plan   *plan
	port   int
	relay  *netsim.Relay
	shared *endpoint     // nil if each session has its own
	over   chan struct{} // closed when nothing is to happen to the path any more

	mu      sync.Mutex
	servers []*serverProcess // the last is the present one
	eventAt time.Time        // when plan.event began; zero: it did not
	ended   []*life.Session
}

// endpoint is one with a socket of its own.
type endpoint struct {
	*kcp.Endpoint
	socket net.PacketConn
}

// try runs a plan, and judges it.
func try(t *testing.T, p *plan) {
	x := &trial{T: t, plan: p, over: make(chan struct{})}
	x.run()
	for _, s := range x.ended {
		var of []*life.Session
		killed := false
		for _, server := range x.servers {
			of = append(of, server.sessions[s.Name]...)
			killed = killed || server.killed
		}
		if len(of) > 0 {
			judge(s, of)
		} else if !killed && !s.Broken && s.Ends[0].Called != life.Abort {
			x.Errorf("%s: the server does not know of it", s.Name)
		}
	}
}

func (x *trial) run() {
	x.port = freePort(x.T)
	if !x.startServer() {
		return
	}
	var err error
	if x.relay, err = netsim.NewRelay(fmt.Sprintf("127.0.0.1:%d", x.port), x.plan.up, x.plan.down, x.plan.seed); err != nil {
		x.Fatal(err)
	}
	if x.plan.sockets[0] != ownSockets {
		if x.shared, err = x.endpoint(); err != nil {
			x.Fatal(err)
		}
	}
	if err := x.relay.Play(x.plan.outages, x.plan.outages); err != nil {
		x.Fatal(err)
	}
	var running, beside sync.WaitGroup
	beside.Go(x.rebind)
	beside.Go(x.event)
	for _, d := range x.plan.dials {
		running.Go(func() { x.session(d) })
	}
	running.Wait()
	close(x.over)
	beside.Wait()
	for _, s := range x.servers {
		_ = s.stop()
		<-s.exited
	}
	if x.shared != nil {
		if err := x.shared.Close(); err != nil {
			x.Errorf("Endpoint.Close: %v", err)
		}
		_ = x.shared.socket.Close()
	}
	_ = x.relay.Close()
}

func (x *trial) startServer() bool {
	s := startServer(x.T, x.plan, x.port)
	if s == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.servers = append(x.servers, s)
	return true
}

func (x *trial) endpoint() (*endpoint, error) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e, err := kcp.NewEndpoint(wrap(x.plan.sockets[0], pc), &x.plan.client)
	return &endpoint{e, pc}, err
}

// session dials a session, and runs its client.
func (x *trial) session(d dial) {
	time.Sleep(d.start)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if d.giveUp > 0 {
		defer time.AfterFunc(d.giveUp, cancel).Stop()
	}
	e := x.shared
	if d.exits {
		var err error
		if e, err = x.endpoint(); err != nil {
			x.Error(err)
			return
		}
		defer func() { // as a process that exits would
			_ = e.socket.Close()
			_ = e.Close()
		}()
	}
	c, err := x.dial(ctx, e)
	if err != nil {
		is, _ := ends.Class(err)
		gone := x.breaks() && (is == life.NoAnswer || is == life.Refused || is == life.ResetByPeer || is == life.Timeout)
		if !gone && !(d.giveUp > 0 && errors.Is(err, context.Canceled)) {
			x.Errorf("Dial: %v", err)
		}
		return
	}
	x.Logf("session %08x: %v; %v", c.Conv(), x.plan.steps(c.Conv(), 0), x.plan.steps(c.Conv(), 1))
	a := newApp(x.plan, 0, c, func(text string) { x.Error(text) })
	a.Begin()
	perform(a, x.plan.steps(c.Conv(), 0))
	<-c.Done()
	a.Wait()
	awaitReceipts(a)
	a.Broken = x.breaks()
	a.Note(0, func(e *life.Seen) { e.Left = d.exits })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = append(x.ended, a.Session)
}

func (x *trial) dial(ctx context.Context, e *endpoint) (*kcp.Conn, error) {
	if e != nil {
		return e.Dial(ctx, x.relay.Addr(), nil)
	}
	d := kcp.Dialer{Config: &x.plan.client}
	c, err := d.DialContext(ctx, "udp4", x.relay.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*kcp.Conn), nil
}

// breaks reports whether something has happened, or may have, that ends sessions.
func (x *trial) breaks() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.plan.out > 0 && x.plan.out+time.Second > x.plan.client.PeerTimeout/2
	return !x.eventAt.IsZero() || out || x.plan.rough
}

// pause waits and reports whether the sessions still run.
func (x *trial) pause(d time.Duration) bool {
	select {
	case <-x.over:
		return false
	case <-time.After(d):
		return true
	}
}

// event lets happen what the plan has.
func (x *trial) event() {
	if x.plan.event == noEvent || !x.pause(x.plan.eventAt) {
		return
	}
	x.mu.Lock()
	x.eventAt = time.Now()
	s := x.servers[0]
	x.mu.Unlock()
	switch x.plan.event {
	case kill:
		s.kill()
	case restart:
		s.kill()
		time.Sleep(x.plan.downtime)
		x.startServer()
	case terminate:
		if s.cmd.Process.Signal(syscall.SIGTERM) != nil { // not on every system
			s.kill()
		}
	case pathEnds:
		_ = x.relay.Close()
	}
}

func (x *trial) rebind() {
	for x.plan.rebind > 0 && x.pause(x.plan.rebind) {
		if err := x.relay.Rebind(); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				x.Error(err)
			}
			return
		}
	}
}

// nextPort is the port that freePort tries next, above 28000.
var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32()) }

// freePort returns a port that nobody uses, and that it has not returned before. It is
// below those that the system gives to sockets meanwhile.
func freePort(t *testing.T) int {
	for {
		port := 28000 + int(nextPort.Add(1)%4000)
		if pc, err := net.ListenPacket("udp4", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			if err := pc.Close(); err != nil {
				t.Error(err)
			}
			return port
		}
	}
}
