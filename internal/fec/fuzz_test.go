package fec

import (
	"bytes"
	"hash/fnv"
	"math/rand/v2"
	"testing"
)

// Operations of FuzzDecode, the low bits of a byte; the high ones are an
// argument.
const (
	opRaw     = iota // a packet made of the bytes that follow
	opSend           // the next packets of a sender arrive
	opLose           // the next one is lost
	opFlip           // a bit of it is flipped
	opHold           // it arrives later, after opRelease
	opRelease        // what was held arrives, last first
	opWait           // time passes
	opCompact
	opCount
)

// FuzzDecode feeds a Decoder with any packets, in between those of a sender, and
// then has it learn and repair the clean stream of another sender.
func FuzzDecode(f *testing.F) {
	whole := []byte{opSend | 7<<3, opSend | 31<<3, opLose, opSend | 31<<3}
	f.Add(byte(4), byte(0), whole)
	f.Add(byte(5), byte(2), append(bytes.Clone(whole), opFlip|3<<3, 17, opSend|31<<3, opHold|3<<3, opSend|31<<3, opRelease))
	f.Add(byte(6), byte(1), append(bytes.Clone(whole), opWait|31<<3, opLose|2<<3, opSend|9<<3, opCompact, opSend|31<<3))
	f.Add(byte(0), byte(0), []byte{opRaw | 12<<3, 0, 0, 0, 0, 0xf1, 0, 6, 0, 1, 2, 3, 4, opRaw | 12<<3, 1, 0, 0, 0, 0xf2, 0, 6, 0, 1, 2, 3, 4})
	f.Add(byte(1), byte(3), []byte{opRaw | 9<<3, 0xff, 0xff, 0xff, 0xff, 0xf3, 0, 3, 0, 0, opRaw | 3<<3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, first, second byte, script []byte) {
		if len(script) > 1<<12 {
			return
		}
		from := newSender(t, ratios[int(first)%len(ratios)], 1)
		to := newSender(t, ratios[int(second)%len(ratios)], 2)
		from.longest, to.longest = 40, 40
		h := fnv.New32()
		h.Write(script)
		to.random = rand.New(rand.NewPCG(uint64(h.Sum32()), 1))
		d := NewDecoder()
		runScript(t, d, from, script)
		r := newReceiver(to)
		r.dec = d
		requireRepair(t, r, to.enc.code.ratio)
	})
}

// runScript has d decode what the script says.
func runScript(t *testing.T, d *Decoder, from *sender, script []byte) {
	var queue, kept [][]byte // packets of the sender, and those on hold
	var now uint32
	next := func() []byte {
		if len(queue) == 0 {
			queue = from.packet()
		}
		p := queue[0]
		queue = queue[1:]
		return p
	}
	for len(script) > 0 {
		op, arg := script[0]%opCount, int(script[0]/opCount)
		script = script[1:]
		switch op {
		case opRaw:
			n := min(arg, len(script))
			decodeAny(t, d, bytes.Clone(script[:n]), now)
			script = script[n:]
		case opSend:
			for range arg + 1 {
				decodeAny(t, d, bytes.Clone(next()), now)
			}
		case opLose:
			next()
		case opFlip:
			p := bytes.Clone(next())
			if len(script) > 0 {
				bit := (int(script[0]) | arg<<8) % (8 * len(p))
				p[bit/8] ^= 1 << (bit % 8)
			}
			decodeAny(t, d, p, now)
		case opHold:
			for range arg + 1 {
				kept = append(kept, next())
			}
		case opRelease:
			for i := len(kept) - 1; i >= 0; i-- {
				decodeAny(t, d, bytes.Clone(kept[i]), now)
			}
			kept = nil
		case opWait:
			now += uint32(1) << arg
		case opCompact:
			d.Compact()
		}
		checkAccounts(t, d)
	}
}

// decodeAny decodes a packet that may be anything and checks what can be said of
// every packet.
func decodeAny(t *testing.T, d *Decoder, p []byte, now uint32) {
	before := d.Stats()
	payload, kind, err := d.Decode(p, now, func(packet []byte) {
		if len(packet) > maxShard-sizeSize {
			t.Fatalf("recovered %d bytes", len(packet))
		}
	})
	after := d.Stats()
	ok := err == nil && IsFEC(p) && sizeMatches(p) && bytes.Equal(payload, p[HeaderSize:])
	switch kind {
	case KindNone:
		before.Held = after.Held
		ok = err != nil && payload == nil && before == after
	case KindParity:
		ok = payload == nil && IsFEC(p) && (err == nil || err == ErrReplay)
	}
	if !ok {
		t.Fatalf("%x: kind %d, payload %x, error %v", p, kind, payload, err)
	}
	if d.pool.held > 2*maxHeld || d.bytes > maxPending {
		t.Fatalf("%d bytes held, %d pending", d.pool.held, d.bytes)
	}
}

// FuzzRoundTrip sends packets of any sizes at any ratio over a link that loses,
// repeats and displaces them, and checks that what can be recovered is.
func FuzzRoundTrip(f *testing.F) {
	f.Add(byte(10), byte(3), uint16(1400), byte(20), byte(9), uint32(0), uint64(1))
	f.Add(byte(1), byte(1), uint16(30), byte(100), byte(0), uint32(5), uint64(2))
	f.Add(byte(20), byte(10), uint16(500), byte(60), byte(40), uint32(0xffffffff), uint64(3))
	f.Add(byte(3), byte(1), uint16(4), byte(30), byte(255), uint32(1<<31), uint64(4))
	f.Add(byte(200), byte(56), uint16(90), byte(20), byte(100), uint32(77), uint64(5))
	for i, r := range ratios {
		f.Add(byte(r.data), byte(r.parity), uint16(300), byte(5+50*(i%3)), byte(30), uint32(0), uint64(i))
	}
	f.Fuzz(func(t *testing.T, data, parity byte, longest uint16, loss, spread byte, start uint32, seed uint64) {
		r := ratio{int(data), int(parity)}
		if r.validate() != nil || longest < 4 || int(longest)*int(r.size()) > 1<<18 {
			return
		}
		s := newSender(t, r, seed)
		s.longest = int(longest)
		s.enc.next = start % (r.limit() / r.size()) * r.size()
		rcv := newReceiver(s)
		rcv.learn()

		sent := s.groups(300/int(r.size()) + 2)
		group := make(map[uint32]uint32)
		for _, p := range sent {
			if isData(p) {
				group[number(p)] = packetSeqID(p) / r.size()
			}
		}
		// However packets are displaced by this much, no group is in use for so
		// long that the window has passed on.
		shuffle(s.random, sent, 1+min(int(spread), windowShards/4))
		arrived := map[uint32]int{}
		wary := map[uint32]bool{} // groups that a gap of hundreds of shards touched
		for _, p := range sent {
			if s.random.IntN(256) < int(loss) {
				continue
			}
			arrived[packetSeqID(p)/r.size()]++
			rcv.feed(p)
			if !rcv.dec.trusted() {
				wary[packetSeqID(p)/r.size()] = true
			}
			for copies := s.random.IntN(20); copies > 17; copies-- {
				rcv.feed(p)
			}
		}
		for n, g := range group {
			if arrived[g] >= r.data && rcv.got[n] == 0 && !wary[g] {
				t.Fatalf("packet %d of group %d is not recovered at %v", n, g, r)
			}
		}
		if stats := rcv.dec.Stats(); stats.Corrupt != 0 || stats.Mismatched != 0 {
			t.Fatalf("%+v", stats)
		}
		checkAccounts(t, rcv.dec)
	})
}
