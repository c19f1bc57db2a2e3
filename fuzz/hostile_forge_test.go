package fuzz_test

import "github.com/arqnet/kcp/internal/protect"

// What sessions say beyond the segments of script_test.go: signals (WIRE.md §5), the
// header of error correction (§4.2), and streams (§5.9). It is written down here a
// second time, independent of the package under test.

const (
	sigHello    = 1
	sigInfo     = 2
	sigConfirm  = 3
	sigFin      = 4
	sigClose    = 5
	sigPing     = 6
	sigCookie   = 7
	sigReset    = 8
	sigAbort    = 9
	sigProbe    = 10
	sigCrypto   = 12
	sigAlert    = 13
	sigResetKey = 14
	sigTie      = 15
	sigAnswer   = 0x80

	shardHeader   = 8
	shardData     = 0x00f1
	shardParity   = 0x00f2
	shardDatagram = 0x00f3

	cmdStream      = 86
	cmdStreamPiece = 87
)

// shard puts the header of error correction in front of content, which for parity is all
// that follows the type.
func shard(seqid uint32, kind uint16, content []byte) []byte {
	p := le.AppendUint32(nil, seqid)
	p = le.AppendUint16(p, kind)
	if kind != shardParity {
		p = le.AppendUint16(p, uint16(2+len(content)))
	}
	return append(p, content...)
}

// shardOf returns seqid and type of a packet with the header of error correction; false
// if it has none.
func shardOf(p []byte) (seqid uint32, kind uint16, ok bool) {
	if len(p) < shardHeader {
		return 0, 0, false
	}
	kind = le.Uint16(p[4:])
	return le.Uint32(p), kind, kind == shardData || kind == shardParity || kind == shardDatagram
}

// near returns one of the known numbers: as it is, one off, at a critical distance, or
// another number altogether.
func (a *attacker) near(known ...uint32) uint32 {
	base := one(a.random, known...)
	switch a.random.IntN(10) {
	case 0:
		return base + 1
	case 1:
		return base - 1
	case 2, 3:
		return base + one(a.random, critical[:]...)
	case 4:
		return base + uint32(a.random.IntN(256)) - 128
	case 5:
		return one[uint32](a.random, 0, 1, 1<<31-1, 1<<31, 1<<32-1)
	case 6:
		return a.random.Uint32()
	}
	return base
}

// window returns what to advertise.
func (a *attacker) window(s *speaker) uint16 {
	return one(a.random, s.wnd, s.wnd, s.wnd, s.wnd, uint16(a.random.Uint32()), one[uint16](a.random, 0, 1, 2, 65534, 65535))
}

// payload returns the content of a segment.
func (a *attacker) payload() []byte {
	return make([]byte, one(a.random, 0, a.random.IntN(40), a.random.IntN(40), a.random.IntN(40), a.random.IntN(1400)))
}

// fragment returns a frg: mostly that of a whole message.
func (a *attacker) fragment() byte {
	return one[byte](a.random, 0, 0, 0, 0, 0, byte(a.random.IntN(4)), one[byte](a.random, 126, 127, 128, 254, 255))
}

// forgeFor makes a packet for one end of c, in the name of the other.
func (a *attacker) forgeFor(c *dialogue) recorded {
	d := a.random.IntN(2)
	if a.isOwn(c.ends[d].addr) {
		d = other(d) // not to itself
	}
	self, target := &c.ends[other(d)], &c.ends[d]
	p := recorded{self.addr, target.addr, nil}
	if a.random.IntN(16) == 0 {
		p.from = one(a.random, a.own...)
	}
	if a.wire.tls {
		p.data = a.forgeTLS(c, d)
		return p
	}
	content := a.forgeSegments(c, d)
	if a.keys && self.numbered {
		p.data = a.wire.sealNumbered(c, other(d), content)
	} else {
		p.data = a.wire.seal(content)
	}
	return p
}

// forgeSegments makes the content of a packet for the end d of c.
func (a *attacker) forgeSegments(c *dialogue, d int) (p []byte) {
	count := one(a.random, 1, 1, 1, 1, 1+a.random.IntN(4), 1+a.random.IntN(50))
	for i := 0; i < count && len(p) < 50000; i++ {
		p = a.forgeSegment(c, d, p)
	}
	return a.mutate(a.envelope(&c.ends[other(d)], p, c.conv))
}

