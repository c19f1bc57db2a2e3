package fuzz_test

import "net/netip"

// near returns one of the known numbers: as it is, one off, at a critical
// distance, or another number altogether.
func (a *attacker) near(known ...uint32) uint32 {
	base := known[a.random.IntN(len(known))]
	switch a.random.IntN(10) {
	case 0:
		return base + 1
	case 1:
		return base - 1
	case 2, 3:
		return base + critical[a.random.IntN(len(critical))]
	case 4:
		return base + uint32(a.random.IntN(256)) - 128
	case 5:
		return [5]uint32{0, 1, 1<<31 - 1, 1 << 31, 1<<32 - 1}[a.random.IntN(5)]
	case 6:
		return a.random.Uint32()
	}
	return base
}

// window returns what to advertise.
func (a *attacker) window(s *speaker) uint16 {
	switch a.random.IntN(6) {
	case 0:
		return [5]uint16{0, 1, 2, 65534, 65535}[a.random.IntN(5)]
	case 1:
		return uint16(a.random.Uint32())
	}
	return s.wnd
}

// payload returns the content of a segment.
func (a *attacker) payload() []byte {
	n := a.random.IntN(40)
	switch a.random.IntN(8) {
	case 0:
		n = 0
	case 1:
		n = a.random.IntN(1400)
	}
	return make([]byte, n)
}

// forgeFor makes a packet for one end of c, in the name of the other.
func (a *attacker) forgeFor(c *conversationSeen) recorded {
	d := a.random.IntN(2)
	for _, own := range a.own {
		if c.ends[d].addr == own {
			d = other(d) // not to itself
		}
	}
	if a.wire.tls != nil {
		if p, ok := a.forgeTLS(c, d); ok {
			return recorded{c.ends[other(d)].addr, c.ends[d].addr, p}
		}
	}
	count := 1
	switch a.random.IntN(6) {
	case 0:
		count += a.random.IntN(4)
	case 1:
		count += a.random.IntN(50)
	}
	var p []byte
	for i := 0; i < count && len(p) < 50000; i++ {
		p = a.forgeSegment(c, d, p)
	}
	self, from := &c.ends[other(d)], c.ends[other(d)].addr
	p = a.mutate(a.envelope(self, p, c.conv))
	if a.random.IntN(16) == 0 {
		from = [3]netip.AddrPort{a.own[0], a.own[1], netip.AddrPortFrom(from.Addr(), from.Port()+1)}[a.random.IntN(3)]
	}
	return recorded{from, c.ends[d].addr, a.seal(c, other(d), p)}
}

// forgeSegment puts a segment for the end d of c behind p.
func (a *attacker) forgeSegment(c *conversationSeen, d int, p []byte) []byte {
	self, target := &c.ends[other(d)], &c.ends[d]
	g := segment{conv: c.conv, wnd: a.window(self), una: self.una, ts: self.ts}
	switch a.random.IntN(4) {
	case 0:
		g.una = target.next // acknowledges all
	case 1:
		g.una = a.near(self.una, target.next)
	}
	switch n := a.random.IntN(100); {
	case a.streams && n%3 == 0:
		a.stream(&g, self, target)
	case n < 20:
		g.cmd, g.payload = cmdPush, a.payload()
		g.sn, g.ts = a.near(target.una, self.next, target.una+uint32(target.wnd)), a.near(self.ts)
		g.frg = a.fragment()
	case n < 35:
		g.cmd = cmdAck
		g.sn, g.ts = a.near(target.next-1, self.una, target.next-1-uint32(a.random.IntN(64))), a.near(target.ts)
		if a.insider {
			g.frg = a.fragment()
		}
	case n < 45:
		g.cmd = cmdWask + byte(a.random.IntN(2))
		g.sn, g.ts = a.near(target.una), a.near(target.ts)
	case n < 60:
		a.piece(&g, self, target)
	case n < 80:
		g.say(a.plausible(self, target))
		if a.insider {
			a.extend(&g, self, target)
		}
	case n < 95:
		g.say(a.signal(self, target))
	case n < 97 && d == 1:
		return a.hello(c, p)
	default:
		g.cmd, g.frg = byte(a.random.Uint32()), byte(a.random.Uint32())
		g.sn, g.ts, g.payload = a.near(self.next), a.near(self.ts), a.payload()
	}
	if a.random.IntN(50) == 0 {
		g.size = a.near(uint32(len(g.payload)))
	}
	if a.random.IntN(50) == 0 {
		g.conv = a.near(g.conv)
	}
	if (g.cmd == cmdPush || g.cmd == cmdStream) && g.sn == self.next {
		self.next++
	}
	return g.put(p)
}

