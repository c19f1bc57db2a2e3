package schedules

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// randomSteps are what the script of an end is drawn of.
var randomSteps = life.Weighted(`write 40 open 8 fin 3 stopread 1 stopwrite 1 reset 1 endstream 2 datagram 3
	rate 1 buffer 1 deadline 2 look 3 flush 1 wait 25 rest 2 join 4 leave 4 batch 5 close 1 reason 1 abort 1`)

// crowd is a server and clients, and the applications of all their sessions.
type crowd struct {
	t       *testing.T
	net     *netsim.Network
	seed    uint64
	leads   bool
	server  kcp.Config
	client  kcp.Config
	moves   bool          // sessions go on at another address
	broken  bool          // something may end sessions
	calm    chan struct{} // closed when nothing new begins
	groups  []*ends.Group // of the server
	running sync.WaitGroup

	mu       sync.Mutex // guards what follows
	sessions map[uint32]*life.Session
	apps     []*ends.App
	gone     map[*kcp.Endpoint]bool // that have ended in the middle of it all
	sockets  map[*kcp.Endpoint]*netsim.PacketConn
}

// Whatever the network does, whatever applications do with sessions, streams and groups,
// and wherever a process dies: what arrives was sent, once and in its order; each message
// has one receipt, and it is true; what calls return is true; who found no room is told
// when there is some; all calls return; and nothing is left.
//
// KCP_SEED is the first seed, and KCP_LIVES how many there are.
func TestRandomLives(t *testing.T) {
	testenv.Simulated(t)
	n := uint64(100)
	if testenv.InFull() {
		n = 2000
	}
	first := uint64(0)
	for name, number := range map[string]*uint64{"KCP_SEED": &first, "KCP_LIVES": &n} {
		if s := os.Getenv(name); s != "" {
			var err error
			*number, err = strconv.ParseUint(s, 10, 64)
			require.NoError(t, err)
		}
	}
	if os.Getenv("KCP_SEED") != "" && os.Getenv("KCP_LIVES") == "" {
		n = 1
	}
	for seed := first; seed < first+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomLife(t, seed)
			if t.Failed() {
				t.Logf("repeat with KCP_SEED=%d go test -run TestRandomLives ./e2e/schedules", seed)
			}
		})
	}
}

// randomConfigs draws the settings of both sides.
func (c *crowd) randomConfigs(t *testing.T, random *rand.Rand) {
	mode, repetition := random.IntN(3) == 0, netsim.NewRepetition(c.seed)
	for _, x := range []*kcp.Config{&c.server, &c.client} {
		*x = ends.RandomConfig(random)
		x.MessageMode, x.Repetition = mode, repetition
		x.Linger, x.PeerTimeout, x.KeepAlive = 20*time.Second, 20*time.Second, 10*time.Second
	}
	switch random.IntN(6) {
	case 0, 1:
		cipher, err := crypt.ChaCha20Poly1305(bytes.Repeat([]byte{7}, 32))
		require.NoError(t, err)
		c.server.Cipher, c.client.Cipher, c.moves = cipher, cipher, true
	case 2:
		c.server.Cipher, c.client.Cipher = crypt.XOR([]byte("key")), crypt.XOR([]byte("key"))
	case 3, 4:
		c.server.TLS, c.client.TLS, c.moves = randomTLS(), randomTLS(), true
		c.server.MTU, c.client.MTU = max(c.server.MTU, 1200), max(c.client.MTU, 1200)
	}
	if random.IntN(4) == 0 {
		c.server.AddressValidation = kcp.ValidateAlways
	}
	if random.IntN(6) == 0 {
		c.server.Limits.MaxBuffered, c.broken = 64<<10+random.IntN(1<<19), true
	}
}

var randomTLS = sync.OnceValue(testenv.TLS)

