package fuzz_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/packetkeys"
)

// intruder sends packets between any two steps of the ends that it is told of: from the
// address of either, and from others. It sees all packets, and repeats and changes them.
// Others are well-formed, with numbers that it has seen, and such as 0.
type intruder struct {
	inject func(p recorded)
	wire   wire // how it seals what it makes
	tls    bool // sessions have TLS, of which it knows the initial keys

	mu     sync.Mutex // guards the rest
	random *rand.Rand
	ends   []netip.AddrPort
	others []netip.AddrPort
	seen   []recorded // the last ones
	convs  []uint32   // the same
	fields []uint32   // the same: tokens, numbers, timestamps
	struck int
	over   bool
}

// kept is how many of what it has seen an intruder remembers.
const kept = 64

// keep appends x, and drops the oldest if there are too many.
func keep[T any](all []T, x T) []T {
	if len(all) == kept {
		all = all[1:]
	}
	return append(all, x)
}

// tap is shown every packet. The end that gets it may get others before it.
func (x *intruder) tap(from, to netip.AddrPort, packet []byte) bool {
	x.mu.Lock()
	x.seen = keep(x.seen, recorded{from, to, bytes.Clone(packet)})
	x.learn(packet)
	often := x.random.IntN(8) == 0
	x.mu.Unlock()
	if often {
		x.strike(to)
	}
	return true
}

// learn remembers the numbers in a packet that can be read.
func (x *intruder) learn(packet []byte) {
	content := x.wire.open(packet)
	if _, kind, ok := shardOf(content); ok && kind == shardData {
		content = content[shardHeader:]
	}
	for n := 0; len(content) >= headerSize && n < 4; n++ {
		s := handshake.DecodeSegment(content)
		x.convs = keep(x.convs, s.Conv)
		if x.tls && s.Cmd < cmdPush || uint64(s.Len) > uint64(len(content)-headerSize) {
			return // nothing else of it can be read
		}
		for _, f := range []uint32{s.SN, s.TS, s.Una} {
			x.fields = keep(x.fields, f)
		}
		content = content[headerSize+s.Len:]
	}
}

// end returns the address of an end.
func (x *intruder) end(i int) netip.AddrPort {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ends[i]
}

// begin begins the attack, once it is known where an end listens.
func (x *intruder) begin(i int, at netip.AddrPort) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ends[i], x.over = at, false
}

// strike sends some packets to an end.
func (x *intruder) strike(to netip.AddrPort) {
	x.mu.Lock()
	var all []recorded
	for range 1 + x.random.IntN(3) {
		if x.over {
			break
		}
		all = append(all, recorded{x.source(to), to, x.packet(to)})
		x.struck++
	}
	x.mu.Unlock()
	for _, p := range all {
		if len(p.data) > 0 {
			x.inject(p)
		}
	}
}

// stop ends the attack.
func (x *intruder) stop() (struck int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	return x.struck
}

