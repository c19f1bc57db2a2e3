package fuzz_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// amplification bounds what an address gets which has answered nothing
// unpredictable: so many times what came from it (RFC 9000 §8.1).
const amplification = 3

// attacker sees every packet, holds the key, and injects packets of its own: in
// the name of either end of a session it has seen, as a client and as a server
// of its own, and in the names of addresses that it does not see packets to.
// Without the key it repeats, redirects and damages the packets of others.
type attacker struct {
	t       testing.TB
	net     *netsim.Network
	wire    wire
	keyless bool

	mu       sync.Mutex // guards the rest; a filter holds the network's lock already
	random   *rand.Rand
	server   netip.AddrPort
	spared   map[netip.AddrPort]bool // not attacked
	seen     map[uint32]*conversationSeen
	order    []*conversationSeen
	blind    map[netip.AddrPort]*blindSource
	blinds   []*blindSource
	sent     map[netip.AddrPort]int // packets, by sender
	own      []netip.AddrPort       // speaks for itself from there
	reacts   int                    // answers one of so many packets at once; 0: none
	streams  bool                   // applications use them
	lethal   bool                   // signals that end a session are as frequent as others
	ties     bool                   // says that it dials too (simultaneous open)
	insider  bool                   // has authenticated itself: speaks as its keys permit
	opened   int                    // packets under application keys that were read
	injected int
	over     bool
}

// blindSource is an address in whose name packets are sent by somebody who
// does not see what is sent to it.
type blindSource struct {
	addr           netip.AddrPort
	conv           uint32
	ladder         uint32 // the next una to be tried
	received, sent int    // bytes from there, and to there
	reported       bool
}

func newAttacker(t testing.TB, n *netsim.Network, w wire, random *rand.Rand, server netip.AddrPort) *attacker {
	a := &attacker{
		t: t, net: n, wire: w, random: random, server: server,
		spared: make(map[netip.AddrPort]bool), seen: make(map[uint32]*conversationSeen),
		blind: make(map[netip.AddrPort]*blindSource), sent: make(map[netip.AddrPort]int),
	}
	for i := range byte(3) {
		a.own = append(a.own, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 6, 6, i}), 666))
	}
	if random.IntN(2) == 0 {
		a.reacts = 2 + random.IntN(50)
	}
	a.lethal = random.IntN(3) == 0
	n.SetFilter(a.tap)
	return a
}

// spare excludes an address from the attack.
func (a *attacker) spare(addr netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spared[addr] = true
}

// tap is shown every packet.
func (a *attacker) tap(from, to netip.AddrPort, packet []byte) bool {
	a.mu.Lock()
	a.sent[from]++
	if b := a.blind[to]; b != nil {
		b.sent += len(packet)
		if b.sent > amplification*b.received && !b.reported {
			a.t.Errorf("%v has been sent %d bytes for %d", to, b.sent, b.received)
			b.reported = true
		}
	}
	c := a.observe(from, to, packet)
	var reaction recorded
	if c != nil && !a.over && a.reacts > 0 && a.random.IntN(a.reacts) == 0 {
		reaction = a.strike(c)
	}
	muted := c != nil && !a.over && c.mute >= 0 && from == c.ends[c.mute].addr && c.ends[c.mute].segments > 20
	a.mu.Unlock()
	if reaction.data != nil {
		a.net.Inject(reaction.from, reaction.to, reaction.data)
	}
	return !muted
}

// observe learns from a packet. It returns the conversation that the packet
// belongs to; nil if it is not to be attacked.
func (a *attacker) observe(from, to netip.AddrPort, packet []byte) *conversationSeen {
	if a.spared[from] || a.spared[to] || a.blind[to] != nil {
		return nil
	}
	if a.keyless {
		return a.observeSealed(from, to, packet)
	}
	if a.wire.tls != nil {
		return a.observeTLS(from, to, packet)
	}
	content := a.wire.open(packet)
	c := a.conversationOf(from, to, content)
	if c == nil {
		return nil
	}
	end := c.endAt(from)
	if a.wire.gcm != nil {
		c.seesNumber(end, packet)
	}
	c.ends[end].sees(content)
	c.record(from, to, packet)
	return c
}