func randomLife(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 55))
	link := testenv.RandomLink(random, 100*time.Millisecond, 0.2)
	c := &crowd{seed: seed, sessions: make(map[uint32]*life.Session), gone: make(map[*kcp.Endpoint]bool), sockets: make(map[*kcp.Endpoint]*netsim.PacketConn)}
	c.randomConfigs(t, random)
	switch random.IntN(4) { // the path may swallow what is large
	case 0:
		link.MTU = netpath.BaseMTU + random.IntN(300)
	case 1:
		c.client.MaxMTU, c.server.MaxMTU = 1472, 9000
		link.MTU = netpath.BaseMTU + random.IntN(4000)
	}
	testenv.InWorld(t, seed, link, func(t *testing.T, network *netsim.Network, leads bool) {
		c.t, c.net, c.leads, c.calm = t, network, leads, make(chan struct{})
		watchdog := time.AfterFunc(3*time.Hour, func() { panic(fmt.Sprintf("seed %d: not at an end", seed)) })
		defer watchdog.Stop()
		server, _ := c.open(serverAddr, &c.server)
		endpoints := []*kcp.Endpoint{server}
		l := c.listen(server, random)
		for i := range 1 + random.IntN(3) {
			e, pc := c.open(fmt.Sprintf("10.0.0.%d:5000", 2+i), &c.client)
			endpoints = append(endpoints, e)
			sessions := 1 + random.IntN(3)
			if c.client.FEC != (kcp.FEC{}) || c.server.FEC != (kcp.FEC{}) {
				sessions = 1 // parity names no session
			}
			c.dial(e, sessions, random)
			c.trouble(pc, fmt.Sprintf("10.0.0.%d", 2+i), random)
		}
		network.SetFilter(c.interject(rand.New(rand.NewPCG(seed, 66))))
		length := time.Duration(500+random.IntN(5000)) * time.Millisecond
		again := c.disaster(l, endpoints, length, random)
		time.Sleep(length)
		network.SetLink("", "", netsim.LinkConfig{Delay: link.Delay, MTU: link.MTU})
		close(c.calm)
		time.Sleep(15 * time.Minute)
		_ = l.Close() // it may be closed
		c.running.Wait()
		for _, g := range c.groups {
			g.End()
		}
		time.Sleep(2 * time.Minute)
		for _, e := range append(endpoints, again()...) {
			require.Empty(t, leftOf(e), "%v", e.LocalAddr())
		}
		for _, s := range c.sessions {
			s.Broken = s.Broken || c.broken
			s.Check()
		}
		c.tell()
	})
}

// tell logs how much has happened.
func (c *crowd) tell() {
	flows, bytes, messages, ends := 0, 0, 0, 0
	for _, s := range c.sessions {
		for _, f := range s.Flows {
			flows, bytes, messages = flows+1, bytes+f.Got.Bytes, messages+len(f.Got.Numbers)
			if f.Got.Ended == life.EOF {
				ends++
			}
		}
	}
	c.t.Logf("%d sessions, %d directions of which %d were read to the end, %d bytes and %d messages; broken: %v", len(c.sessions), flows, ends, bytes, messages, c.broken)
}

// open opens an endpoint.
func (c *crowd) open(addr string, config *kcp.Config) (*kcp.Endpoint, *netsim.PacketConn) {
	pc, err := c.net.Listen(addr)
	require.NoError(c.t, err)
	var e *kcp.Endpoint
	if c.leads {
		e, err = kcp.NewEndpoint(testenv.Leadable{PacketConn: pc}, config)
	} else {
		e, err = kcp.NewEndpoint(pc, config)
	}
	require.NoError(c.t, err)
	c.sockets[e] = pc
	c.t.Cleanup(func() { _, _ = e.Close(), pc.Close() }) // may be closed
	return e, pc
}

// listen lets the server accept sessions, into a group or not.
func (c *crowd) listen(e *kcp.Endpoint, random *rand.Rand) *kcp.Listener {
	l, err := e.Listen()
	require.NoError(c.t, err)
	for range random.IntN(3) {
		c.groups = append(c.groups, ends.NewGroup(ends.Way(random.IntN(int(ends.Ways))), func(conn *kcp.Conn) *ends.App {
			a := c.app(1, conn)
			c.running.Go(func() { c.live(a) })
			return a
		}))
	}
	if len(c.groups) > 0 {
		require.NoError(c.t, l.AcceptInto(c.groups[0].Group))
	}
	c.running.Go(func() {
		for {
			conn, err := l.AcceptKCP(context.Background())
			if err == nil {
				a := c.app(1, conn)
				a.Begin()
				c.running.Go(func() { c.live(a) })
				continue
			}
			if is, _ := ends.Class(err); is != life.InGroup {
				return
			}
			time.Sleep(time.Second)
		}
	})
	return l
}

