package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Clients with TLS that move within or after their handshake, beside a fault.

// faultKind is what happens to a packet on its way.
type faultKind int

const (
	dropped faultKind = iota
	duplicated
	held // by holdTime
	damaged
	faultKinds
)

func (k faultKind) String() string { return [...]string{"drop", "duplicate", "hold", "damage"}[k] }

// fault is a fault of the nth packet of one direction, from 0.
type fault struct {
	kind     faultKind
	toServer bool
	packet   int
}

func (f fault) String() string {
	from := "server"
	if f.toServer {
		from = "client"
	}
	return fmt.Sprintf("%v %s's packet %d", f.kind, from, f.packet+1)
}

// schedule is what happens to the packets of one conversation.
type schedule struct {
	faults []fault
	moves  []int // the client has another port from these packets of its on
	hold   time.Duration
	delay  time.Duration
}

// schedulePath is a path with a NAT on the client's side, which follows a schedule.
type schedulePath struct {
	w        *world
	schedule schedule
	client   netip.AddrPort // behind the NAT

	mu      sync.Mutex     // guards the fields below
	outside netip.AddrPort // of the NAT, towards the server
	seen    [2]int         // packets of the server, and of the client
}

const (
	scheduleLimit = 8 * time.Second
)

// newSchedulePath makes all packets between a client and the server follow s.
func (w *world) newSchedulePath(client netip.AddrPort, s schedule) {
	p := &schedulePath{w: w, schedule: s, client: client, outside: netip.AddrPortFrom(client.Addr(), 6000)}
	w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
		p.packet(to == acceptorAddr, to, bytes.Clone(packet))
		return false
	})
}

// packet takes a packet that leaves.
func (p *schedulePath) packet(toServer bool, to netip.AddrPort, packet []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	side := 0
	if toServer {
		side = 1
	}
	n := p.seen[side]
	p.seen[side]++
	if toServer {
		for _, at := range p.schedule.moves {
			if n == at {
				p.outside = netip.AddrPortFrom(p.outside.Addr(), p.outside.Port()+1)
			}
		}
	}
	outside, delay, times := p.outside, p.schedule.delay, 1
	for _, f := range p.schedule.faults {
		if f.toServer != toServer || f.packet != n {
			continue
		}
		switch f.kind {
		case dropped:
			return
		case duplicated:
			times = 2
		case held:
			delay += p.schedule.hold
		case damaged:
			packet[len(packet)/2] ^= 0x10
		}
	}
	for range times {
		time.AfterFunc(delay, func() {
			p.mu.Lock()
			known := to == p.outside // by the NAT
			p.mu.Unlock()
			if toServer {
				p.w.net.Inject(outside, acceptorAddr, packet)
			} else if known {
				p.w.net.Inject(acceptorAddr, p.client, packet)
			}
		})
	}
}

// converse has a client dial the server, ask, half-close, read the answer to its
// end and close, while its packets follow s. It returns how long that took, and what
// went wrong.
func converse(w *world, client, server *kcp.Config, s schedule) (took time.Duration, err error) {
	l := w.listen(server)
	e, pc := w.endpoint("10.0.0.2:5000", client)
	w.newSchedulePath(pc.AddrPort(), s)
	answers, accepts := make(chan error, 10), atomic.Int32{}
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			accepts.Add(1)
			go func() { answers <- answer(c) }()
		}
	}()
	start := time.Now()
	err = ask(e)
	took = time.Since(start)
	if err != nil {
		return took, err
	}
	select {
	case err = <-answers:
	case <-time.After(time.Minute):
		err = fmt.Errorf("the server's end has not ended")
	}
	if err != nil {
		return took, fmt.Errorf("server: %w", err)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	switch sessions := l.Stats().Sessions; {
	case accepts.Load() != 1:
		err = fmt.Errorf("%d sessions were accepted", accepts.Load())
	case sessions != 0:
		err = fmt.Errorf("%d sessions are left", sessions)
	case e.Stats().Sessions != 0:
		err = fmt.Errorf("the client has a session left")
	}
	return took, err
}

var question, reply = content(1, 300), content(2, 3000)

