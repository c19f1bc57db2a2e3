package soak

import (
	"crypto/aes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/selfsigned"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
)

// plan is all that a seed determines, but for what applications do: see steps.
type plan struct {
	Seed           uint64
	Cipher         string // "tls" is Config.TLS
	ResetKey       bool   // with TLS: Config.StatelessResetKey, the same after a restart
	Grouped        bool   // a Group has the server's sessions
	Way            ends.Way
	MessageMode    bool
	Client, Server settings
	PeerTimeout    time.Duration // and Linger

	Up, Down netsim.LinkConfig
	Outages  []outage
	Rebind   time.Duration // the time between two changes of the clients' addresses; 0 is never

	Event    event
	EventAt  time.Duration
	Downtime time.Duration // from the kill to the restart
	Dials    []dial
}

// dial is a session.
type dial struct {
	Start  time.Duration
	GiveUp time.Duration // Dial is cancelled after so long; 0: it is not
	Exits  bool          // its socket is closed as soon as Close returns
}

const keepAlive = time.Second

// event is what happens to the server's process.
type event string

const (
	noEvent   event = ""
	kill      event = "kill"
	restart   event = "restart"   // killed, and started again
	terminate event = "terminate" // SIGTERM: the server closes everything and exits
	pathEnds  event = "path ends" // nothing arrives any more, on either side
)

// outage is a time during which both directions lose everything.
type outage struct{ At, Length time.Duration }

// settings are those of one side.
type settings struct {
	Sockets                   sockets
	MTU, MaxMTU               int
	SendWindow, ReceiveWindow int
	WriteBuffer               int
	FEC                       kcp.FEC
	NoDelay                   kcp.NoDelay
	Control                   string
	Redundancy                float64
	Shards                    int
	Validation                kcp.AddressValidation
	RefuseLegacy              bool
}

// sockets is what a side's sessions run on.
type sockets string

const (
	ownSockets sockets = "own"   // Dial: each session has one; Listen
	oneSocket  sockets = "one"   // NewEndpoint on a *net.UDPConn
	plainConn  sockets = "plain" // NewEndpoint on a net.PacketConn that is no *net.UDPConn
)

var controls = map[string]func() congestion.Control{
	"bbr": nil, "cubic": congestion.NewCubic, "reference": congestion.NewReference, "none": congestion.NewNone,
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

func millis(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(to-from+1)) * time.Millisecond
}

// newPlan returns the plan of a seed.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 0x736f616b))
	p := &plan{Seed: seed}
	p.Cipher = pick(r, "nil", "none", "aes-gcm", "aes-gcm", "chacha20", "xchacha20", "aes-cfb", "salsa20", "xor", "tls", "tls", "tls", "tls", "tls")
	p.ResetKey, p.MessageMode = chance(r, 50), chance(r, 35)
	p.Grouped, p.Way = chance(r, 25), ends.Way(r.IntN(int(ends.Ways)))
	p.Client, p.Server = randomSettings(r), randomSettings(r)
	p.Client.Shards, p.Client.Validation, p.Client.RefuseLegacy = 0, 0, false
	p.randomPath(r)
	p.PeerTimeout = 3 * time.Second
	if p.rough() {
		p.PeerTimeout = 8 * time.Second
	}
	p.Event = pick(r, noEvent, noEvent, noEvent, noEvent, kill, restart, restart, terminate, pathEnds)
	p.EventAt, p.Downtime = millis(r, 0, 2000), millis(r, 0, 600)
	for range 1 + r.IntN(8) {
		d := dial{Start: millis(r, 0, 1500), Exits: p.Client.Sockets != ownSockets && chance(r, 50)}
		if chance(r, 10) {
			d.GiveUp = millis(r, 1, 150)
		}
		p.Dials = append(p.Dials, d)
	}
	if chance(r, 30) { // while a session is opened
		p.EventAt = pick(r, p.Dials...).Start + millis(r, 0, 150)
	}
	return p
}

// table is what applications do.
var table = life.Weighted("write 30 open 6 fin 2 stopread 1 stopwrite 1 reset 1 endstream 2 datagram 4 wait 12 rate 1 buffer 1 look 4 ping 2 flush 3")