// app returns the application of an end of a session.
func (c *crowd) app(side int, conn *kcp.Conn) *ends.App {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[conn.Conv()]
	if s == nil {
		s = &life.Session{
			Name: fmt.Sprint(c.seed, conn.Conv()), Whole: true, Mode: c.client.MessageMode, Codes: ends.Codes, Copies: 1 << 20,
			Fail: func(text string) { c.t.Error(text) },
		}
		s.Begin()
		c.sessions[conn.Conv()] = s
	}
	if s.Ends[side].There {
		c.t.Errorf("session %08x has end %d twice", conn.Conv(), side)
	}
	a := ends.NewApp(s, side, conn)
	c.apps = append(c.apps, a)
	return a
}

// dial opens sessions from e, each of which has its application.
func (c *crowd) dial(e *kcp.Endpoint, sessions int, random *rand.Rand) {
	var group *ends.Group
	if random.IntN(2) == 0 {
		group = ends.NewGroup(ends.Way(random.IntN(int(ends.Ways))), nil)
		c.groups = append(c.groups, group)
	}
	leaves := sessions == 1 && random.IntN(4) == 0
	for range sessions {
		wait := time.Duration(random.IntN(300)) * time.Millisecond
		c.running.Go(func() {
			time.Sleep(wait)
			conn, err := e.Dial(context.Background(), serverUDP, nil)
			if err != nil {
				if is, _ := ends.Class(err); is != life.NoAnswer && is != life.Refused && is != life.ResetByPeer && !c.gone[e] {
					c.t.Errorf("Dial: %v", err)
				}
				return
			}
			a := c.app(0, conn)
			a.Begin()
			if group != nil {
				a.Join(group)
			}
			c.live(a)
			if leaves {
				a.Note(0, func(s *life.Seen) { s.Left = true })
				_ = e.Close()
			}
		})
	}
}

// live is all that the application of an end does.
func (c *crowd) live(a *ends.App) {
	random := rand.New(rand.NewPCG(c.seed, uint64(a.Conn.Conv())+uint64(a.Side)))
	script := randomSteps.Of(randomSteps.Random(random, 10+random.IntN(100)))
	for _, s := range script.Steps {
		if !c.isCalm() && a.Conn.Err() == nil {
			c.step(a, s, random)
		}
	}
	<-c.calm
	a.Rest(false)
	a.Do(life.Step{Op: life.Deadline})
	a.Do(life.Step{Op: life.Rate})
	for _, id := range a.Streams() {
		a.Do(life.Step{Op: life.Deadline, ID: id})
	}
	patient := random.IntN(3) > 0
	if patient && a.Seen(a.Side).Called == "" {
		c.settle(a, random)
	}
	if how := life.Op(life.Close); a.Seen(a.Side).Called == "" {
		if !patient && random.IntN(2) == 0 {
			how = life.Abort
		}
		a.Do(life.Step{Op: how})
	}
	a.Wait()
}

// settle ends what is written, and waits for the end of what is read.
func (c *crowd) settle(a *ends.App, random *rand.Rand) {
	sleep := func(d time.Duration) {
		select {
		case <-a.Conn.Done():
		case <-time.After(d):
		}
	}
	sleep(3 * time.Minute)
	a.CheckRoom()
	for _, id := range append(a.Streams(), 0) {
		a.Do(life.Step{Op: life.Fin, ID: id})
	}
	switch n := random.IntN(6); n { // while the ends are on their way
	case 0, 1:
		c.step(a, life.Step{Op: [2]life.Op{life.Leave, life.Join}[n]}, random)
	case 2, 3: // the ends come while the session is in no group, and nobody reads
		a.Rest(true)
		a.Leave()
		sleep(10 * time.Second)
		c.step(a, life.Step{Op: life.Join}, random)
		a.Rest(false)
	}
	sleep(3 * time.Minute)
	peer := a.Session.Seen(1 - a.Side)
	if a.Conn.Err() == nil && a.Seen(a.Side).Called == "" {
		a.CheckEnds()
	}
	if a.Conn.Err() == nil && peer.There && a.Out(0).Complete() && peer.Called == "" {
		sleep(3 * time.Minute)
	}
}

func (c *crowd) isCalm() bool {
	select {
	case <-c.calm:
		return true
	default:
		return false
	}
}

