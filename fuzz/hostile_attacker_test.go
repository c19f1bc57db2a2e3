package fuzz_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/arqnet/kcp/internal/protect"
)

// attacker sends packets in the name of either end of the sessions that it sees, as an
// end of its own, and from addresses to which it sees nothing.
type attacker struct {
	t      testing.TB
	inject func(p recorded)
	wire   wire
	ability

	mu     sync.Mutex // guards the rest
	random *rand.Rand
	ends   []netip.AddrPort // that are attacked
	own    []netip.AddrPort // it is at
	spared netip.AddrPort   // the end that is not attacked
	seen   map[uint32]*dialogue
	order  []*dialogue
	blind  map[netip.AddrPort]*blindSource
	blinds []*blindSource
	sent   map[netip.AddrPort]int // packets, by sender
	lethal bool                   // signals that end a session are as frequent as others
	silent bool                   // for the moment, or from now on
	opened int                    // packets under keys of TLS that were read
	struck int
}

// recorded is a packet that was seen on its way.
type recorded struct {
	from, to netip.AddrPort
	data     []byte
}

// dialogue is what can be known of a session from its packets.
type dialogue struct {
	conv uint32
	ends [2]speaker // 0 has dialled
	past []recorded // the last packets of both

	lead    uint32   // first packet number that is used in the name of an end
	mute    int      // end whose own packets do not arrive after a while; -1: none
	secrets *secrets // of TLS; nil: not known
	suite   uint16
}

// speaker is what one end of a session has said.
type speaker struct {
	addr     netip.AddrPort
	token    uint32
	next     uint32 // behind the highest sn it has sent
	una, ts  uint32
	wnd      uint16
	final    uint32    // of its FIN or CLOSE
	said     []segment // the last
	asked    []segment // the last questions
	seqid    uint32    // of error correction
	hasShard bool
	segments int
	numbered bool   // with an AEAD: packets have numbers
	number   uint32 // behind the highest, seen or used
	tls      [protect.Application + 1]*tlsKeys
	resetKey *segment // the last RESETKEY
}

// blindSource is an address in whose name packets are sent by somebody who does not see
// what is sent to it.
type blindSource struct {
	addr           netip.AddrPort
	conv           uint32
	ladder         uint32 // the next una to be tried
	received, sent int    // bytes from there, and to there
}

// amplification bounds what an address gets which has answered nothing unpredictable:
// so many times what came from it (RFC 9000 §8.1).
const amplification = 3

// keep appends x, and drops the oldest if there are more than so many.
func keep[T any](all []T, n int, x T) []T {
	if len(all) == n {
		all = all[1:]
	}
	return append(all, x)
}

// other returns the index of the other end.
func other(i int) int { return 1 - i }

