package soak

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
)

// plan is all that a seed determines, but for what applications do: see steps.
type plan struct {
	seed    uint64
	configs [2]kcp.Config // of the client, and of the server
	own     [2]bool       // sockets of package kcp: Dial, of each session; Listen
	grouped bool          // a Group has the server's sessions
	way     ends.Way

	up, down netsim.LinkConfig
	outages  netsim.Script
	out      time.Duration // how long the path takes nothing, in all
	rebind   time.Duration // the time between two changes of the clients' addresses; 0 is never
	rough    bool          // all answers to a request may be lost, however often it is repeated

	event    event
	eventAt  time.Duration
	downtime time.Duration // from the kill to the restart
	dials    []dial
}

// dial is a session.
type dial struct {
	start  time.Duration
	giveUp time.Duration // Dial is cancelled after so long; 0: it is not
	exits  bool          // its socket is closed as soon as Close returns
}

const keepAlive = time.Second

// event is what happens to the server.
type event string

const (
	noEvent   event = ""
	kill      event = "kill"      // its socket is closed, so that it says nothing
	restart   event = "restart"   // killed, and another one begins
	terminate event = "terminate" // it closes everything
	pathEnds  event = "path ends" // nothing arrives any more, on either side
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

func millis(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(to-from+1)) * time.Millisecond
}

// newPlan returns the plan of a seed.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 0x736f616b))
	p := &plan{seed: seed, grouped: chance(r, 25), way: ends.Way(r.IntN(int(ends.Ways)))}
	for i := range p.own {
		p.configs[i], p.own[i] = ends.RandomConfig(r), chance(r, 50)
	}
	p.randomPath(r, p.protect(r))
	patience := 3 * time.Second
	if p.rough {
		patience = 8 * time.Second
	}
	mode := chance(r, 35)
	for i := range p.configs {
		c := &p.configs[i]
		c.MessageMode, c.KeepAlive, c.PeerTimeout, c.Linger, c.DialTimeout = mode, keepAlive, patience, patience, patience+2*time.Second
	}
	server := &p.configs[1]
	server.Shards, server.AddressValidation = pick(r, 0, 2, 4), kcp.AddressValidation(r.IntN(2))
	server.LegacyPeers = pick(r, kcp.LegacyDefault, kcp.LegacyDefault, kcp.LegacyRefuse)
	p.event = pick(r, noEvent, noEvent, noEvent, noEvent, kill, restart, restart, terminate, pathEnds)
	p.eventAt, p.downtime = millis(r, 0, 2000), millis(r, 0, 600)
	p.own[1] = p.own[1] && p.event != kill && p.event != restart // the test closes the socket
	for range 1 + r.IntN(8) {
		d := dial{start: millis(r, 0, 1500), exits: !p.own[0] && chance(r, 50)}
		if chance(r, 10) {
			d.giveUp = millis(r, 1, 150)
		}
		p.dials = append(p.dials, d)
	}
	if chance(r, 30) { // while a session is opened
		p.eventAt = pick(r, p.dials...).start + millis(r, 0, 150)
	}
	return p
}

// protect sets the protection of both sides, and reports whether it authenticates packets.
func (p *plan) protect(r *rand.Rand) (authenticated bool) {
	cipher := pick(r, "no-cipher", "none", "aes-gcm", "aes-gcm", "chacha20", "aes-cfb", "salsa20", "xor", "tls", "tls", "tls", "tls")
	key, resets := fmt.Append(nil, "the reset key of seed ", p.seed), chance(r, 50)
	c := testenv.Ciphers(new(testing.T), byte(p.seed))[cipher]
	for i := range p.configs {
		x := &p.configs[i]
		if x.Cipher = c; cipher == "tls" {
			const least = 1200 // Config.MTU with TLS
			x.MTU, x.TLS = max(x.MTU, least), testTLS()
			if resets {
				x.StatelessResetKey = key
			}
		}
	}
	return cipher == "tls" || c != nil && crypt.Authenticated(c)
}

var testTLS = sync.OnceValue(testenv.TLS)

// table is what applications do.
var table = life.Weighted("write 30 open 6 fin 2 stopread 1 stopwrite 1 reset 1 endstream 2 datagram 4 wait 12 rate 1 buffer 1 look 4 ping 2 flush 3")

// steps returns what an application does with a session. The last step ends it.
func (p *plan) steps(conv uint32, side int) []life.Step {
	r := rand.New(rand.NewPCG(p.seed, uint64(conv)<<1|uint64(side)))
	var all []life.Step
	for _, s := range table.Of(table.Random(r, r.IntN(60))).Steps {
		if s.End = side; s.Op == life.Wait {
			s.N = min(s.N, 400)
		}
		all = append(all, s)
	}
	last := pick(r, life.Close, life.Close, life.Close, life.Close, life.Close, life.Reason, life.Background, life.Abort)
	if last != life.Abort && chance(r, 80) { // all is read before
		all = append(all, life.Step{End: side, Op: life.Fin}, life.Step{End: side, Op: life.Meet})
	}
	return append(all, life.Step{End: side, Op: last})
}

// randomPath draws what the packets meet on their way. A path is rough if it loses much,
// or long runs of packets, or if the client's address changes more often than an idle
// client sends.
func (p *plan) randomPath(r *rand.Rand, authenticated bool) {
	for _, link := range []*netsim.LinkConfig{&p.up, &p.down} {
		*link = testenv.RandomLink(r, 40*time.Millisecond, pick(r, 0, 0.05, 0.3))
		if chance(r, 25) {
			link.Loss, link.Burst = 0, netsim.BurstLoss(r.Float64()*0.1, 1+9*r.Float64())
		}
		if authenticated {
			link.Corrupt = pick(r, 0.0, 0, r.Float64()*0.1)
		}
		if chance(r, 30) {
			link.Rate, link.Overhead = 100_000+r.Int64N(2_000_000), netsim.OverheadIPv4
			link.Queue = 10_000 + r.IntN(100_000)
		}
		if chance(r, 25) {
			link.MTU = 1200 + r.IntN(241)
		}
		loss := 1 - (1-link.Loss)*(1-link.Burst.Mean())*(1-link.Corrupt)
		p.rough = p.rough || loss > 0.15 || link.Burst.ToBad > 0.005 && link.Burst.ToGood < 0.4
	}
	if chance(r, 25) {
		for range 1 + r.IntN(2) {
			length := pick(r, millis(r, 50, 1000), millis(r, 1000, 5000))
			p.out += length
			p.outages = append(p.outages, netsim.Outage(millis(r, 0, 2500), length)...)
		}
	}
	if authenticated && chance(r, 25) {
		p.rebind = millis(r, 300, 3000)
		p.rough = p.rough || p.rebind < keepAlive
	}
}