// forgeTLS makes a packet for the end d of c, of any level.
func (a *attacker) forgeTLS(c *dialogue, d int) []byte {
	end := other(d)
	n := a.random.IntN(32)
	if a.wire.log.keys(c, end, protect.Application, nil) == nil {
		if n = a.random.IntN(9); !a.lethal && a.random.IntN(16) > 0 {
			return nil // so that sessions come into being
		}
	}
	switch {
	case n == 0:
		return a.statelessReset(c, end)
	case n < 3:
		var p []byte
		if d == 1 {
			p = a.hello(c, p)
		}
		return a.mutate(sealInitial(c.ends[0].token, d == 1, a.crypto(&c.ends[end], p)))
	case n < 8:
		return a.sealTLS(c, end, protect.Handshake, a.mutate(a.crypto(&c.ends[end], nil)))
	case n == 8: // what is plain counts for nothing
		return a.forgeSegment(c, d, nil)
	}
	return a.sealTLS(c, end, protect.Application, a.forgeSegments(c, d))
}

// crypto puts CRYPTO behind p: bytes that were seen, or others.
func (a *attacker) crypto(self *speaker, p []byte) []byte {
	g := segment{cmd: cmdWins, frg: sigCrypto, wnd: 128}
	for _, s := range self.said {
		if s.frg == sigCrypto && s.cmd == cmdWins && a.random.IntN(2) == 0 {
			g = s
		}
	}
	if len(g.payload) == 0 || a.random.IntN(4) == 0 { // the head of a message, mostly
		g.payload = append([]byte{byte(a.random.IntN(25)), 0, byte(a.random.IntN(4)), 0}, a.payload()...)
	}
	g.payload = a.mutate(append([]byte(nil), g.payload[:min(len(g.payload), 1000)]...))
	g.ts = uint32(len(g.payload))
	switch a.random.IntN(8) {
	case 0:
		g.sn = a.near(g.sn, g.sn+uint32(a.random.IntN(70000)), 16384, 65536)
	case 1:
		g.una = a.near(g.una, uint32(a.random.IntN(2000)))
	case 2:
		g.ts = a.near(g.ts)
	case 3:
		g.frg, g.sn = sigAlert, a.near(0, 40, 256)
	}
	if len(p) > 0 {
		g.conv = le.Uint32(p)
	}
	return g.put(p)
}

// hello puts the dialler's hello behind p, with the newest cookie if there is one.
func (a *attacker) hello(c *dialogue, p []byte) []byte {
	say := func(cmd, code byte, sn, ts uint32) {
		p = segment{conv: c.conv, cmd: cmd, frg: code, wnd: 128, sn: sn, ts: ts}.put(p)
	}
	say(cmdWask, sigHello, 0, c.ends[0].token)
	for _, s := range c.ends[1].asked {
		if s.frg == sigCookie {
			say(cmdWins, sigCookie, s.sn, s.ts)
			break
		}
	}
	say(cmdWins, sigInfo, one[uint32](a.random, 1, 1, 2, 3), one(a.random, 1|2|4|8|32|64|128, 1|uint32(a.random.IntN(512)), a.random.Uint32()))
	if a.random.IntN(4) == 0 {
		say(cmdWins, sigTie, a.near(0, 1<<31), a.near(0, 1<<31))
	}
	return p
}