// one returns one of some.
func one[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// tap is shown every packet. The end that gets it may get others before it.
func (a *attacker) tap(from, to netip.AddrPort, packet []byte) (passes bool) {
	a.mu.Lock()
	a.sent[from]++
	if b := a.blind[to]; b != nil {
		if b.sent += len(packet); b.sent > amplification*b.received {
			a.t.Errorf("%v has been sent %d bytes for %d", to, b.sent, b.received)
		}
	}
	var c *dialogue
	if from != a.spared && to != a.spared && a.blind[to] == nil && (a.sees || a.isOwn(from) || a.isOwn(to)) {
		c = a.observe(from, to, packet)
	}
	muted := c != nil && !a.silent && c.mute >= 0 && from == c.ends[c.mute].addr && c.ends[c.mute].segments > 20
	often := c != nil && a.random.IntN(8) == 0
	a.mu.Unlock()
	if often {
		a.strike(to)
	}
	return !muted
}

func (a *attacker) isOwn(addr netip.AddrPort) bool {
	return addr == a.own[0] || addr == a.own[1]
}

// observe learns from a packet. It returns the conversation that the packet belongs to;
// nil if that is not known.
func (a *attacker) observe(from, to netip.AddrPort, packet []byte) *dialogue {
	content := packet
	if !a.wire.tls {
		content = a.wire.open(packet)
	}
	id := content
	if _, kind, ok := shardOf(content); ok && kind != shardParity && !a.wire.tls {
		id = content[shardHeader:]
	}
	conv := uint32(0) // what cannot be read is kept in one place
	if len(id) >= headerSize {
		conv = le.Uint32(id)
	}
	c := a.seen[conv]
	if c == nil {
		c = a.meet(conv, from, to)
	}
	end := 0
	switch from {
	case c.ends[0].addr:
	case c.ends[1].addr:
		end = 1
	default:
		c.ends[0].addr = from // the client has moved
	}
	if a.wire.tls {
		content = a.wire.log.openTLS(c, end, packet)
		if content != nil && protect.LevelOf(packet) == protect.Application {
			a.opened++
		}
	} else if a.wire.gcm != nil {
		c.seesNumber(end, packet)
	}
	c.ends[end].sees(content)
	c.past = keep(c.past, 64, recorded{from, to, bytes.Clone(packet)})
	return c
}

// meet begins to follow a conversation.
func (a *attacker) meet(conv uint32, dialler, listener netip.AddrPort) *dialogue {
	c := &dialogue{conv: conv, mute: -1}
	if a.keys {
		c.lead = one[uint32](a.random, 0, 0, 300, 1500)
		c.mute = a.random.IntN(8) - 6 // mostly none
	}
	for i, addr := range []netip.AddrPort{dialler, listener} {
		c.ends[i] = speaker{addr: addr, token: a.random.Uint32(), wnd: 128} // its own token, or soon known
	}
	a.seen[conv] = c
	a.order = append(a.order, c)
	return c
}

// sees takes note of a packet, opened, that the end has sent.
func (s *speaker) sees(content []byte) {
	if seqid, kind, ok := shardOf(content); ok {
		s.seqid, s.hasShard = seqid, true
		if kind != shardData {
			return
		}
		content = content[shardHeader:]
	}
	for _, g := range segments(content) {
		g.payload = bytes.Clone(g.payload)
		s.segments++
		s.una, s.wnd = g.una, g.wnd
		s.said = keep(s.said, 32, g)
		switch g.cmd {
		case cmdWask, cmdWins:
			s.hears(g)
		case cmdPush, cmdPiece, cmdStream, cmdStreamPiece:
			if s.ts = g.ts; ahead(g.sn+1, s.next) > 0 {
				s.next = g.sn + 1
			}
		}
	}
}

// hears takes note of a signal.
func (s *speaker) hears(g segment) {
	switch g.frg {
	case sigHello, sigConfirm:
		s.token = g.ts
	case sigHello | sigAnswer:
		s.token = g.sn
	case sigFin, sigClose:
		s.final = g.sn
	case sigResetKey:
		s.resetKey = &g
	}
	if g.frg != 0 && g.cmd == cmdWask || g.frg == sigCookie {
		s.asked = keep(s.asked, 8, g)
	}
}

// strike sends some packets to an end.
func (a *attacker) strike(to netip.AddrPort) {
	for range 1 + a.draw(3) {
		if p := a.next(to); p.data != nil {
			a.inject(p)
		}
	}
}

func (a *attacker) draw(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.random.IntN(n)
}

// rest has the attacker send nothing, or go on.
func (a *attacker) rest(silent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = silent
}

// next returns the packet that the attacker sends next, to an end if it can choose.
func (a *attacker) next(to netip.AddrPort) (p recorded) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.silent {
		return p
	}
	a.struck++
	switch n := a.random.IntN(100); {
	case n < 12:
		p = a.forgeBlind(to)
	case n < 18:
		p = a.join(to)
	case n < 20:
		p = recorded{a.own[0], to, make([]byte, a.random.IntN(200))}
		for i := range p.data {
			p.data[i] = byte(a.random.Uint32())
		}
	case n < 40 || len(a.order) == 0 || a.sees && !a.reads && n < 75:
		p = a.stranger(to)
	default:
		// Those of late are more likely to be alive.
		c := a.order[len(a.order)-1-min(a.random.IntN(len(a.order)), a.random.IntN(len(a.order)))]
		if p = a.forgeFor(c); len(c.past) > 0 && (a.random.IntN(6) == 0 || a.sees && !a.reads) {
			p = a.replay(c)
		}
	}
	if p.to == a.spared || p.from == a.spared {
		return recorded{}
	}
	return p
}

// replay sends a recorded packet again: as it was, damaged, sealed anew, back to its
// sender, or from elsewhere.
func (a *attacker) replay(c *dialogue) recorded {
	p := one(a.random, c.past...)
	p.data = a.mutate(bytes.Clone(p.data))
	if content := a.wire.open(p.data); a.reads && !a.wire.tls && content != nil && a.random.IntN(2) == 0 {
		p.data = a.wire.seal(content)
	}
	switch a.random.IntN(4) {
	case 0:
		p.from, p.to = p.to, p.from
	case 1:
		p.from = one(a.random, a.own...)
	}
	return p
}