func one[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// source returns the address that a packet for an end comes from, mostly of its peer.
func (x *intruder) source(to netip.AddrPort) netip.AddrPort {
	switch x.random.IntN(8) {
	case 0:
		return to
	case 1, 2:
		return one(x.random, x.others...)
	}
	from := one(x.random, x.ends...)
	if from == to {
		from = x.ends[0]
	}
	return from
}

// number returns one that was seen, one near it or half the circle away, or an extreme.
func (x *intruder) number() uint32 {
	n := one[uint32](x.random, 0, 0, 1, 1<<31-1, 1<<31, 1<<32-1, x.random.Uint32())
	if len(x.fields) > 0 && x.random.IntN(3) > 0 {
		n = one(x.random, x.fields...)
		if x.random.IntN(3) == 0 {
			n += one(x.random, critical[:]...)
		}
	}
	return n
}

// conv returns a conversation id.
func (x *intruder) conv() uint32 {
	if len(x.convs) > 0 && x.random.IntN(4) > 0 {
		return one(x.random, x.convs...)
	}
	return one[uint32](x.random, 0, 0, 0, 1, stepsConv, 1<<31, 1<<32-1)
}

// packet returns one of any kind.
func (x *intruder) packet(to netip.AddrPort) (p []byte) {
	r := x.random
	switch n := r.IntN(20); {
	case n < 6 && len(x.seen) > 0:
		p = bytes.Clone(one(r, x.seen...).data)
		if r.IntN(2) == 0 {
			p = x.change(p)
		}
		return p
	case n == 6:
		p = make([]byte, r.IntN(200))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		return p
	case n == 7 && x.tls:
		return x.initial()
	case n == 8 && x.tls && len(x.seen) > 0: // of a level that another packet is of
		p = x.segments(x.conv())
		if other := one(r, x.seen...).data; len(other) > 4 {
			p[4] = other[4]
		}
		return p
	}
	conv := x.conv()
	p = x.segments(conv)
	switch r.IntN(12) {
	case 0:
		p = shard(x.number(), shardData, p)
	case 1:
		p = shard(x.number(), shardParity, append(make([]byte, 2), p...))
	case 2:
		p = shard(x.number(), shardDatagram, append(le.AppendUint32(nil, conv), p[:r.IntN(9)]...))
	}
	if r.IntN(8) == 0 {
		p = x.change(p)
	}
	return x.wire.seal(p)
}

// change damages a packet, cuts it, or puts more behind it.
func (x *intruder) change(p []byte) []byte {
	r := x.random
	for range 1 + r.IntN(3) {
		switch n := len(p); {
		case n == 0:
		case r.IntN(4) == 0:
			p = p[:r.IntN(n)]
		case r.IntN(4) == 0:
			p = append(p, make([]byte, r.IntN(60))...)
		case r.IntN(2) == 0 && n >= 4:
			le.PutUint32(p[r.IntN(n-3):], x.number())
		default:
			p[r.IntN(n)] ^= 1 << r.IntN(8)
		}
	}
	return p
}

// segments returns some that are well-formed.
func (x *intruder) segments(conv uint32) (p []byte) {
	r := x.random
	put := func(code byte, sn, ts uint32, payload []byte) {
		s := signal{code, sn, ts}
		g := segment{conv: conv, cmd: s.cmd(), frg: code, wnd: one[uint16](r, 0, 1, 128, 65535), sn: sn, ts: ts, payload: payload}
		if r.IntN(4) == 0 {
			g.una = x.number()
		}
		p = g.put(p)
	}
	switch r.IntN(4) {
	case 0: // a peer's first
		put(sigHello, 0, x.number(), nil)
		put(sigInfo, uint32(r.IntN(4)), one(r, x.number(), uint32(1|capStreams), uint32(1|capTLS)), nil)
		if r.IntN(2) == 0 {
			put(sigTie, x.number(), x.number(), nil)
		}
		if r.IntN(4) == 0 {
			put(sigCookie, x.number(), x.number(), nil)
		}
	case 1: // one of the peer's answers
		put(byte(r.IntN(6))+sigHello|sigAnswer, x.number(), x.number(), nil)
		put(sigInfo, 2, x.number(), nil)
	}
	for n := r.IntN(3); n >= 0 || len(p) == 0; n-- {
		switch r.IntN(3) {
		case 0, 1:
			var payload []byte
			if r.IntN(4) == 0 {
				payload = make([]byte, one(r, 8, 16, 40, 1000))
			}
			put(byte(r.IntN(18))|one[byte](r, 0, 0, 0, sigAnswer), x.number(), x.number(), payload)
		default:
			p = segment{
				conv: conv, cmd: byte(cmdPush + r.IntN(8)), frg: one[byte](r, 0, 0, 1, 127, 128, 255), wnd: 128,
				ts: x.number(), sn: x.number(), una: one[uint32](r, 0, x.number()), payload: make([]byte, one(r, 0, 4, 20, 600)),
			}.put(p)
		}
	}
	return p
}

// initial returns a packet of a TLS handshake in the clear, whose seal is right.
func (x *intruder) initial() []byte {
	r := x.random
	conv, token := x.conv(), x.number()
	p := segment{conv: conv, cmd: cmdWask, frg: sigHello, wnd: 128, ts: token}.put(nil)
	if r.IntN(2) == 0 {
		p = segment{conv: conv, cmd: cmdWins, frg: sigHello | sigAnswer, wnd: 128, sn: x.number(), ts: token}.put(nil)
	}
	p = segment{conv: conv, cmd: cmdWins, frg: sigInfo, wnd: 128, sn: 2, ts: 1 | capTLS}.put(p)
	if r.IntN(3) == 0 {
		p = segment{conv: conv, cmd: cmdWins, frg: sigTie, wnd: 128, sn: x.number(), ts: x.number()}.put(p)
	}
	if r.IntN(6) == 0 {
		p = segment{conv: conv, cmd: cmdWins, frg: sigAlert, wnd: 128, sn: 40, ts: token}.put(p)
	}
	data := make([]byte, one(r, 0, 4, 60, 900))
	if len(data) > 4 { // a ClientHello, or ServerHello, and nothing that TLS takes
		data[0], data[3] = one[byte](r, 1, 2), byte(len(data)-4)
	}
	p = segment{
		conv: conv, cmd: cmdWins, frg: sigCrypto, wnd: 128, sn: one[uint32](r, 0, 0, x.number()), ts: uint32(len(data)),
		size: uint32(len(data) + packetkeys.InitialOverhead), payload: append(data, make([]byte, packetkeys.InitialOverhead)...),
	}.put(p)
	packetkeys.NewInitial(conv, token, p[5] == sigHello).Seal(p, len(p)-len(data)-packetkeys.InitialOverhead)
	return p
}