// ask is the client of converse.
func ask(e *kcp.Endpoint) error {
	c, err := e.Dial(context.Background(), net.UDPAddrFromAddrPort(acceptorAddr))
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	if _, err = c.Write(question); err == nil {
		err = c.CloseWrite()
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, reply) {
		err = fmt.Errorf("got %d bytes, which are not the answer", len(got))
	}
	if err == nil {
		err = c.Close()
	}
	return err
}

// answer is the server of converse.
func answer(c *kcp.Conn) error {
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, question) {
		err = fmt.Errorf("got %d bytes, which are not the question", len(got))
	}
	if err == nil {
		_, err = c.Write(reply)
	}
	if err == nil {
		_ = c.Close() // a client that has all, and has moved, says nothing more
	}
	return err
}

// moveCase is a kind of session that clients move with.
type moveCase struct {
	name        string
	delay, hold time.Duration
	change      func(client, server *kcp.Config) // nil: none
	after       int                              // the client moves again that many packets later; 0: it does not
}

// moveCases are the kinds of sessions that clients move with.
func moveCases(t *testing.T) []moveCase {
	const ms = time.Millisecond
	chain := func(config *kcp.Config) {
		cert := config.TLS.Certificates[0]
		for range 8 {
			cert.Certificate = append(cert.Certificate[:len(cert.Certificate):len(cert.Certificate)], cert.Certificate[0])
		}
		cert.OCSPStaple = content(4, 12_000) // several flights
		config.TLS.Certificates = []tls.Certificate{cert}
	}
	return []moveCase{
		{name: "TLS", delay: 10 * ms, hold: 300 * ms},
		{name: "moves twice", delay: 10 * ms, hold: 300 * ms, after: 2},
		{name: "moves with each packet", delay: 10 * ms, hold: 300 * ms, after: 1},
		{name: "slow", delay: 60 * ms, hold: 300 * ms},
		{name: "held long", delay: 30 * ms, hold: 3 * time.Second},
		{name: "cookies", delay: 10 * ms, hold: 300 * ms, change: func(_, server *kcp.Config) {
			server.AddressValidation = kcp.ValidateAlways
		}},
		{name: "key of resets", delay: 10 * ms, hold: 300 * ms, change: func(_, server *kcp.Config) {
			server.StatelessResetKey = content(3, 32)
		}},
		{name: "client certificate", delay: 10 * ms, hold: 300 * ms, change: func(_, server *kcp.Config) {
			server.TLS.ClientAuth = tls.RequireAnyClientCert
		}},
		{name: "long chains", delay: 10 * ms, hold: 300 * ms, change: func(client, server *kcp.Config) {
			server.TLS.ClientAuth = tls.RequireAnyClientCert
			chain(client)
			chain(server)
		}},
		{name: "tickets", delay: 10 * ms, hold: 300 * ms, change: func(client, _ *kcp.Config) {
			client.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		}},
		{name: "small ClientHello", delay: 10 * ms, hold: 300 * ms, change: func(client, _ *kcp.Config) {
			client.TLS.CurvePreferences = []tls.CurveID{tls.X25519}
		}},
		{name: "HelloRetryRequest", delay: 10 * ms, hold: 300 * ms, change: func(_, server *kcp.Config) {
			server.TLS.CurvePreferences = []tls.CurveID{tls.CurveP384}
		}},
		{name: "AEAD", delay: 10 * ms, hold: 300 * ms, change: func(client, server *kcp.Config) {
			for _, config := range []*kcp.Config{client, server} {
				config.TLS, config.Cipher = nil, testAEAD(t)
			}
		}},
	}
}

// outcome runs a conversation of the case, and returns how long it took, and what
// was not as it has to be.
func (c *moveCase) outcome(t *testing.T, seed uint64, s schedule) (took time.Duration, failure string) {
	s.delay, s.hold = c.delay, c.hold
	inWorld(t, seed, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		client, server := secured(kcp.Config{}), secured(kcp.Config{})
		client.TLS, server.TLS = client.TLS.Clone(), server.TLS.Clone()
		if c.change != nil {
			c.change(client, server)
		}
		var err error
		if took, err = converse(w, client, server, s); err != nil || took > scheduleLimit {
			failure = fmt.Sprintf("%v, moves at packets %v from 0: after %v: %v", s.faults, s.moves, took, err)
		}
	})
	return took, failure
}