// step performs a step of an application.
func (c *crowd) step(a *ends.App, s life.Step, random *rand.Rand) {
	switch s.Op {
	case life.Wait:
		time.Sleep(time.Duration(min(s.N, 500)) * time.Millisecond)
	case life.Rest:
		a.Rest(true)
		time.Sleep(time.Duration(min(s.N, 2000)) * time.Millisecond)
		a.Rest(false)
	case life.Join:
		if len(c.groups) > 0 {
			a.Join(c.groups[random.IntN(len(c.groups))])
		}
	case life.Leave:
		a.Leave()
	case life.Batch:
		c.batch(random)
	case life.Reason, life.Abort, life.Close:
		if random.IntN(3) == 0 {
			a.Do(s)
		}
	default:
		a.Do(s)
	}
}

// any returns one of the applications; nil: there is none.
func (c *crowd) any(random *rand.Rand) *ends.App {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.apps) == 0 {
		return nil
	}
	return c.apps[random.IntN(len(c.apps))]
}

// batch writes to many sessions and streams by Group.Send.
func (c *crowd) batch(random *rand.Rand) {
	var batch ends.Batch
	for range 1 + random.IntN(12) {
		if a := c.any(random); a != nil {
			batch.Add(a, uint32(random.IntN(8)), random.IntN(3000), random.IntN(2) == 0)
		}
	}
	batch.Send()
}

// trouble has the network harm the sessions of a client.
func (c *crowd) trouble(pc *netsim.PacketConn, host string, random *rand.Rand) {
	if random.IntN(2) == 0 {
		at, length := time.Duration(random.IntN(3000))*time.Millisecond, time.Duration(random.IntN(2500))*time.Millisecond
		c.net.At(at, func() { c.net.Cut("10.0.0.1", host) })
		c.net.At(at+length, func() { c.net.Heal("10.0.0.1", host) })
	}
	if c.moves && random.IntN(3) == 0 {
		for j := range 1 + random.IntN(3) {
			at := time.Duration(random.IntN(4000)) * time.Millisecond
			time.AfterFunc(at, func() { _ = pc.Rebind(fmt.Sprintf("%s:%d", host, 6000+j)) }) // it may be closed
		}
	}
}

// interject returns a filter of packets that has other calls write while packets are
// being sent.
func (c *crowd) interject(random *rand.Rand) func(from, to netip.AddrPort, packet []byte) bool {
	return func(_, _ netip.AddrPort, _ []byte) bool {
		if random.IntN(50) > 0 || c.isCalm() {
			return true
		}
		if a := c.any(random); a != nil {
			s := life.Step{Op: life.Write, ID: uint32(random.IntN(8)), N: random.IntN(2000), How: random.IntN(8)}
			c.running.Go(func() { a.Do(s) }) // waits for the filter if it sends
		}
		for range 5 {
			runtime.Gosched()
		}
		return true
	}
}

// disaster ends an endpoint, a process or a group in the middle of it all. again returns
// the endpoints that have begun since.
func (c *crowd) disaster(l *kcp.Listener, endpoints []*kcp.Endpoint, length time.Duration, random *rand.Rand) (again func() []*kcp.Endpoint) {
	at, which := time.Duration(random.Int64N(int64(length))), random.IntN(12)
	if random.IntN(2) == 0 {
		at /= 10 // before the first data
	}
	e, patience := endpoints[random.IntN(len(endpoints))], time.Duration(random.IntN(20000))*time.Millisecond
	var more []*kcp.Endpoint
	again = func() []*kcp.Endpoint { return more }
	if which > 5 {
		return again
	}
	c.broken = c.broken || which < 4
	if which < 4 {
		c.gone[e] = true
	}
	c.running.Go(func() {
		time.Sleep(at)
		switch which {
		case 0, 1: // killed, and begun again
			_ = c.sockets[e].Close()
			if which == 1 && e == endpoints[0] {
				next, _ := c.open(serverAddr, &c.server)
				l, err := next.Listen()
				require.NoError(c.t, err)
				more = append(more, next)
				time.Sleep(2 * time.Minute)
				_ = l.Close() // nobody accepts
			}
		case 2, 3:
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = e.Shutdown(ctx) // what it says is judged elsewhere
		case 4:
			_ = l.Close()
		case 5:
			if len(c.groups) > 0 {
				c.groups[0].End()
			}
		}
		for _, a := range c.apps {
			if a.Conn.Endpoint() == e && which < 4 {
				a.Note(a.Side, func(s *life.Seen) { s.Killed = true })
			}
		}
	})
	return again
}