// steps returns what an application does with a session. The last step ends it.
func (p *plan) steps(conv uint32, side int) []life.Step {
	r := rand.New(rand.NewPCG(p.Seed, uint64(conv)<<1|uint64(side)))
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

func randomSettings(r *rand.Rand) settings {
	s := settings{
		Sockets:       pick(r, ownSockets, ownSockets, oneSocket, plainConn),
		MTU:           pick(r, 0, 0, 1400, 1200, 1472, 150+r.IntN(1200)),
		MaxMTU:        pick(r, 0, 0, -1, 1472, 9000),
		SendWindow:    pick(r, 0, 1, 2, 1+r.IntN(128), 1+r.IntN(20000)),
		ReceiveWindow: pick(r, 0, 1, 1+r.IntN(20000)),
		WriteBuffer:   pick(r, 0, 4096, 4096+r.IntN(100_000)),
		NoDelay:       pick(r, kcp.NoDelayOn, kcp.NoDelayOn, kcp.NoDelayTurbo, kcp.NoDelayOff),
		Control:       pick(r, "bbr", "bbr", "cubic", "reference", "none"),
		Redundancy:    pick(r, 0.0, 0, 1, 4),
		Shards:        pick(r, 0, 2, 4),
		RefuseLegacy:  chance(r, 30),
	}
	if chance(r, 30) {
		s.FEC = kcp.FEC{Data: 1 + r.IntN(12), Parity: 1 + r.IntN(4)}
	}
	if chance(r, 40) {
		s.Validation = kcp.ValidateAlways
	}
	return s
}

// randomPath draws what the packets meet on their way.
func (p *plan) randomPath(r *rand.Rand) {
	cipher := p.newCipher()
	authenticated := p.tls() || cipher != nil && crypt.Authenticated(cipher)
	link := func() (c netsim.LinkConfig) {
		c.Delay, c.Jitter = millis(r, 0, 40), millis(r, 0, 20)
		switch r.IntN(4) {
		case 1:
			c.Loss = r.Float64() * 0.05
		case 2:
			c.Loss = r.Float64() * 0.3
		case 3:
			c.Burst = netsim.BurstLoss(r.Float64()*0.1, 1+9*r.Float64())
		}
		c.Reorder = pick(r, 0.0, 0, r.Float64())
		c.Duplicate = pick(r, 0.0, 0, r.Float64()*0.2)
		if authenticated {
			c.Corrupt = pick(r, 0.0, 0, r.Float64()*0.1)
		}
		if chance(r, 30) {
			c.Rate, c.Overhead = 100_000+r.Int64N(2_000_000), netsim.OverheadIPv4
			c.Queue = 10_000 + r.IntN(100_000)
		}
		if chance(r, 25) {
			c.MTU = 1200 + r.IntN(241)
		}
		return c
	}
	p.Up, p.Down = link(), link()
	if chance(r, 25) {
		for range 1 + r.IntN(2) {
			p.Outages = append(p.Outages, outage{millis(r, 0, 2500), pick(r, millis(r, 50, 1000), millis(r, 1000, 5000))})
		}
	}
	if authenticated && chance(r, 25) {
		p.Rebind = millis(r, 300, 3000)
	}
}

// tls reports whether sessions have TLS.
func (p *plan) tls() bool { return p.Cipher == "tls" }

// loss returns the share of packets that the worse direction loses.
func (p *plan) loss() float64 {
	of := func(c netsim.LinkConfig) float64 { return 1 - (1-c.Loss)*(1-c.Burst.Mean())*(1-c.Corrupt) }
	return max(of(p.Up), of(p.Down))
}

// rough reports whether the path loses so much, or in such long bursts, that all
// answers to a request may be lost, however often it is repeated. So may they if
// the client's address changes more often than an idle client sends.
func (p *plan) rough() bool {
	if p.Rebind > 0 && p.Rebind < keepAlive {
		return true
	}
	burst := func(c netsim.LinkConfig) bool { return c.Burst.ToBad > 0.005 && c.Burst.ToGood < 0.4 }
	return p.loss() > 0.15 || burst(p.Up) || burst(p.Down)
}

// outage returns how long the path takes nothing, in all.
func (p *plan) outage() (sum time.Duration) {
	for _, o := range p.Outages {
		sum += o.Length
	}
	return sum
}

// course returns the script of a direction's outages.
func (p *plan) course() (s netsim.Script) {
	for _, o := range p.Outages {
		s = append(s, netsim.Outage(o.At, o.Length)...)
	}
	return s
}

// newCipher returns the cipher of both sides, or nil.
func (p *plan) newCipher() crypt.Cipher {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(p.Seed >> (i % 8 * 8))
	}
	c, err := crypt.None(), error(nil)
	switch p.Cipher {
	case "nil", "tls":
		return nil
	case "aes-gcm":
		c, err = crypt.AESGCM(key)
	case "chacha20":
		c, err = crypt.ChaCha20Poly1305(key)
	case "xchacha20":
		c, err = crypt.XChaCha20Poly1305(key)
	case "aes-cfb":
		block, _ := aes.NewCipher(key)
		c = crypt.CFB(block)
	case "salsa20":
		c, err = crypt.Salsa20(key)
	case "xor":
		c = crypt.XOR(key)
	}
	if err != nil {
		panic(err)
	}
	return c
}

// config returns the Config of one side.
func (p *plan) config(s settings) *kcp.Config {
	c := &kcp.Config{
		Cipher: p.newCipher(), FEC: s.FEC,
		MTU: s.MTU, MaxMTU: s.MaxMTU, SendWindow: s.SendWindow, ReceiveWindow: s.ReceiveWindow,
		WriteBuffer: s.WriteBuffer, MessageMode: p.MessageMode, NoDelay: s.NoDelay,
		CongestionControl: controls[s.Control], Redundancy: s.Redundancy, Shards: s.Shards,
		AddressValidation: s.Validation, LegacyPeers: legacyPeers(s.RefuseLegacy),
		KeepAlive: keepAlive, PeerTimeout: p.PeerTimeout, Linger: p.PeerTimeout, DialTimeout: p.PeerTimeout + 2*time.Second,
	}
	if p.tls() {
		if c.MTU > 0 {
			c.MTU = max(c.MTU, leastTLSMTU)
		}
		c.TLS = &tls.Config{Certificates: []tls.Certificate{*certificate()}, InsecureSkipVerify: true}
		if p.ResetKey {
			c.StatelessResetKey = fmt.Append(nil, "the reset key of seed ", p.Seed)
		}
	}
	return c
}

// leastTLSMTU is the least Config.MTU with TLS.
const leastTLSMTU = 1200

// certificate returns that of the process, which nobody checks.
var certificate = sync.OnceValue(func() *tls.Certificate {
	c, _, err := selfsigned.New("soak")
	if err != nil {
		panic(err)
	}
	return c
})

func (p *plan) String() string {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(b)
}

// legacyPeers returns the mode that refuses legacy peers, or the default.
func legacyPeers(refuse bool) kcp.LegacyPeers {
	if refuse {
		return kcp.LegacyRefuse
	}
	return kcp.LegacyDefault
}