// A client that moves at any packet, beside a fault of any packet, is served within
// 8 s, with TLS as with a cipher. Nothing is left of it, and it was accepted once.
func TestTLSMoveBesideAFault(t *testing.T) {
	simulated(t)
	const packets, moves = 12, 14
	var all []schedule
	for kind := range faultKinds {
		for _, toServer := range []bool{true, false} {
			for packet := range packets {
				for move := range moves {
					all = append(all, schedule{faults: []fault{{kind, toServer, packet}}, moves: []int{move}})
				}
			}
		}
	}
	for i, c := range moveCases(t) {
		t.Run(c.name, func(t *testing.T) {
			step := 1 // of all schedules
			if testing.Short() && i > 0 || repeated() {
				step = 11
			}
			longest, runs := time.Duration(0), 0
			for at := i % step; at < len(all); at += step {
				s := all[at]
				if c.after > 0 {
					s.moves = []int{s.moves[0], s.moves[0] + c.after}
				}
				took, failure := c.outcome(t, 0, s)
				if failure != "" {
					t.Error(failure)
				}
				longest, runs = max(longest, took), runs+1
			}
			t.Logf("%d conversations, the longest took %v", runs, longest)
		})
	}
}

// The same with up to three faults, and up to three moves.
func TestTLSMovesBesideFaults(t *testing.T) {
	simulated(t)
	cases := moveCases(t)
	for seed := range fewer(1000) {
		random := rand.New(rand.NewPCG(seed, 45))
		var s schedule
		for range 1 + random.IntN(3) {
			s.faults = append(s.faults, fault{faultKind(random.IntN(int(faultKinds))), random.IntN(2) == 0, random.IntN(10)})
		}
		for range 1 + random.IntN(3) {
			s.moves = append(s.moves, random.IntN(12))
		}
		c := cases[random.IntN(len(cases))]
		if _, failure := c.outcome(t, seed, s); failure != "" {
			t.Errorf("seed %d, %s: %s", seed, c.name, failure)
		}
	}
}

// Copies of a client's packets that arrive from another address move no handshake, and
// open no session beside it. No more is sent there than the anti-amplification limit
// allows (RFC 9000 §8.1), whichever arrives first.
func TestTLSCopiesFromElsewhereMoveNothing(t *testing.T) {
	thief := netip.MustParseAddrPort("10.0.0.66:6666")
	for _, test := range []struct {
		name  string
		late  time.Duration // after the client's
		count int           // of its packets are copied
		most  int           // bytes that are sent for each that has come
	}{{"before", 0, 100, 3}, {"after", 11 * time.Millisecond, 100, 1}, {"late", 400 * time.Millisecond, 2, 1}} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				l := w.listen(secured(kcp.Config{}))
				e, _ := w.endpoint("10.0.0.2:5000", secured(kcp.Config{}))
				copied, taken, sent := 0, 0, 0
				w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
					if to == thief {
						sent += len(p)
						return false
					}
					if to == acceptorAddr && copied < test.count {
						copied++
						taken += len(p)
						if p := bytes.Clone(p); test.late == 0 {
							w.net.Inject(thief, acceptorAddr, p)
						} else {
							time.AfterFunc(test.late, func() { w.net.Inject(thief, acceptorAddr, p) })
						}
					}
					return true
				})
				a := w.dial(e)
				b := accepted(t, l)
				time.Sleep(time.Second)
				bothWays(t, a, b, content(1, 10_000), content(2, 10_000))
				w.settle()
				w.net.SetFilter(nil)
				require.GreaterOrEqual(t, copied, 2)
				require.Positive(t, sent, "cookies and challenges")
				require.LessOrEqual(t, sent, test.most*taken)
				require.Equal(t, "10.0.0.2:5000", b.RemoteAddr().String())
				require.Equal(t, 1, l.Stats().Sessions)
				require.EqualValues(t, 1, l.Stats().Accepted)
			})
		})
	}
}
