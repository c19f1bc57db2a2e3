package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// groupLife is a server whose sessions are in groups that report streams, and its
// clients, some of which are in groups too. A party is one end of a session.
type groupLife struct {
	t    *testing.T
	w    *world
	seed uint64
	calm chan struct{} // closed when nothing new begins, and nobody pauses any more

	clients, servers, events sync.WaitGroup // parties, and what happens to them
	groups, clientGroups     []*served      // of the server, and of clients; immutable once all have begun

	shut *Endpoint // that ends in the middle of it all; nil: none

	mu      sync.Mutex
	parties map[partnerKey]*partner
	list    []*partner

	logMu sync.Mutex
	logs  map[string]*streamLog
}

// partnerKey is a session and an end of it: "a" has dialled.
type partnerKey struct {
	conv uint32
	side string
}

// Whatever the network does, whatever applications do with streams, and wherever the
// events of sessions are had: what arrives was sent, once and in order, each stream and
// session has its events in their order, a write that found no room is told when there
// is some, each message has one receipt, all calls return, and nothing is left.
func TestGroupLives(t *testing.T) {
	t.Parallel()
	n := fewer(120)
	if raceEnabled {
		n = min(n, fewer(100))
	}
	eachLife(t, n, runGroupLife)
}

// groupConfigs returns the settings of the server and of the clients, and whether
// sessions can move to another address.
func groupConfigs(t *testing.T, random *rand.Rand) (server, client Config, moves bool) {
	server, client = randomConfig(random), randomConfig(random)
	mode := random.IntN(3) == 0
	for _, c := range []*Config{&server, &client} {
		c.MessageMode = mode
		c.MaxStreams = 1 + random.IntN(20)
		c.StreamReceiveBuffer = 64<<10 + random.IntN(2)*random.IntN(1<<17)
		c.StreamWriteBuffer = 4096 + random.IntN(2)*random.IntN(1<<16)
		c.WriteBuffer = 4096 + random.IntN(2)*random.IntN(1<<17)
		c.CongestionControl = []func() congestion.Control{nil, congestion.NewCubic, congestion.NewReference, congestion.NewNone}[random.IntN(4)]
		c.NoDelay = NoDelay(random.IntN(int(NoDelayTurbo) + 1))
		if random.IntN(3) == 0 {
			c.FEC = FEC{Data: 1 + random.IntN(10), Parity: 1 + random.IntN(4)}
		}
		if random.IntN(4) == 0 {
			c.MaxRate = 20000 + random.IntN(500000)
		}
		c.Redundancy = []float64{0, 0, 1}[random.IntN(3)]
	}
	switch random.IntN(5) {
	case 0:
		cipher, err := crypt.ChaCha20Poly1305(bytes.Repeat([]byte{7}, 32))
		require.NoError(t, err)
		server.Cipher, client.Cipher, moves = cipher, cipher, true
	case 1:
		server.Cipher, client.Cipher = crypt.XOR([]byte("key")), crypt.XOR([]byte("key"))
	case 2:
		server.TLS, client.TLS, moves = testTLS(), testTLS(), true
		server.MTU, client.MTU = max(server.MTU, leastTLSMTU), max(client.MTU, leastTLSMTU)
	}
	if random.IntN(4) == 0 {
		server.AddressValidation = ValidateAlways
	}
	return server, client, moves
}

// leastTLSMTU is the least Config.MTU with TLS.
const leastTLSMTU = 1200

func runGroupLife(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 55))
	link := randomLink(random, 80*time.Millisecond, 0.15)
	server, client, moves := groupConfigs(t, random)
	l := &groupLife{
		seed: seed,
		logs: make(map[string]*streamLog), parties: make(map[partnerKey]*partner),
	}
	if random.IntN(5) == 0 {
		server.MaxBuffered = 64<<10 + random.IntN(1<<19)
	}
	if random.IntN(4) == 0 {
		link.MTU = pmtud.Base + random.IntN(300)
	}
	inWorld(t, seed, link, func(t *testing.T, w *world) {
		l.t, l.w, l.calm = t, w, make(chan struct{})
		watchdog := time.AfterFunc(3*time.Hour, l.hangs)
		defer watchdog.Stop()
		listener, _ := w.server(&server)
		for range 1 + random.IntN(2) {
			l.groups = append(l.groups, l.serve(random))
		}
		require.NoError(t, listener.AcceptInto(l.groups[0].Group))
		l.events.Go(func() { l.accept(listener) })
		endpoints := []*Endpoint{listener.Endpoint()}
		var sockets []*netsim.PacketConn
		for i := range 1 + random.IntN(3) {
			e, pc := w.endpoint(fmt.Sprintf("10.0.0.%d:5000", 2+i), &client)
			endpoints, sockets = append(endpoints, e), append(sockets, pc)
			sessions := 1 + random.IntN(3)
			if client.FEC != (FEC{}) || server.FEC != (FEC{}) {
				sessions = 1 // parity names no session
			}
			l.dial(e, sessions, random)
		}
		l.trouble(sockets, moves, random)
		w.net.SetFilter(l.interject(rand.New(rand.NewPCG(seed, 66))))
		length := time.Duration(500+random.IntN(5000)) * time.Millisecond
		l.disasters(listener, endpoints, sockets, length, random)
		time.Sleep(length)
		if random.IntN(4) > 0 {
			w.net.SetLink("", "", netsim.LinkConfig{Delay: link.Delay})
		}
		close(l.calm)
		l.clients.Wait()
		time.Sleep(time.Minute)
		_ = listener.Close() // it may be closed
		l.events.Wait()
		time.Sleep(time.Second)
		l.servers.Wait()
		for _, s := range append(l.groups, l.clientGroups...) {
			s.end()
		}
		l.checkNothingLeft(endpoints)
		if !t.Failed() {
			l.check()
		}
	})
}

