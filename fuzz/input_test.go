package fuzz_test

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	kcp "github.com/arqnet/kcp/internal/machine"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/stats"
)

// rig is a live state machine under attack. It talks to an honest peer over a
// perfect link, while the script slips in packets of its own. A twin is given
// the same but for packets that must have no effect, and has to do the same.
type rig struct {
	t              testing.TB
	k, twin, peer  *kcp.KCP
	mtu            int
	out, twinOut   [][]byte // put out by k and twin since they were compared
	toPeer, toK    [][]byte
	now            uint32
	stream, pieces bool
	honest         bool      // no forged segment has taken effect so far
	last           segment   // the head of the last packet that k has put out
	model          receiver  // what k must do with what it gets
	sent, received [2]uint64 // bytes; 0: from k to the peer, 1: from the peer to k
}

// starts are clocks of which some come around soon.
var starts = [8]uint32{0, 1<<32 - 1, 1<<32 - 100, 1<<32 - 5000, 1<<32 - 60000, 1<<31 - 100, 1<<31 - 30000, 1000}

// watched is a congestion controller that checks what it is told.
type watched struct {
	congestion.Control
	rig *rig
}

func (w watched) OnTick(s *congestion.State) {
	if s.Now != w.rig.now {
		w.rig.t.Fatalf("the controller is told that it is %d, at %d", s.Now, w.rig.now)
	}
	w.Control.OnTick(s)
}

// newRig reads the settings at the start of a script.
func newRig(t testing.TB, s *script) *rig {
	flags, more := s.byte(), s.byte()
	r := &rig{t: t, stream: flags&1 > 0, honest: true}
	r.pieces = flags>>6&1 > 0
	r.mtu = [4]int{1400, 50, 100, 600}[flags>>1&3]
	r.now = starts[flags>>3&7]
	r.k = kcp.New(conversation, func(p []byte) { r.out = append(r.out, bytes.Clone(p)) })
	r.twin = kcp.New(conversation, func(p []byte) { r.twinOut = append(r.twinOut, bytes.Clone(p)) })
	r.peer = kcp.New(conversation, func(p []byte) { r.toK = append(r.toK, bytes.Clone(p)) })
	x := kcp.Extensions{}
	if r.pieces {
		x = kcp.Extensions{
			StrictRTT: true, FreshFastAck: true, LimitToPeerWindow: true, FreshWindow: true,
			MaxRTO: 1000, MaxProbeWait: 1000, ProbeWait: 100, TakePieces: true,
		}
	}
	for _, k := range []*kcp.KCP{r.k, r.twin, r.peer} {
		k.SetStream(r.stream)
		k.SetExtensions(x)
		k.SetNoDelay(kcp.NoDelay(more & 3))
		k.SetFastResend(uint32(more >> 2 & 3))
		c := congestion.NewReference()
		if flags>>7 > 0 {
			c = congestion.NewNone()
		}
		k.SetCongestionControl(watched{c, r})
		r.model = receiver{window: [4]int{128, 129, 300, 65536}[more>>6], early: make(map[uint32]fragment)}
		err := k.SetWindow([4]int{32, 1, 4, 128}[more>>4&3], r.model.window)
		if err == nil {
			err = k.SetMTU(r.mtu)
		}
		if err == nil {
			err = k.SetInterval(10)
		}
		if err != nil {
			t.Fatal(err)
		}
		k.Update(r.now)
	}
	return r
}

// attack runs a script.
func attack(t testing.TB, data []byte) {
	s := &script{data: data[:min(len(data), 4096)]}
	r := newRig(t, s)
	for !s.done() {
		b := s.byte()
		switch x := b >> 3; b & 7 {
		case 0:
			r.exchange(1 + uint32(x))
		case 1:
			r.send(r.k, r.twin, 0, int(x)*int(x))
		case 2:
			r.send(r.peer, nil, 1, int(x)*int(x))
		case 3:
			r.readAll()
			if x&1 > 0 {
				r.k.Compact()
				r.twin.Compact()
				r.model.heard = false
			}
		default:
			r.assault(s, x)
		}
		r.compare()
	}
	for i := 0; i < 20 || i < 2000 && r.honest && r.received != r.sent; i++ {
		r.exchange(10)
		r.readAll()
		r.compare()
	}
	if c := r.k.Counters(); r.honest && (r.received != r.sent || [2]uint64{c.BytesSent, c.BytesReceived} != r.sent) {
		t.Fatalf("of %v bytes %v arrived, although nothing forged was taken: %+v", r.sent, r.received, c)
	}
	r.checkAlive()
}