// forgeSegment puts a segment for the end d of c behind p.
func (a *attacker) forgeSegment(c *dialogue, d int, p []byte) []byte {
	r, self, target := a.random, &c.ends[other(d)], &c.ends[d]
	g := segment{ts: self.ts}
	switch n := r.IntN(100); {
	case n < 25 && len(self.said) > 0:
		g = a.again(one(r, self.said...))
	case n < 40:
		g.cmd, g.frg, g.payload = cmdPush, a.fragment(), a.payload()
		g.sn, g.ts = a.near(target.una, self.next, target.una+uint32(target.wnd)), a.near(self.ts)
	case n < 50:
		g.cmd, g.sn, g.ts = cmdAck, a.near(target.next-1, self.una, target.next-1-uint32(r.IntN(64))), a.near(target.ts)
		if a.keys {
			g.frg = a.fragment()
		}
	case n < 60:
		g.cmd, g.frg, g.sn, g.ts = cmdPiece, a.fragment(), a.near(target.una, self.next, target.una+uint32(target.wnd)), a.near(self.ts)
		g.payload = a.piece(make([]byte, one(r, 1, 2, 63, 64, 65, 1376, 4033, 9000, 65535, 1+r.IntN(65535))))
	case n < 75:
		g.cmd, g.sn, g.ts = cmdStream, a.near(target.una, self.next, self.next), a.near(self.ts)
		if g.payload = a.stream(self, target); r.IntN(8) == 0 {
			g.cmd, g.payload = cmdStreamPiece, a.piece(g.payload)
		}
	case n < 96:
		g = a.signal(self, target)
	case n < 98 && d == 1:
		return a.hello(c, p)
	default:
		g.cmd, g.frg, g.sn, g.ts, g.payload = byte(r.Uint32()), byte(r.Uint32()), a.near(self.next), a.near(self.ts), a.payload()
	}
	g.conv, g.wnd, g.size = c.conv, a.window(self), 0
	switch r.IntN(4) {
	case 0:
		g.una = target.next // acknowledges all
	case 1:
		g.una = a.near(self.una, target.next)
	default:
		g.una = self.una
	}
	if r.IntN(50) == 0 {
		g.size = a.near(uint32(len(g.payload)))
	}
	if r.IntN(50) == 0 {
		g.conv = a.near(g.conv)
	}
	if (g.cmd == cmdPush || g.cmd == cmdStream) && g.sn == self.next {
		self.next++
	}
	return g.put(p)
}

// again is a segment that was said, with other numbers.
func (a *attacker) again(g segment) segment {
	g.payload = append([]byte(nil), g.payload...)
	for range a.random.IntN(3) {
		switch n := len(g.payload); a.random.IntN(5) {
		case 0:
			g.sn = a.near(g.sn)
		case 1:
			g.ts = a.near(g.ts)
		case 2:
			g.frg ^= 1 << a.random.IntN(8)
		case 3:
			if n > 8 {
				at := a.random.IntN(min(n-4, 20))
				le.PutUint32(g.payload[at:], a.near(le.Uint32(g.payload[at:])))
			}
		default:
			g.payload = a.mutate(g.payload)
		}
	}
	if a.mustNotEnd(g) {
		g.frg = sigPing
	}
	return g
}

// mustNotEnd reports whether g would end a session, and is not to.
func (a *attacker) mustNotEnd(g segment) bool {
	if a.lethal || a.random.IntN(20) == 0 || g.cmd != cmdWask && g.cmd != cmdWins {
		return false
	}
	code := g.frg &^ sigAnswer
	return code == sigReset || code == sigAbort || code == sigClose || code == sigFin || code == sigAlert
}

// signal returns any signal, its arguments near what is known, or an answer.
func (a *attacker) signal(self, target *speaker) (g segment) {
	r := a.random
	known := []uint32{self.token, target.token, self.next, self.final, target.una, target.next, target.final, 0, 1400}
	g = segment{frg: byte(r.IntN(18)), sn: one(r, known...), ts: one(r, known...)}
	if r.IntN(2) == 0 {
		g.sn, g.ts = a.near(known...), a.near(known...)
	}
	switch n := r.IntN(8); {
	case n < 3 && len(target.asked) > 0:
		q := one(r, target.asked...)
		if g = (segment{frg: q.frg | sigAnswer, sn: q.sn, ts: q.ts}); q.frg == sigHello {
			g.sn = self.token
		} else if a.lethal && r.IntN(4) == 0 {
			g.frg = sigReset
		}
	case n == 3: // that ends the session in order
		g = segment{frg: one[byte](r, sigFin, sigClose), sn: one(r, self.next, target.una), ts: target.token}
	case n == 4:
		g = segment{frg: one[byte](r, sigHello, sigConfirm, sigPing), sn: one(r, target.token, 0), ts: self.token}
	case n == 5 && self.resetKey != nil:
		g = *self.resetKey
	case n == 6:
		g.frg = one(r, g.frg|sigAnswer, byte(r.Uint32()))
	}
	switch g.cmd = cmdWins; g.frg {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		g.cmd = cmdWask
	}
	switch {
	case g.frg == sigProbe:
		g.ts = uint32(headerSize + r.IntN(1500))
		g.payload = make([]byte, g.ts-headerSize)
	case g.frg == sigResetKey && g.payload == nil:
		g.payload = make([]byte, one(r, 16, 16, r.IntN(40)))
	case g.frg == sigClose && r.IntN(2) == 0:
		g.payload = append(le.AppendUint64(nil, r.Uint64()), make([]byte, r.IntN(260))...)
	case g.frg == sigCrypto:
		g.payload = a.payload()
	}
	if a.mustNotEnd(g) {
		g.frg = sigPing
	}
	return g
}

