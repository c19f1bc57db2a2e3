package schedules

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
)

const serverAddr = "10.0.0.1:4000"

var serverUDP = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))

// The network of a run, and how a schedule is carried out on it.

const (
	pathDelay   = 20 * time.Millisecond // one way
	heldFor     = 300*time.Millisecond + 137*time.Microsecond
	overtakenBy = time.Millisecond + 137*time.Microsecond // what leaves so much later
	comesBack   = 10 * time.Millisecond                   // of a killed server
	runLimit    = 8 * time.Second                         // of a conversation
	movedLimit  = 45 * time.Second                        // of what a client leaves that has moved
	quietAfter  = 2 * time.Second                         // from when no session is left
	quietFor    = 90 * time.Second
	hangLimit   = 200 * time.Second
)

// trial is one run: a conversation over one wire, under one schedule.
type trial struct {
	wire  *wire
	life  *conversation
	plan  testenv.Schedule
	seed  uint64
	net   *netsim.Network
	rules kcp.Config // of both ends
	begun time.Time

	client  *process
	servers []*process   // each killed but the last; mu
	lives   atomic.Int32 // of servers that have not come to their end

	satisfied atomic.Bool // the client has closed in order

	killed   chan struct{}
	rests    chan struct{} // closed when all has been said
	finished chan struct{}

	mu       sync.Mutex // guards what follows
	count    map[testenv.Side]int
	sent     []testenv.Packet
	failures []string
	happened bool // the event of the plan
	dials    int
	again    bool // the client tries once more
	sessions map[uint32]*life.Session
	here     chan struct{} // of who waits in meet
}

// process is an endpoint and its socket. One that is dead says nothing more.
type process struct {
	who      string
	endpoint *kcp.Endpoint
	listener *kcp.Listener
	socket   *netsim.PacketConn
	dead     atomic.Bool
	accepted atomic.Int32 // sessions that Accept has returned
}

// runSchedule runs a conversation in a bubble of its own, and returns which packets were
// sent, and what was wrong.
func runSchedule(t *testing.T, w *wire, l *conversation, plan testenv.Schedule, seed uint64) (sent []testenv.Packet, failures []string) {
	var tr *trial
	defer func() {
		if p := recover(); p != nil { // goroutines that are left are a deadlock
			failures = append(tr.failures, fmt.Sprint("left: ", p))
		}
	}()
	synctest.Test(t, func(*testing.T) {
		tr = newTrial(w, l, plan, seed)
		tr.run()
	})
	return tr.sent, tr.failures
}

func newTrial(w *wire, l *conversation, plan testenv.Schedule, seed uint64) *trial {
	tr := &trial{
		wire: w, life: l, plan: plan, seed: seed,
		net:    netsim.NewNetwork(seed, netsim.LinkConfig{Delay: pathDelay}),
		rules:  w.config,
		begun:  time.Now(),
		killed: make(chan struct{}), rests: make(chan struct{}), finished: make(chan struct{}),
		count: make(map[testenv.Side]int), sessions: make(map[uint32]*life.Session),
	}
	tr.rules.Repetition = netsim.NewRepetition(seed)
	tr.rules.MessageMode = l.mode
	if tr.mayBreak() {
		tr.rules.KeepAlive, tr.rules.PeerTimeout, tr.rules.Linger = 2*time.Second, 5*time.Second, time.Second
	}
	return tr
}

// mayBreak reports whether the event of the plan may end a session: one that the server
// has forgotten, and one whose client has moved if its packets could be anybody's.
func (tr *trial) mayBreak() bool {
	switch tr.plan.Event() {
	case testenv.Kill:
		return true
	case testenv.Move:
		return !tr.wire.moves
	}
	return false
}

// broken reports whether that has happened.
func (tr *trial) broken() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.happened && tr.mayBreak()
}

// fail notes what is wrong.
func (tr *trial) fail(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	at := time.Since(tr.begun).Round(time.Millisecond)
	tr.failures = append(tr.failures, fmt.Sprintf("%v: ", at)+fmt.Sprintf(format, args...))
}

// run is the whole of a run.
func (tr *trial) run() {
	watchdog := time.AfterFunc(hangLimit, tr.hang)
	defer watchdog.Stop()
	tr.client = tr.open(testenv.Client, "10.0.0.2:5000")
	if tr.life.legacy == 1 {
		tr.answerAsLegacy()
	} else {
		tr.listen()
	}
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		tr.restart()
	}()
	for attempt := 1; !tr.converse(attempt) && attempt < 2; attempt++ {
	}
	tr.awaitLives()
	time.Sleep(time.Microsecond)
	tr.judgeTime(time.Since(tr.begun))
	tr.judgeRest()
	close(tr.finished)
	<-restarted
	for _, p := range append(tr.servers, tr.client) {
		_, _ = p.endpoint.Close(), p.socket.Close() // may be closed
	}
	tr.judgeSessions()
}

// awaitLives returns when all lives of servers have come to their end.
func (tr *trial) awaitLives() {
	for begun := time.Now(); tr.lives.Load() > 0 && time.Since(begun) < 2*hangLimit; {
		time.Sleep(5 * time.Millisecond)
	}
}