// hangs ends the process, as something waits for ever.
func (l *groupLife) hangs() {
	text := ""
	for _, p := range l.list {
		p.mu.Lock()
		text += fmt.Sprintf("\n%v: ended %v (%v), closed %v", p.key, p.ended, p.conn.Err(), p.closed)
		if p.group != nil {
			text += fmt.Sprintf(", in a group that is closed: %v", p.group.closed.Load())
		}
		if c := p.conn; c.Err() == nil {
			text += fmt.Sprintf(", state %v, %+v, %+v", c.closing.Phase, &c.hs, c.Stats())
		}
		p.mu.Unlock()
	}
	debug.SetTraceback("all")
	panic(fmt.Sprintf("seed %d: not at an end%s", l.seed, text))
}

// pause sleeps, but not beyond the beginning of the calm. It reports whether that has
// begun.
func (l *groupLife) pause(d time.Duration) (calm bool) {
	select {
	case <-l.calm:
		return true
	case <-time.After(d):
		return false
	}
}

// isCalm reports whether the calm has begun.
func (l *groupLife) isCalm() bool {
	select {
	case <-l.calm:
		return true
	default:
		return false
	}
}

// dial opens sessions from e, each of which has its party.
func (l *groupLife) dial(e *Endpoint, sessions int, random *rand.Rand) {
	var group *served
	if random.IntN(2) == 0 {
		group = l.serve(random)
		l.clientGroups = append(l.clientGroups, group)
	}
	for range sessions {
		wait, inGroup := time.Duration(random.IntN(300))*time.Millisecond, random.IntN(4) > 0
		l.clients.Go(func() {
			if l.pause(wait) {
				return
			}
			c, err := e.Dial(context.Background(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)))
			if err != nil { // the network is bad, or an endpoint has ended
				var none *NoAnswerError
				if errors.As(err, &none) && none.Waited < defaultDialTimeout {
					l.t.Errorf("Dial: %v", err)
				}
				return
			}
			p := l.newPartner(c, "a")
			if group != nil {
				p.groups = append(p.groups, group)
				if inGroup {
					p.join(group)
				}
			}
			p.live()
		})
	}
}

// accept accepts what is not for a group, as that was closed.
func (l *groupLife) accept(listener *Listener) {
	for {
		c, err := listener.AcceptKCP(context.Background())
		switch {
		case err == nil:
			p := l.newPartner(c, "b")
			l.servers.Go(p.live)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			assert.ErrorIs(l.t, err, ErrGrouped)
			if l.pause(100 * time.Millisecond) {
				time.Sleep(time.Second)
			}
		}
	}
}

// trouble has the network harm sessions.
func (l *groupLife) trouble(sockets []*netsim.PacketConn, moves bool, random *rand.Rand) {
	n := l.w.net
	for i := range sockets {
		host := fmt.Sprintf("10.0.0.%d", 2+i)
		if random.IntN(2) == 0 {
			at, length := time.Duration(random.IntN(3000))*time.Millisecond, time.Duration(random.IntN(2500))*time.Millisecond
			n.At(at, func() { n.Cut("10.0.0.1", host) })
			n.At(at+length, func() { n.Heal("10.0.0.1", host) })
		}
		if moves && random.IntN(3) == 0 {
			for j := range 1 + random.IntN(3) {
				at := time.Duration(random.IntN(4000)) * time.Millisecond
				time.AfterFunc(at, func() { _ = sockets[i].Rebind(fmt.Sprintf("%s:%d", host, 6000+j)) }) // it may be closed
			}
		}
	}
}