// checkAlive fails where the attack has jammed the receiver: with everything
// read, its window is open, and it takes the next message and hands it up.
func (r *rig) checkAlive() {
	una := uint32(r.k.Counters().SegmentsSent)
	r.inject(forge(cmdWask, 0, 0, una), false)
	if packets, _ := r.flush(); packets == 0 || r.last.wnd == 0 {
		r.t.Fatal("the window is shut for good")
	}
	r.inject(forge(cmdPush, 0, r.last.una, una), false)
	if r.k.PeekSize() < 0 {
		r.t.Fatalf("segment %d, which was next, is not handed up", r.last.una)
	}
	r.compare()
}

// exchange lets ms pass, updates all and carries packets until none is left.
func (r *rig) exchange(ms uint32) {
	r.now += ms
	r.k.Update(r.now)
	r.twin.Update(r.now)
	r.peer.Update(r.now)
	r.compare()
	for _, p := range r.toPeer {
		if err := r.peer.Input(p); err != nil && (r.honest || err != kcp.ErrForgedUna) {
			r.t.Fatalf("the peer refuses what it gets: %v", err)
		}
	}
	r.toPeer = r.toPeer[:0]
	for _, p := range r.toK {
		r.inject(p, false)
	}
	r.compare()
	r.toK = r.toK[:0]
}

// send queues a message of the given direction, at k as at its twin.
func (r *rig) send(k, twin *kcp.KCP, direction, size int) {
	if k.WaitSend() > 300 {
		return
	}
	p := make([]byte, size)
	fill(p, uint64(direction), r.sent[direction])
	n, err := k.Send(p)
	if twin != nil {
		if m, twinErr := twin.Send(p); m != n || err != twinErr {
			r.t.Fatalf("Send: %d, %v; its twin: %d, %v", n, err, m, twinErr)
		}
	}
	if err != nil && err != kcp.ErrMessageTooLarge {
		r.t.Fatal(err)
	}
	r.sent[direction] += uint64(n)
}

// readAll reads what k, its twin and the peer have.
func (r *rig) readAll() {
	for r.k.PeekSize() >= 0 {
		p := r.read(r.k, 1)
		if !bytes.Equal(p, r.read(r.twin, -1)) {
			r.t.Fatal("the twin reads something else")
		}
		if want, ok := r.model.peek(); !ok || !bytes.Equal(p, want) {
			r.t.Fatalf("read %x, want %x", p, want)
		}
		r.model.pop()
	}
	for r.peer.PeekSize() >= 0 {
		r.read(r.peer, 0)
	}
}

// read reads one message, and checks it unless direction is -1. Contents can
// be relied on until something forged was taken.
func (r *rig) read(k *kcp.KCP, direction int) []byte {
	size := k.PeekSize()
	p := make([]byte, max(size, 0))
	n, err := k.Recv(p)
	if n != size || err != nil {
		r.t.Fatalf("Recv of %d bytes: %d, %v", size, n, err)
	}
	if direction < 0 || !r.honest {
		return p
	}
	if at := differs(p, uint64(direction), r.received[direction]); at >= 0 {
		r.t.Fatalf("direction %d: byte %d is wrong", direction, r.received[direction]+uint64(at))
	}
	r.received[direction] += uint64(n)
	return p
}

// assault gives k a forged packet. The first byte it reads may ask for a flush
// before and after: a packet must not cause more output than acknowledgements
// of what is in it, and one transmission of each segment that waits.
func (r *rig) assault(s *script, how byte) {
	more := s.byte()
	packet := r.forge(s, how, more)
	flush := more&32 > 0
	if flush {
		r.flush()
	}
	waiting := r.k.WaitSend()
	taken := r.inject(packet, more&4 > 0)
	r.honest = r.honest && len(taken) == 0
	if !flush {
		return
	}
	answers := 2 // WASK and WINS
	for _, s := range taken {
		if s.cmd == cmdPush || s.cmd == cmdPiece {
			answers++
		}
	}
	packets, bytes := r.flush()
	if limit := waiting + 1 + answers/(r.mtu/headerSize); packets > limit {
		r.t.Fatalf("put out %d packets for one of %d segments, with %d waiting", packets, len(taken), waiting)
	}
	if limit := waiting*r.mtu + answers*headerSize; bytes > limit {
		r.t.Fatalf("put out %d bytes for %d, with %d segments waiting", bytes, len(packet), waiting)
	}
}