// observeTLS is observe for sessions with TLS.
func (a *attacker) observeTLS(from, to netip.AddrPort, packet []byte) *conversationSeen {
	if len(packet) < headerSize {
		return nil
	}
	conv := le.Uint32(packet)
	c := a.seen[conv]
	if c == nil {
		c = a.meet(conv, from, to)
	}
	end := c.endAt(from)
	content, level := a.wire.tls.openTLS(c, end, packet)
	if content != nil && level == levelApplication {
		a.opened++
	}
	c.ends[end].sees(content)
	c.record(from, to, packet)
	return c
}

// endAt returns the end that has sent a packet from an address.
func (c *conversationSeen) endAt(from netip.AddrPort) int {
	switch from {
	case c.ends[0].addr:
	case c.ends[1].addr:
		return 1
	default:
		c.ends[0].addr = from // the client has moved
	}
	return 0
}

// seal seals what an end of c is to have sent.
func (a *attacker) seal(c *conversationSeen, end int, content []byte) []byte {
	switch {
	case a.wire.tls != nil:
		return a.sealTLS(c, end, levelApplication, content)
	case c.ends[end].numbered:
		return a.wire.sealNumbered(c, end, content)
	}
	return a.wire.seal(content)
}

// observeSealed keeps a packet that cannot be read. All those are in one place.
func (a *attacker) observeSealed(from, to netip.AddrPort, packet []byte) *conversationSeen {
	c := a.seen[0]
	if c == nil {
		c = a.meet(0, from, to)
	}
	c.record(from, to, packet)
	return c
}

// record keeps a packet.
func (c *conversationSeen) record(from, to netip.AddrPort, packet []byte) {
	if len(c.past) == 256 {
		c.past = c.past[1:]
	}
	c.past = append(c.past, recorded{from, to, bytes.Clone(packet)})
	c.at = time.Now()
}

// strike makes a packet against a conversation that has been seen.
func (a *attacker) strike(c *conversationSeen) recorded {
	if len(c.past) > 0 && (a.keyless || a.random.IntN(8) == 0) {
		return a.replay(c)
	}
	return a.forgeFor(c)
}

// conversationOf returns what is known of the conversation of a packet.
func (a *attacker) conversationOf(from, to netip.AddrPort, content []byte) *conversationSeen {
	if _, kind, ok := shardOf(content); ok {
		if kind == shardParity {
			for _, c := range a.order {
				if c.ends[0].addr == from || c.ends[0].addr == to {
					return c
				}
			}
			return nil
		}
		content = content[shardHeader:]
	}
	if len(content) < headerSize {
		return nil
	}
	conv := le.Uint32(content)
	c := a.seen[conv]
	if c == nil {
		c = a.meet(conv, from, to)
	}
	return c
}

// meet begins to follow a conversation.
func (a *attacker) meet(conv uint32, dialler, listener netip.AddrPort) *conversationSeen {
	c := &conversationSeen{conv: conv, mute: -1}
	if a.insider {
		c.lead = [4]uint32{0, 0, 300, 1500}[a.random.IntN(4)]
		c.mute = a.random.IntN(8) - 6 // mostly none
	}
	c.ends[0].addr, c.ends[1].addr = dialler, listener
	c.ends[0].token, c.ends[1].token = a.random.Uint32(), a.random.Uint32() // its own, or soon known
	c.ends[0].wnd, c.ends[1].wnd = 128, 128
	a.seen[conv] = c
	a.order = append(a.order, c)
	return c
}

// next returns the packet that the attacker sends next.
func (a *attacker) next() recorded {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.injected++
	switch n := a.random.IntN(100); {
	case a.keyless && n > 5 && len(a.order) > 0:
	case n < 12 || len(a.order) == 0:
		return a.forgeBlind()
	case n < 16:
		return a.join()
	case n < 18:
		p := make([]byte, a.random.IntN(200))
		for i := range p {
			p[i] = byte(a.random.Uint32())
		}
		return recorded{a.own[0], a.server, p}
	}
	// Those of late are more likely to be alive.
	pick := func() *conversationSeen {
		return a.order[len(a.order)-1-min(a.random.IntN(len(a.order)), a.random.IntN(len(a.order)))]
	}
	c := pick()
	for i := 0; a.insider && i < 8 && time.Since(c.at) > time.Second; i++ {
		c = pick()
	}
	return a.strike(c)
}