// interject returns a filter of packets that has other calls write to sessions while
// packets are being sent.
func (l *groupLife) interject(random *rand.Rand) func(from, to netip.AddrPort, packet []byte) bool {
	return func(from, _ netip.AddrPort, _ []byte) bool {
		if random.IntN(50) > 0 || l.isCalm() {
			return true
		}
		side := "a"
		if from.String() == serverAddr {
			side = "b"
		}
		p := l.anyPartner(side, random)
		if p == nil {
			return true
		}
		b, r := p.anyBond(random), rand.New(rand.NewPCG(random.Uint64(), 5))
		l.events.Go(func() { p.tryOne(b, r) }) // waits for the filter if it sends
		for range 5 {
			runtime.Gosched()
		}
		return true
	}
}

// disasters ends an endpoint, or a group, in the middle of it all.
func (l *groupLife) disasters(listener *Listener, endpoints []*Endpoint, sockets []*netsim.PacketConn, length time.Duration, random *rand.Rand) {
	at := time.Duration(random.Int64N(int64(length)))
	e := endpoints[random.IntN(len(endpoints))]
	patience := time.Duration(random.IntN(20000)) * time.Millisecond
	first := l.groups[0]
	var what func()
	switch random.IntN(12) {
	case 0:
		l.shut, what = e, func() { _ = e.Close() }
	case 1:
		l.shut, what = e, func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_ = e.Shutdown(ctx)
		}
	case 2:
		what = func() { _ = listener.Close() }
	case 3:
		pc := sockets[random.IntN(len(sockets))]
		what = func() { _ = pc.Close() } // the end of a process
	}
	if random.IntN(4) == 0 {
		closes, again := time.Duration(random.Int64N(int64(length))), random.IntN(2) == 0
		l.events.Go(func() {
			time.Sleep(closes)
			first.end()
			if again && len(l.groups) > 1 {
				_ = listener.AcceptInto(l.groups[1].Group) // it may be closed
			}
		})
	}
	if what != nil {
		l.events.Go(func() {
			time.Sleep(at)
			what()
		})
	}
}

// newPartner returns the party of an end of a session.
func (l *groupLife) newPartner(c *Conn, side string) *partner {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := partnerKey{c.Conv(), side}
	if l.parties[key] != nil {
		l.t.Errorf("session %v was accepted twice", key)
	}
	p := &partner{
		life: l, key: key, conn: c,
		random: rand.New(rand.NewPCG(l.seed, 1000+uint64(len(l.list)))),
		chance: rand.New(rand.NewPCG(l.seed, 2000+uint64(len(l.list)))),
		bonds:  make(map[uint32]*bond),
	}
	if side == "b" {
		p.groups = l.groups
	}
	p.own = p.bondLocked(nil)
	l.parties[key] = p
	l.list = append(l.list, p)
	return p
}

// partnerOf returns the party of an end; nil if there is none.
func (l *groupLife) partnerOf(key partnerKey) *partner {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parties[key]
}

// log returns that of one direction of a stream, or of the session itself, 0.
func (l *groupLife) log(from partnerKey, stream uint32, ordered bool) *streamLog {
	l.logMu.Lock()
	defer l.logMu.Unlock()
	key := fmt.Sprintf("%08x %d from %s", from.conv, stream, from.side)
	if l.logs[key] == nil {
		l.logs[key] = newStreamLog(l.t, key, ordered)
	}
	return l.logs[key]
}

// datagrams returns the log of the datagrams of an end.
func (l *groupLife) datagrams(from partnerKey) *streamLog { return l.log(from, 1<<32-1, false) }

// checkNothingLeft closes what has to be closed and checks that nothing is left of the
// sessions.
func (l *groupLife) checkNothingLeft(endpoints []*Endpoint) {
	time.Sleep(lifeAfterDeath)
	for _, e := range endpoints {
		s := e.Stats()
		require.Zero(l.t, s.Sessions, "%v", e.LocalAddr())
		require.Zero(l.t, s.HalfOpen)
		require.Zero(l.t, s.Backlog)
		require.Zero(l.t, s.Buffered)
		require.Zero(l.t, s.WriteBuffered)
		require.Equal(l.t, s.Dialled+s.Accepted, s.Ended.Total(), "%v", e.LocalAddr())
		streams := e.Totals().Streams
		require.Equal(l.t, streams.Opened+streams.Accepted, streams.Ended, "%v", e.LocalAddr())
	}
	for key, p := range l.parties {
		p.conn.mu.Lock()
		if t := p.conn.streams; t != nil {
			f := t.Figures()
			require.Zero(l.t, f.Held, "%v", key)
			require.Zero(l.t, f.Queued, "%v", key)
			require.Zero(l.t, f.Ready, "%v", key)
			require.Zero(l.t, f.Writers, "%v", key)
			require.Zero(l.t, f.Blocked, "%v", key)
			require.Zero(l.t, f.Refused, "%v", key)
		}
		require.Zero(l.t, receiptsToCome(p.conn), "%v", key)
		p.conn.mu.Unlock()
	}
	for _, e := range endpoints {
		_ = e.Close() // some were closed
	}
}