// flush flushes k and its twin, and returns how much they put out.
func (r *rig) flush() (packets, bytes int) {
	r.k.Flush()
	r.twin.Flush()
	packets = len(r.out)
	for _, p := range r.out {
		bytes += len(p)
	}
	r.compare()
	return packets, bytes
}

// forge reads a packet from the script. The bits of how make it more credible,
// so that it gets deeper into the state machine.
func (r *rig) forge(s *script, how, more byte) []byte {
	packet := bytes.Clone(s.take(int(s.byte())))
	if more&1 > 0 && len(packet) < headerSize {
		packet = append(packet, make([]byte, headerSize)...)
	}
	for at := 0; len(packet)-at >= headerSize; {
		b := packet[at:]
		r.patch(b, how, more)
		size := int(parse(b).size)
		if more&2 == 0 || size < 0 || size > len(b)-headerSize {
			break
		}
		at += headerSize + size
	}
	return packet
}

// patch makes fields of the header b plausible.
func (r *rig) patch(b []byte, how, more byte) {
	h := parse(b)
	next := uint32(r.k.Counters().SegmentsSent)
	if how&1 > 0 {
		le.PutUint32(b, conversation)
	}
	if how&2 > 0 {
		b[4] = cmdPush + h.cmd&3
	}
	if how&4 > 0 {
		n := min(h.size&31, uint32(len(b)-headerSize))
		le.PutUint32(b[20:], n)
		if how&2 > 0 && r.pieces && h.cmd&4 > 0 && n > 4 {
			b[4] = cmdPiece
			p := b[headerSize:]
			size := n - 4 + uint32(p[2]&15)
			le.PutUint16(p, uint16(uint32(p[0])%(size-n+5)))
			le.PutUint16(p[2:], uint16(size))
		}
	}
	if how&8 > 0 {
		le.PutUint32(b[16:], next-h.una&15+1+far(h.una>>8))
	}
	if how&16 > 0 {
		base := r.last.una
		if b[4] == cmdAck {
			base = next - 16
		}
		le.PutUint32(b[12:], base+uint32(int32(int8(h.sn)))+far(h.sn>>8))
	}
	if more&8 > 0 {
		le.PutUint32(b[8:], r.now-h.ts&0xff+far(h.ts>>8))
	}
	if more&16 > 0 {
		b[5] &= 3
	}
}

// inject gives k a packet, and its twin too unless it must have no effect. It
// returns the segments that have taken effect.
func (r *rig) inject(packet []byte, recovered bool) []segment {
	next := uint32(r.k.Counters().SegmentsSent)
	waiting, pushes := r.k.WaitSend(), r.k.Counters().SegmentsReceived
	v := judge(packet, conversation, next, r.pieces, func(s segment) (err error) {
		s.payload = bytes.Clone(s.payload)
		n := uint64(0)
		switch s.cmd {
		case cmdPush:
			n = 1
			r.model.take(s, recovered)
		case cmdPiece:
			n, err = r.model.piece(s, recovered)
		}
		pushes += n
		return err
	})
	r.input(r.k, packet, recovered, v)
	if len(v.taken) > 0 {
		r.input(r.twin, packet, recovered, v)
	}
	if len(r.out) > 0 {
		r.t.Fatal("Input put something out")
	}
	if now := r.k.WaitSend(); now > waiting {
		r.t.Fatalf("Input queued something: WaitSend grew from %d to %d", waiting, now)
	}
	if size, want := r.k.PeekSize(), r.model.size(); size != want {
		r.t.Fatalf("PeekSize %d, want %d", size, want)
	}
	if got := r.k.Counters().SegmentsReceived; got != pushes {
		r.t.Fatalf("%d segments counted, %d were good", got, pushes)
	}
	return v.taken
}

func (r *rig) input(k *kcp.KCP, packet []byte, recovered bool, v verdict) {
	keep := bytes.Clone(packet)
	var err error
	if recovered {
		err = k.InputRecovered(packet)
	} else {
		err = k.Input(packet)
	}
	if err != v.err {
		r.t.Fatalf("Input of %x: %v, want %v", keep, err, v.err)
	}
	if !bytes.Equal(keep, packet) {
		r.t.Fatal("Input changed the packet")
	}
}