// say makes g carry a signal.
func (g *segment) say(s signal) {
	g.cmd, g.frg, g.sn, g.ts = s.cmd(), s.code, s.sn, s.ts
	if s.code == sigProbe && s.ts > headerSize && s.ts < 2000 {
		g.payload = make([]byte, s.ts-headerSize)
	}
}

// extend gives a signal what some have besides, or replaces it by one that only
// some ends know.
func (a *attacker) extend(g *segment, self, target *speaker) {
	if g.frg == sigClose && a.random.IntN(2) == 0 {
		g.payload = le.AppendUint64(nil, a.random.Uint64())
		g.payload = append(g.payload, make([]byte, a.random.IntN(260))...)
		for i := range g.payload[8:] {
			g.payload[8+i] = byte(a.random.Uint32())
		}
		return
	}
	switch a.random.IntN(12) {
	case 0:
		g.say(signal{sigToken, target.token, self.token})
	case 1:
		g.say(signal{sigResetKey, a.near(0, 946684800), a.random.Uint32()})
		g.payload = make([]byte, max(0, 16+a.random.IntN(12)/11*(a.random.IntN(30)-16)))
		if a.random.IntN(2) == 0 && self.resetKey != nil {
			g.sn, g.ts, g.payload = self.resetKey.sn, self.resetKey.ts, self.resetKey.payload
		}
	case 2:
		g.say(signal{sigCrypto, 0, 0})
		a.crypto(g, self, target)
	case 3:
		if a.lethal {
			g.say(signal{sigAlert, a.near(0, 40, 256), target.token})
		}
	}
}

// forgeTLS makes a packet of TLS for the end d of c that is not under the
// application keys, or no packet of theirs; false if it is to be another.
func (a *attacker) forgeTLS(c *conversationSeen, d int) ([]byte, bool) {
	end := other(d)
	n := a.random.IntN(32)
	if a.wire.tls.protection(c, end, levelApplication) == nil {
		if n = a.random.IntN(8); !a.lethal && a.random.IntN(8) > 0 {
			return nil, true // so that sessions come into being
		}
	}
	switch {
	case n == 0:
		return a.statelessReset(c, end), true
	case n < 3:
		return sealInitial(a.mutate(a.flight(c, d, -1))), true
	case n < 8:
		return a.sealTLS(c, end, levelHandshake, a.mutate(a.flight(c, d, levelHandshake))), true
	case n == 8: // what is plain counts for nothing
		return a.forgeSegment(c, d, nil), true
	}
	return nil, false
}

// fragment returns a frg: mostly that of a whole message.
func (a *attacker) fragment() byte {
	switch a.random.IntN(6) {
	case 0:
		return byte(a.random.IntN(4))
	case 1:
		return [6]byte{126, 127, 128, 254, 255, 1}[a.random.IntN(6)]
	}
	return 0
}

// piece makes g a part of a segment.
func (a *attacker) piece(g *segment, self, target *speaker) {
	g.cmd, g.frg = cmdPiece, a.fragment()
	g.sn, g.ts = a.near(target.una, target.una+uint32(target.wnd), self.next), a.near(self.ts)
	size := [10]int{1, 2, 63, 64, 65, 1376, 4033, 9000, 65535, 1 + a.random.IntN(65535)}[a.random.IntN(10)]
	unit := (size + 63) / 64
	units := (size + unit - 1) / unit
	at := a.random.IntN(units) * unit
	end := min(size, at+unit*(1+a.random.IntN(4)))
	if a.random.IntN(3) == 0 {
		at, end = 0, min(size, 20*unit) // the first of few
	}
	end = min(end, at+1400/unit*unit)
	switch a.random.IntN(8) {
	case 0:
		at += a.random.IntN(3) - 1
	case 1:
		end += a.random.IntN(3) - 1
	case 2:
		at = int(a.near(0, uint32(size)) & 0xffff)
	}
	g.payload = le.AppendUint16(nil, uint16(at))
	g.payload = le.AppendUint16(g.payload, uint16(size))
	g.payload = append(g.payload, make([]byte, min(max(end-at, 0), 9000))...)
}