// replay sends a recorded packet again: as it was, back to its sender, or from
// elsewhere, now and then sealed anew.
func (a *attacker) replay(c *conversationSeen) recorded {
	p := c.past[a.random.IntN(len(c.past))]
	if a.keyless {
		p.data = a.mutate(bytes.Clone(p.data))
	} else if a.wire.tls != nil {
		if a.random.IntN(8) == 0 {
			p.data = a.mutate(bytes.Clone(p.data))
		}
	} else if a.random.IntN(2) == 0 {
		if content := a.wire.open(p.data); content != nil {
			p.data = a.seal(c, c.endAt(p.from), content)
		}
	}
	switch a.random.IntN(4) {
	case 0:
		p.from, p.to = p.to, p.from
	case 1:
		p.from = a.own[a.random.IntN(len(a.own))]
	}
	return p
}

// join opens a session of the attacker's own with the server, or says hello to
// it again.
func (a *attacker) join() recorded {
	c := a.meet(a.random.Uint32(), a.own[a.random.IntN(len(a.own))], a.server)
	self := &c.ends[0]
	if a.wire.tls != nil {
		for _, other := range a.order { // as somebody else has begun
			if len(other.ends[0].crypto) > 0 && a.random.IntN(4) == 0 {
				self.crypto = other.ends[0].crypto
			}
		}
		return recorded{self.addr, a.server, sealInitial(a.flight(c, 1, -1))}
	}
	var p []byte
	if a.random.IntN(3) > 0 {
		p = a.hello(c, p)
	}
	if len(p) == 0 || a.random.IntN(2) == 0 {
		p = segment{conv: c.conv, cmd: cmdPush, wnd: a.window(self), payload: make([]byte, a.random.IntN(30))}.put(p)
		self.next = 1
	}
	return recorded{self.addr, a.server, a.seal(c, 0, p)}
}

// hello puts the dialler's hello behind p, with the newest cookie if there is one.
func (a *attacker) hello(c *conversationSeen, p []byte) []byte {
	self, peer := &c.ends[0], &c.ends[1]
	say := func(s signal) {
		p = segment{conv: c.conv, cmd: s.cmd(), frg: s.code, wnd: 128, sn: s.sn, ts: s.ts}.put(p)
	}
	say(signal{sigHello, 0, self.token})
	for _, s := range peer.asked {
		if s.code == sigCookie {
			say(s)
			break
		}
	}
	say(signal{sigInfo, 1, 1 | a.capabilities()})
	if a.ties || a.random.IntN(16) == 0 {
		say(signal{sigTie, a.near(0, 1<<31), a.near(0, 1<<31)})
	}
	return p
}

// capabilities returns what INFO announces besides.
func (a *attacker) capabilities() uint32 {
	var bits uint32
	if a.streams {
		bits = capStreams
	}
	if a.wire.tls != nil {
		bits |= capTLS
	}
	if a.insider && a.random.IntN(4) > 0 {
		bits |= capReasons | capAckWaits
	}
	return bits
}

// attack sends packets for as long as it is told to. check is called for some
// of them, before they leave; what it returns is called when all that they
// cause at that instant has happened.
func (a *attacker) attack(duration time.Duration, packets int, check func(recorded) func()) {
	pause := duration / time.Duration(packets)
	for range packets {
		p := a.next()
		if p.data == nil {
			continue
		}
		var after func()
		if check != nil && a.injected%8 == 0 {
			synctest.Wait()
			after = check(p)
		}
		a.net.Inject(p.from, p.to, p.data)
		if after != nil {
			synctest.Wait()
			after()
		}
		// In bursts, so that batches are met too.
		if a.injected%7 == 0 {
			time.Sleep(7 * pause)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
}

// sentBy returns how many packets have left from an address.
func (a *attacker) sentBy(addr netip.AddrPort) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent[addr]
}