// compare holds k against its twin: the same packets byte for byte, and the
// same answers. What was put out goes on to the peer.
func (r *rig) compare() {
	if len(r.out) != len(r.twinOut) {
		r.t.Fatalf("put out %d packets, the twin %d", len(r.out), len(r.twinOut))
	}
	for i, p := range r.out {
		checkPacket(r.t, p, conversation, r.mtu)
		if !bytes.Equal(p, r.twinOut[i]) {
			r.t.Fatalf("put out %x, the twin %x", p, r.twinOut[i])
		}
	}
	if len(r.out) > 0 {
		r.checkAnswers()
	}
	r.toPeer = append(r.toPeer, r.out...)
	r.out, r.twinOut = r.out[:0], r.twinOut[:0]
	if a, b := answers(r.k, r.now), answers(r.twin, r.now); a != b {
		r.t.Fatalf("state %+v, the twin %+v", a, b)
	}
}

// checkAnswers holds what a flush has put out against the model.
func (r *rig) checkAnswers() {
	var acks []ack
	for _, p := range r.out {
		for _, s := range segments(p) {
			if s.una != r.model.next || s.wnd != r.model.advertised() {
				r.t.Fatalf("put out %+v, want una %d and window %d", s, r.model.next, r.model.advertised())
			}
			if s.cmd == cmdAck {
				acks = append(acks, ack{s.sn, s.ts})
			}
			r.last = s
		}
	}
	if !slices.Equal(acks, r.model.acks) {
		r.t.Fatalf("put out the ACKs %v, want %v", acks, r.model.acks)
	}
	r.model.acks = nil
}

// view is what can be asked of a state machine without changing it.
type view struct {
	wait, peek  int
	check, next uint32
	due, dead   bool
	counters    stats.Counters
}

func answers(k *kcp.KCP, now uint32) view {
	v := view{wait: k.WaitSend(), peek: k.PeekSize(), check: k.Check(now), dead: k.Dead(), counters: k.Counters()}
	v.next, v.due = k.NextFlush()
	v.counters.PacketsReceived = 0 // counts those that had no effect too
	return v
}

// forge makes a segment without payload of the conversation.
func forge(cmd, frg byte, sn, una uint32) []byte {
	return segment{conv: conversation, cmd: cmd, frg: frg, wnd: 128, sn: sn, una: una}.put(nil)
}

// FuzzInput attacks a live state machine with arbitrary packets. It must not
// panic or return an error that it does not know, must stay bounded in memory
// and output, and must not be moved at all by a packet of another conversation
// or any other that is bad from its first segment on.
func FuzzInput(f *testing.F) {
	for _, seed := range criticalSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) { attack(t, data) })
}

// TestInputSeeds runs random attacks.
func TestInputSeeds(t *testing.T) {
	for _, seed := range seeds(t, 500) {
		random := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, 50+random.IntN(2000))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		if !t.Run(seedName(seed), func(t *testing.T) { attack(t, data) }) {
			t.Fatalf("repeat with KCP_SEED=%d", seed)
		}
	}
}

// TestInputMemory floods a state machine whose application does not read. What
// it holds must not grow beyond two receive windows: what waits to be read,
// and what came early.
func TestInputMemory(t *testing.T) {
	const window, payload, limit = 128, 1400, 2 << 20
	floods := map[string]func(i uint32, random *rand.Rand) []byte{
		"in order":          func(i uint32, _ *rand.Rand) []byte { return forge(cmdPush, 0, i, 0) },
		"endless fragments": func(i uint32, _ *rand.Rand) []byte { return forge(cmdPush, 64, i, 0) },
		"early":             func(i uint32, _ *rand.Rand) []byte { return forge(cmdPush, 0, 1+i%(2*window), 0) },
		"anywhere":          func(_ uint32, r *rand.Rand) []byte { return forge(cmdPush, byte(r.Uint32()), r.Uint32(), 0) },
		"near": func(_ uint32, r *rand.Rand) []byte {
			return forge(cmdPush, byte(r.Uint32N(4)), r.Uint32N(3*window), 0)
		},
		"acknowledgements": func(i uint32, r *rand.Rand) []byte { return forge(cmdAck, 0, i, 0) },
		"probes":           func(i uint32, r *rand.Rand) []byte { return forge(cmdWask, byte(i), i, 0) },
	}
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 1))
			k := kcp.New(conversation, func([]byte) {})
			before := heap()
			for i := range uint32(20000) {
				k.SetClock(i)
				p := flood(i, random)
				if p[4] == cmdPush {
					le.PutUint32(p[20:], payload)
					p = append(p, make([]byte, payload)...)
				}
				if err := k.Input(p); err != nil {
					t.Fatal(err)
				}
				if i%16 == 0 {
					k.Flush()
				}
			}
			if grown := heap() - before; grown > limit {
				t.Fatalf("holds %d bytes", grown)
			}
			runtime.KeepAlive(k)
		})
	}
}

// heap returns the bytes in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