// plausible returns a signal that self might say to target now.
func (a *attacker) plausible(self, target *speaker) signal {
	if n := len(target.asked); n > 0 && a.random.IntN(2) == 0 {
		s := target.asked[a.random.IntN(n)]
		switch {
		case s.code == sigHello:
			return signal{sigHello | sigAnswer, self.token, s.ts}
		case a.lethal && a.random.IntN(4) == 0:
			return signal{sigReset, s.sn, s.ts}
		}
		return s.answer()
	}
	all := []signal{
		{sigInfo, 1, uint32(a.random.IntN(2)) | a.capabilities()},
		{sigConfirm, target.token, self.token},
		{sigPing, a.random.Uint32(), a.random.Uint32()},
		{sigProbe, a.random.Uint32(), uint32(headerSize + a.random.IntN(1500))},
		{sigCookie, a.random.Uint32(), a.random.Uint32()},
		{sigTie, a.near(0), a.near(0)},
		{sigHello, 0, self.token},
		{sigHello | sigAnswer, self.token, target.token},
	}
	if a.lethal || a.random.IntN(20) == 0 {
		all = append(all, []signal{
			{sigFin, self.next, target.token}, {sigClose, self.next, target.token},
			{sigFin, target.una, target.token}, {sigClose, target.una, target.token},
			{sigAbort, target.token, 0}, {sigFin | sigAnswer, target.final, self.token},
			{sigClose | sigAnswer, target.final, self.token},
		}...)
	}
	return all[a.random.IntN(len(all))]
}

// signal returns any signal, its arguments near what is known.
func (a *attacker) signal(self, target *speaker) signal {
	code := byte(a.random.IntN(sigTie + 2))
	switch a.random.IntN(4) {
	case 0:
		code |= sigAnswer
	case 1:
		code = byte(a.random.Uint32())
	}
	known := []uint32{self.token, target.token, self.next, self.final, target.una, target.next, target.final, 0, 1400}
	for _, s := range target.asked {
		known = append(known, s.sn, s.ts)
	}
	s := signal{code, a.near(known...), a.near(known...)}
	if n := len(target.asked); n > 0 && a.random.IntN(3) == 0 {
		q := target.asked[a.random.IntN(n)]
		s.sn, s.ts = q.sn, q.ts
	}
	fatal := s.code == sigReset || s.code == sigAbort || s.code&^sigAnswer == sigClose || s.code&^sigAnswer == sigFin
	if fatal && !a.lethal && a.random.IntN(20) > 0 {
		s.code = sigPing
	}
	return s
}

// envelope puts p into the header of error correction, now and then, or
// replaces it by parity or a datagram.
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
		n := a.random.IntN(200)
		if a.random.IntN(2) == 0 {
			n = 2 + len(p)
		}
		return shard(seqid, shardParity, make([]byte, n))
	case 2:
		content := le.AppendUint32(nil, conv)
		return shard(a.near(1<<32-1), shardDatagram, append(content, a.payload()...))
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

// forgeBlind makes a packet in the name of an address to which the attacker
// sees nothing, with what can be known then: what it has said itself.
func (a *attacker) forgeBlind() recorded {
	var b *blindSource
	if n := len(a.blinds); n > 0 && (n == 200 || a.random.IntN(6) > 0) {
		b = a.blinds[max(0, n-1-a.random.IntN(8))]
	} else {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 66, byte(n >> 8), byte(n)}), 1000)
		b = &blindSource{addr: addr, conv: a.random.Uint32()}
		a.blinds, a.blind[addr] = append(a.blinds, b), b
	}
	// What it would see of the other end, if all went as it supposes.
	self, target := speaker{next: 1, wnd: 128, token: b.conv}, speaker{next: b.ladder, una: 1, wnd: 128, token: a.random.Uint32()}
	var p []byte
	switch n := a.random.IntN(10); {
	case b.received == 0 && n < 5:
		p = segment{conv: b.conv, cmd: cmdPush, wnd: 512, payload: a.payload()}.put(nil)
	case b.received == 0:
		p = segment{conv: b.conv, cmd: cmdWask, frg: sigHello, wnd: 512, ts: self.token}.put(nil)
		if n < 7 {
			p = segment{conv: b.conv, cmd: cmdPush, wnd: 512, payload: a.payload()}.put(p)
		}
	case n < 5:
		b.ladder += uint32(a.random.IntN(3))
		p = segment{conv: b.conv, cmd: cmdWins, wnd: a.window(&self), una: b.ladder}.put(nil)
		p = segment{conv: b.conv, cmd: cmdAck, wnd: 512, sn: b.ladder, una: b.ladder, ts: a.near(0, 100)}.put(p)
	case n < 7:
		p = segment{conv: b.conv, cmd: cmdPush, wnd: 512, sn: a.near(1), payload: a.payload()}.put(nil)
	default:
		g := segment{conv: b.conv, wnd: 512, una: b.ladder}
		g.say(a.signal(&self, &target))
		p = a.envelope(&self, g.put(nil), b.conv)
	}
	if a.wire.tls != nil {
		c := &conversationSeen{conv: b.conv}
		c.ends[0].token = self.token
		if n := len(a.order); n > 0 {
			c.ends[0].crypto = a.order[a.random.IntN(n)].ends[0].crypto
		}
		p = sealInitial(a.flight(c, 1, -1))
	}
	p = a.wire.seal(p)
	b.received += len(p)
	return recorded{b.addr, a.server, p}
}