// hang ends a run in which something waits for ever.
func (tr *trial) hang() {
	stacks := make([]byte, 1<<16)
	stacks = stacks[:runtime.Stack(stacks, true)]
	tr.fail("still waiting\n%s", stacks)
	tr.mu.Lock()
	all := append(slices.Clone(tr.servers), tr.client)
	tr.mu.Unlock()
	for _, p := range all {
		go func() { _, _ = p.endpoint.Close(), p.socket.Close() }()
	}
}

// open opens the endpoint of one side.
func (tr *trial) open(side testenv.Side, addr string) *process {
	p := &process{who: "client"}
	if side == testenv.Server {
		p.who = "server"
	}
	var err error
	if p.socket, err = tr.net.Listen(addr); err != nil {
		panic(err)
	}
	faulty := &faultySocket{p.socket, tr, p, side}
	var pc net.PacketConn = faulty
	if tr.seed%2 == 1 { // calls may read the socket
		pc = leadableSocket{faulty, udp.Interruptible{}}
	}
	if p.endpoint, err = kcp.NewEndpoint(pc, &tr.rules); err != nil {
		panic(err)
	}
	return p
}

// listen opens a server.
func (tr *trial) listen() {
	p := tr.open(testenv.Server, serverAddr)
	var err error
	if p.listener, err = p.endpoint.Listen(); err != nil {
		panic(err)
	}
	tr.mu.Lock()
	tr.servers = append(tr.servers, p)
	tr.mu.Unlock()
	go func() {
		for {
			c, err := p.listener.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			p.accepted.Add(1)
			tr.lives.Add(1)
			go func() {
				defer tr.lives.Add(-1)
				time.Sleep(time.Microsecond)
				tr.newEnd(1, c, p).live()
			}()
			time.Sleep(2 * time.Microsecond)
		}
	}()
}

// server returns the process that runs now.
func (tr *trial) server() *process {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.servers[len(tr.servers)-1]
}

// restart begins a server anew when it was killed.
func (tr *trial) restart() {
	select {
	case <-tr.killed:
	case <-tr.finished:
		return
	}
	time.Sleep(time.Microsecond)
	_ = tr.server().endpoint.Close() // its socket is closed, so nobody learns of it
	time.Sleep(comesBack)
	tr.listen()
}

// meet returns when both ends have called it, or after a second.
func (tr *trial) meet() {
	tr.mu.Lock()
	other := tr.here
	if other != nil {
		tr.here = nil
		close(other)
	} else {
		tr.here = make(chan struct{})
	}
	wait := tr.here
	tr.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-time.After(time.Second):
		}
	}
	time.Sleep(time.Microsecond)
}

// faultySocket does to its packets what the plan says.
type faultySocket struct {
	*netsim.PacketConn
	tr   *trial
	of   *process
	side testenv.Side
}

// leadableSocket is one that calls may read.
type leadableSocket struct {
	*faultySocket
	udp.Interruptible
}

// WriteTo implements net.PacketConn.
func (s *faultySocket) WriteTo(b []byte, addr net.Addr) (int, error) {
	return s.WriteToAddrPort(b, addr.(*net.UDPAddr).AddrPort())
}

// WriteToAddrPort is WriteTo as an endpoint calls it.
func (s *faultySocket) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if s.of.dead.Load() {
		return 0, net.ErrClosed
	}
	fault, p := s.tr.leaves(s)
	if s.of.dead.Load() {
		return 0, net.ErrClosed
	}
	switch fault {
	case testenv.Drop:
		return len(b), nil
	case testenv.Hold, testenv.Overtake:
		delay := pathDelay + heldFor
		if fault == testenv.Overtake {
			delay = pathDelay + overtakenBy
		}
		from, late := s.PublicAddrPort(), bytes.Clone(b)
		time.AfterFunc(delay, func() { s.tr.net.Inject(from, to, late) })
		return len(b), nil
	case testenv.Duplicate:
		if n, err := s.PacketConn.WriteToAddrPort(b, to); err != nil {
			return n, err
		}
	case testenv.Damage:
		b = bytes.Clone(b)
		at := (uint64(p.N)*7919 + s.tr.seed*104729) % uint64(8*len(b))
		b[at/8] ^= 1 << (at % 8)
	}
	return s.PacketConn.WriteToAddrPort(b, to)
}

// leaves counts a packet, and has the event happen that the plan has at it. It returns
// the fault that the packet meets.
func (tr *trial) leaves(s *faultySocket) (fault testenv.Act, p testenv.Packet) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.count[s.side]++
	p = testenv.Packet{From: s.side, N: tr.count[s.side]}
	tr.sent = append(tr.sent, p)
	fault, event := tr.plan.At(p)
	switch event {
	case testenv.Move:
		_ = tr.client.socket.Rebind(net.JoinHostPort("10.0.0.2", strconv.Itoa(6000+p.N)))
	case testenv.Kill:
		server := tr.servers[len(tr.servers)-1]
		server.dead.Store(true)
		_ = server.socket.Close()
		close(tr.killed)
	}
	tr.happened = tr.happened || event != ""
	return fault, p
}