// join opens a session of the attacker's own with an end, or says hello to it again.
func (a *attacker) join(to netip.AddrPort) recorded {
	c := a.meet(a.random.Uint32(), one(a.random, a.own...), to)
	self := &c.ends[0]
	var p []byte
	if a.random.IntN(3) > 0 || a.wire.tls {
		p = a.hello(c, p)
	}
	if a.wire.tls {
		return recorded{self.addr, to, sealInitial(self.token, true, a.crypto(self, p))}
	}
	if len(p) == 0 || a.random.IntN(2) == 0 {
		p = segment{conv: c.conv, cmd: cmdPush, wnd: a.window(self), payload: make([]byte, a.random.IntN(30))}.put(p)
		self.next = 1
	}
	return recorded{self.addr, to, a.wire.seal(p)}
}

// stranger makes a packet with what anybody may guess, in the name of any end, or of
// another address.
func (a *attacker) stranger(to netip.AddrPort) recorded {
	c := &dialogue{conv: one[uint32](a.random, 0, 0, 0, 1, hostileConv, 1<<31, 1<<32-1, a.random.Uint32())}
	for i := range c.ends {
		c.ends[i] = speaker{token: one[uint32](a.random, 0, 0, 1, a.random.Uint32()), wnd: one[uint16](a.random, 0, 1, 128, 65535)}
	}
	if n := len(a.order); n > 0 && a.sees && a.random.IntN(2) == 0 && (!a.wire.tls || a.lethal) {
		*c = *a.order[a.random.IntN(n)]
	}
	from := one(a.random, append(a.own, a.ends...)...)
	if a.random.IntN(2) == 0 {
		from = one(a.random, a.ends...)
	}
	var p []byte
	if a.random.IntN(2) == 0 {
		p = a.hello(c, p)
	}
	if a.random.IntN(8) == 0 || a.wire.tls && a.random.IntN(2) == 0 {
		p = sealInitial(c.ends[0].token, len(p) > 0, a.crypto(&c.ends[0], p))
	}
	for len(p) == 0 || a.random.IntN(3) == 0 {
		p = a.forgeSegment(c, a.random.IntN(2), p)
	}
	if !a.wire.tls {
		p = a.wire.seal(a.envelope(&c.ends[0], p, c.conv))
	}
	return recorded{from, to, a.mutate(p)}
}

// forgeBlind makes a packet in the name of an address to which the attacker sees nothing,
// with what can be known then: what it has said itself.
func (a *attacker) forgeBlind(to netip.AddrPort) recorded {
	var b *blindSource
	if n := len(a.blinds); n > 0 && (n == 200 || a.random.IntN(6) > 0) {
		b = a.blinds[max(0, n-1-a.random.IntN(8))]
	} else {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 66, byte(n >> 8), byte(n)}), 1000)
		b = &blindSource{addr: addr, conv: a.random.Uint32()}
		a.blinds, a.blind[addr] = append(a.blinds, b), b
	}
	// What it would see of the other end, if all went as it supposes.
	c := &dialogue{conv: b.conv}
	c.ends[0] = speaker{next: 1, wnd: 128, token: b.conv}
	c.ends[1] = speaker{next: b.ladder, una: 1, wnd: 128, token: a.random.Uint32()}
	push := segment{conv: b.conv, cmd: cmdPush, wnd: 512, payload: a.payload()}
	var p []byte
	switch n := a.random.IntN(10); {
	case a.wire.tls:
		p = sealInitial(b.conv, true, a.crypto(&c.ends[0], a.hello(c, nil)))
	case b.received == 0 && n < 5:
		p = push.put(nil)
	case b.received == 0:
		if p = a.hello(c, nil); n < 7 {
			p = push.put(p)
		}
	case n < 5:
		b.ladder += uint32(a.random.IntN(3))
		p = segment{conv: b.conv, cmd: cmdWins, wnd: 512, una: b.ladder}.put(nil)
		p = segment{conv: b.conv, cmd: cmdAck, wnd: 512, sn: b.ladder, una: b.ladder, ts: a.near(0, 100)}.put(p)
	case n < 7:
		push.sn = a.near(1)
		p = push.put(nil)
	default:
		p = a.envelope(&c.ends[0], a.forgeSegment(c, 1, nil), b.conv)
	}
	p = a.wire.seal(p)
	b.received += len(p)
	return recorded{b.addr, to, p}
}

// begin makes room for what the attacker learns.
func (a *attacker) begin() {
	a.seen, a.blind, a.sent = make(map[uint32]*dialogue), make(map[netip.AddrPort]*blindSource), make(map[netip.AddrPort]int)
}

// sentBy returns how many packets have left from an address.
func (a *attacker) sentBy(addr netip.AddrPort) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent[addr]
}
