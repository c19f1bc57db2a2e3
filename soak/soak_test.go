package soak

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
)

var (
	seeds   = flag.Int("seeds", 5, "how many seeds to run")
	first   = flag.Uint64("first", 14, "the first seed")
	workers = flag.Int("workers", 8, "how many seeds run at a time")
)

// Whatever applications, paths and servers do: what is read is what was written, every
// call returns, and what it says is true. Nothing is left of a session at either end.
func TestSoak(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 3)
	}
	testenv.FreeAddress(t) // the runtime opens some descriptors with the first socket
	before := testenv.OpenFiles()
	next := make(chan uint64)
	var running sync.WaitGroup
	for range min(*workers, n) {
		running.Go(func() {
			for seed := range next {
				t.Run(fmt.Sprintf("-first %d -seeds 1", seed), func(t *testing.T) { try(t, newPlan(seed)) })
			}
		})
	}
	for i := range n {
		next <- *first + uint64(i)
	}
	close(next)
	running.Wait()
	stacks := make([]byte, 1<<20)
	testenv.Await(t, func() bool { return !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("arqnet/kcp.")) })
	testenv.Await(t, func() bool { return testenv.OpenFiles() <= before }) // the runtime closes some by itself
}

// trial is a run of a plan.
type trial struct {
	*testing.T
	plan   *plan
	addr   string // of the server
	relay  *netsim.Relay
	shared *endpoint     // of the clients; nil if each has its own
	over   chan struct{} // closed when nothing is to happen to the path any more

	mu      sync.Mutex // guards what follows
	servers []*server  // the last is the present one
	broken  bool       // plan.event has begun
	ended   []*life.Session
}

// endpoint is one with a socket of the test's.
type endpoint struct {
	*kcp.Endpoint
	socket net.PacketConn
}

// try runs a plan, and judges it.
func try(t *testing.T, p *plan) {
	x := &trial{T: t, plan: p, addr: testenv.FreeAddress(t), over: make(chan struct{})}
	x.run()
	for _, s := range x.ended {
		var of []*life.Session
		killed := false
		for _, server := range x.servers {
			of = append(of, server.ended[s.Name]...)
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
	x.must(x.serve())
	var err error
	x.relay, err = netsim.NewRelay(x.addr, x.plan.up, x.plan.down, x.plan.seed)
	x.must(err)
	if !x.plan.own[0] {
		x.shared, err = x.endpoint(0, "127.0.0.1:0")
		x.must(err)
	}
	x.must(x.relay.Play(x.plan.outages, x.plan.outages))
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
		s.quit()
	}
	if x.shared != nil {
		x.must(x.shared.Close())
		_ = x.shared.socket.Close()
	}
	_ = x.relay.Close()
}

func (x *trial) must(err error) {
	if x.Helper(); err != nil {
		x.Fatal(err)
	}
}

// endpoint opens an endpoint of a side.
func (x *trial) endpoint(side int, address string) (*endpoint, error) {
	socket, err := net.ListenPacket("udp4", address)
	if err != nil {
		return nil, err
	}
	e, err := kcp.NewEndpoint(socket, &x.plan.configs[side])
	return &endpoint{e, socket}, err
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
		if e, err = x.endpoint(0, "127.0.0.1:0"); err != nil {
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
	a := x.app(0, c)
	a.Begin()
	perform(a, x.plan.steps(c.Conv(), 0))
	awaitEnd(x.T, a)
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
	d := kcp.Dialer{Config: &x.plan.configs[0]}
	c, err := d.DialContext(ctx, "udp4", x.relay.Addr().String())
	if err != nil {
		return nil, err
	}
	return c.(*kcp.Conn), nil
}

// app returns the application of one end of a session, whose content its conversation id
// selects.
func (x *trial) app(side int, c *kcp.Conn) *ends.App {
	s := &life.Session{
		Name: fmt.Sprintf("seed %d, session %08x", x.plan.seed, c.Conv()), Mode: x.plan.configs[0].MessageMode, Codes: ends.Codes, Copies: 1 << 20,
		Fail: func(text string) { x.Error(text) },
	}
	s.Begin()
	return ends.NewApp(s, side, c)
}

// breaks reports whether something has happened, or may have, that ends sessions.
func (x *trial) breaks() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.plan.out > 0 && x.plan.out+time.Second > x.plan.configs[0].PeerTimeout/2
	return x.broken || out || x.plan.rough
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
	x.broken = true
	s := x.servers[0]
	x.mu.Unlock()
	switch x.plan.event {
	case kill:
		s.kill()
	case restart:
		s.kill()
		time.Sleep(x.plan.downtime)
		if err := x.serve(); err != nil {
			x.Error(err)
		}
	case terminate:
		s.terminate()
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

// judge judges a session by what both of its ends have seen.
func judge(s *life.Session, of []*life.Session) {
	best := of[0]
	for _, o := range of { // it was accepted twice if the client moved meanwhile
		if read(o, 1) > 0 && read(best, 1) > 0 && o != best {
			s.Fail(fmt.Sprintf("%s: accepted twice, and %d and %d read", s.Name, read(o, 1), read(best, 1)))
		}
		if read(o, 1) > read(best, 1) {
			best = o
		}
	}
	s.Merge(best, 1)
	for name, f := range s.Flows { // who closes before the end of a stream does not get it all
		if reader := &s.Ends[1-int(name[0]-'a')]; f.Got.Ended != life.EOF && f.Written.Last > 0 {
			reader.Early = true
		}
	}
	s.Check()
}

// read returns how much an end has read.
func read(s *life.Session, side int) (n int) {
	for name, f := range s.Flows {
		if name[0] != byte('a'+side) {
			n += f.Got.Bytes + len(f.Got.Numbers)
		}
	}
	return n
}

// perform takes the steps of an application, whatever happens.
func perform(a *ends.App, steps []life.Step) {
	for _, s := range steps {
		switch s.Op {
		case life.Wait:
			time.Sleep(time.Duration(s.N) * time.Millisecond)
		case life.Fin:
			if s.ID == 0 {
				finish(a)
			}
			a.Do(s)
		case life.Meet: // the end of what the peer writes
			for reads := true; reads && a.Conn.Err() == nil; time.Sleep(5 * time.Millisecond) {
				finish(a) // streams that have come meanwhile
				reads = false
				for _, id := range append(a.Streams(), 0) {
					_, ended := a.In(id).Read()
					reads = reads || ended == ""
				}
			}
		default:
			a.Do(s)
		}
	}
}

// finish ends what is written to streams.
func finish(a *ends.App) {
	for _, id := range a.Streams() {
		a.Do(life.Step{End: a.Side, Op: life.Fin, ID: id})
	}
}

// awaitEnd waits until a session has ended, and its calls and receipts have come.
func awaitEnd(t *testing.T, a *ends.App) {
	<-a.Conn.Done()
	a.Wait()
	testenv.Await(t, func() bool {
		for _, id := range append(a.Streams(), 0) {
			if !a.Out(id).Received() {
				return false
			}
		}
		return true
	})
}