// piece returns the payload of a part of a segment.
func (a *attacker) piece(whole []byte) []byte {
	r, size := a.random, len(whole)
	unit := max(1, (size+63)/64)
	at := unit * r.IntN(max(1, size/unit))
	end := min(size, at+unit*(1+r.IntN(4)), at+1400/unit*unit)
	switch r.IntN(8) {
	case 0:
		at += r.IntN(3) - 1
	case 1:
		end += r.IntN(3) - 1
	case 2, 3:
		at, end = 0, min(size, 20*unit, 1400) // the first of few
	}
	p := le.AppendUint16(nil, uint16(at))
	p = le.AppendUint16(p, uint16(size))
	return append(p, make([]byte, max(end-at, 0))...)
}

// stream returns the payload of a segment of a stream that self might send.
func (a *attacker) stream(self, target *speaker) []byte {
	r := a.random
	id, mid := 1+uint32(r.IntN(20)), uint32(r.IntN(3))
	for _, s := range append(self.said, target.said...) {
		if s.cmd == cmdStream && len(s.payload) >= 9 && r.IntN(4) == 0 {
			id, mid = le.Uint32(s.payload), le.Uint32(s.payload[5:])
			if s.payload[4]&0x20 != 0 && len(s.payload) >= 17 {
				mid = le.Uint32(s.payload[13:])
			}
		}
	}
	first := one[byte](r, 0, 0, 0, 8, 8, 8, 0x10, 0x18, 1, 9, 2, 3, 4, 5, 5, 6, 7) // kind and flags
	if kind := first & 7; !a.lethal && (kind == 3 || kind == 4) && r.IntN(8) > 0 {
		first = 8
	}
	if first == 6 || r.IntN(2) == 0 {
		first |= 0x20
	}
	if r.IntN(30) == 0 {
		first ^= 1 << r.IntN(8)
	}
	p := append(le.AppendUint32(nil, one(r, id, id, id, a.near(id, id+2, 0))), first)
	if first&0x20 != 0 { // options
		p = append(p, byte(r.IntN(2)), byte(r.IntN(18)-9))
		p = le.AppendUint16(p, uint16(r.IntN(4)))
		p = le.AppendUint32(p, uint32(r.IntN(3)*r.IntN(2000)))
	}
	p = le.AppendUint32(p, a.near(mid, mid+1, mid+1, mid+2, 0, 65536))
	switch first & 7 {
	case 0:
		if first&0x10 != 0 {
			p = le.AppendUint32(p, a.near(0, 1, 2))
		}
		p = append(p, a.payload()...)
	case 1:
		p = le.AppendUint16(p, uint16(a.near(65535, 0, 100)))
	case 3, 4:
		p = le.AppendUint32(p, a.near(0, 7))
	}
	return p
}

// envelope puts p into the header of error correction, now and then, or replaces it by
// parity or a datagram.
func (a *attacker) envelope(self *speaker, p []byte, conv uint32) []byte {
	rare := 16
	if self.hasShard {
		rare = 2
	}
	if a.random.IntN(rare) > 0 {
		return p
	}
	// Distances that tell of ratios, besides those that break comparisons.
	seqid := a.near(self.seqid, self.seqid+uint32(a.random.IntN(20)), 1<<32-2-uint32(a.random.IntN(600)))
	switch a.random.IntN(6) {
	case 0, 1:
		return shard(seqid, shardParity, make([]byte, one(a.random, 2+len(p), a.random.IntN(200))))
	case 2:
		return shard(a.near(1<<32-1), shardDatagram, append(le.AppendUint32(nil, conv), a.payload()...))
	}
	s := shard(seqid, shardData, p)
	if a.random.IntN(8) == 0 {
		le.PutUint16(s[6:], uint16(a.near(uint32(le.Uint16(s[6:])))))
	}
	return s
}

// mutate damages some packets.
func (a *attacker) mutate(p []byte) []byte {
	if len(p) == 0 {
		return p
	}
	switch a.random.IntN(24) {
	case 0:
		return p[:a.random.IntN(len(p))]
	case 1, 2:
		for range 1 + a.random.IntN(4) {
			p[a.random.IntN(len(p))] ^= 1 << a.random.IntN(8)
		}
	case 3:
		return append(p, make([]byte, a.random.IntN(60))...)
	case 4:
		return append(p, p...)
	}
	return p
}