// check judges all that was seen.
func (l *groupLife) check() {
	bonds, events, ended := 0, 0, 0
	for _, p := range l.list {
		p.check()
		bonds += len(p.bonds) - 1
		for _, b := range p.bonds {
			events += b.writables
		}
		if p.ended {
			ended++
		}
	}
	sent, got, bytes := 0, 0, 0
	for _, log := range l.logs {
		sent, got, bytes = sent+len(log.sent), got+len(log.got), bytes+log.read
	}
	l.t.Logf("%d ends of sessions, %d of them ended in a group, with %d of streams; %d messages and receipts, %d arrived, and %d bytes; %d times writable",
		len(l.list), ended, bonds, sent, got, bytes, events)
}

// served is a group, and what takes its events.
type served struct {
	*Group
	life   *groupLife
	taking sync.WaitGroup
	closed atomic.Bool
	busy   atomic.Int32 // batches of events that are handled
}

// serve makes a group report streams, and has its events taken in one way or another.
func (l *groupLife) serve(random *rand.Rand) *served {
	g := NewGroup()
	g.ReportStreams()
	s := &served{Group: g, life: l}
	if random.IntN(3) == 0 {
		require.NoError(l.t, g.Handle(func(events []Event) { s.batch(events, nil) }))
		return s
	}
	r := rand.New(rand.NewPCG(random.Uint64(), 3))
	s.taking.Go(func() { s.take(r) })
	return s
}

// take takes events by Wait and Serve until the group is closed.
func (s *served) take(random *rand.Rand) {
	events := make([]Event, 1+random.IntN(20))
	for !s.closed.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+random.IntN(3000))*time.Millisecond)
		if random.IntN(2) == 0 {
			var calls sync.WaitGroup
			for range 1 + random.IntN(3) {
				r := rand.New(rand.NewPCG(random.Uint64(), 4))
				calls.Go(func() { s.serveOnce(ctx, r) })
			}
			calls.Wait()
		}
		for ctx.Err() == nil && !s.closed.Load() {
			n, err := s.Wait(ctx, events[:1+random.IntN(len(events))])
			if err == nil {
				s.batch(events[:n], random)
			}
		}
		cancel()
	}
}

// serveOnce is a call of Serve, which may panic.
func (s *served) serveOnce(ctx context.Context, random *rand.Rand) {
	const planned = "an event that a handler cannot bear"
	defer func() {
		if r := recover(); r != nil && r != planned {
			panic(r)
		}
	}()
	_ = s.Serve(ctx, func(e Event) {
		s.batch([]Event{e}, random)
		if random.IntN(200) == 0 {
			panic(planned)
		}
	})
}

// batch handles events. random is nil if it must not wait.
func (s *served) batch(events []Event, random *rand.Rand) {
	s.busy.Add(1)
	defer s.busy.Add(-1)
	taken := time.Now()
	for _, e := range events {
		if random != nil && random.IntN(20) == 0 {
			s.life.pause(time.Duration(random.IntN(400)) * time.Millisecond)
		}
		p := s.life.partnerOf(partnerKey{e.Conn.Conv(), "b"})
		if e.Conn.Dialled() {
			p = s.life.partnerOf(partnerKey{e.Conn.Conv(), "a"})
		} else if e.Kind == EventAccepted {
			p = s.life.newPartner(e.Conn, "b")
			p.accepted(s)
			continue
		}
		if p == nil {
			s.life.t.Errorf("%v before the session was accepted", e.Kind)
			continue
		}
		p.event(e, s, taken)
	}
}

// quiet waits until the events are handled that were taken before.
func (s *served) quiet() {
	time.Sleep(time.Microsecond)
	for s.busy.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// end closes the group; its sessions go on by plain calls.
func (s *served) end() {
	if s.closed.Swap(true) {
		return
	}
	if err := s.Close(); err != nil {
		s.life.t.Errorf("close of a group: %v", err)
	}
	s.taking.Wait()
	s.quiet()
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	for _, p := range s.life.parties {
		p.leftGroup(s)
	}
}
