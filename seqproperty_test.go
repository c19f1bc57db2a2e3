package kcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/closing"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/ring"
)

// Numbers from the network: every field of every command at every distance that
// comparisons on a circle may get wrong, in every state of the machine.

// books holds what a state machine keeps count of.
type books struct {
	Queued, Partial, Early, Held, Read       int
	InFlight, SndBytes, FlightBytes, Waiting int
}

func (k *KCP) books() books {
	return books{
		int(k.rcv.queue.n), int(k.rcv.partial), int(k.rcv.early), k.rcv.held, k.rcv.bytes,
		k.snd.inFlight, k.snd.bytes, int(k.snd.flightBytes), k.WaitSend(),
	}
}

// segments returns what waits to be sent, or is in flight.
func (k *KCP) segments() iter.Seq[*sendSegment] {
	return func(yield func(*sendSegment) bool) {
		for sn := k.snd.una; sn != k.snd.nxt; sn++ {
			if s := k.snd.ring.at(sn); s != nil && !yield(s) {
				return
			}
		}
		for s := k.snd.queue.head; s != nil; s = s.order.next {
			if !yield(s) {
				return
			}
		}
	}
}

// recount returns the same as the containers have it. Queued is taken from k, and
// what must never be is an error.
func (k *KCP) recount() (b books, err error) {
	b.Queued = int(k.rcv.queue.n)
	wrong := func(sn seq, what string) { err = errors.Join(err, fmt.Errorf("segment %d: %s", sn, what)) }
	for i := range k.rcv.queue.places.Len() {
		s := k.rcv.queue.at(uint32(i))
		switch {
		case i >= b.Queued && (s.data != nil || s.held):
			wrong(seq(i), "data behind the queue")
		case i >= b.Queued:
		case s.frg == 0:
			b.Partial = 0
		default:
			b.Partial++
		}
		b.Held += cap(s.data)
		b.Read += len(s.data) - s.read
	}
	for i := range k.rcv.ring.Len() {
		sn := k.rcv.nxt + seq(i)
		s := k.rcv.ring.at(sn)
		switch {
		case !s.held && (s.data != nil || s.abandoned || s.stream):
			wrong(sn, "data in a free place")
		case s.held && i == 0 && !k.receiveFull():
			wrong(sn, "in order, and not in the queue")
		case s.held:
			b.Early++
			b.Held += cap(s.data)
			b.Read += len(s.data) - s.read
		}
	}
	if k.rare != nil {
		o := &k.rare.own
		early := uint32(0)
		for i := range o.ring.Len() {
			s := o.ring.at(o.arrived + seq(i))
			if s.held {
				early++
				b.Held += cap(s.data)
				b.Read += len(s.data) - s.read
			}
			if s.held && i == 0 && !k.receiveFull() || !s.held && s.data != nil {
				wrong(o.arrived, "next by its SSN, and not in the queue")
			}
		}
		if early != o.early {
			wrong(o.arrived, fmt.Sprintf("%d early by their SSN, counted are %d", early, o.early))
		}
	}
	if k.snd.nxt.Before(k.snd.una) || int(k.snd.nxt-k.snd.una) > k.snd.ring.Len() {
		return b, errors.Join(err, fmt.Errorf("una %d, nxt %d in %d places", k.snd.una, k.snd.nxt, k.snd.ring.Len()))
	}
	if k.snd.una != k.snd.nxt && k.snd.ring.at(k.snd.una) == nil {
		wrong(k.snd.una, "missing among those to be sent")
	}
	for s := range k.segments() {
		b.SndBytes += len(s.data)
		b.Waiting++
		if s.list != &k.snd.queue {
			b.InFlight++
			b.FlightBytes += s.size()
		}
	}
	return b, err
}

// requireBooks compares what the state machine has counted with what it holds.
func requireBooks(t *testing.T, k *KCP) {
	t.Helper()
	b, err := k.recount()
	require.NoError(t, err)
	require.Equal(t, b, k.books())
}

// machineStates are what a state machine may be in when a packet comes. All
// begin with numbers near the end of the circle, or in the middle of it.
var machineStates = []struct {
	name string
	make func(h *harness)
}{
	{"fresh", func(*harness) {}},
	{"in flight", func(h *harness) {
		for range 5 {
			h.send("data")
		}
		h.advance(1)
	}},
	{"some acknowledged", func(h *harness) {
		for range 9 {
			h.send("data")
		}
		h.advance(1)
		first := uint32(h.k.snd.una)
		h.input(ack(first+3, h.now, first), ack(first+8, h.now, first))
	}},
	{"sent again", func(h *harness) {
		for range 5 {
			h.send("data")
		}
		h.advance(1)
		for range 4 {
			h.advance(400)
		}
	}},
	{"all acknowledged", func(h *harness) {
		h.send("data")
		h.advance(1)
		h.input(segment(cmdWins, 0, 0, 0, uint32(h.k.snd.nxt), ""))
	}},
	{"compacted", func(h *harness) {
		h.send("data")
		h.advance(1)
		h.input(h.push(uint32(h.k.rcv.nxt), 0, "x"), segment(cmdWins, 0, 0, 0, uint32(h.k.snd.nxt), ""))
		h.recv("x")
		h.advance(30)
		h.k.Compact()
	}},
	{"data waits for a window", func(h *harness) {
		shut := segment(cmdWins, 0, 0, 0, uint32(h.k.snd.nxt), "")
		shut[6], shut[7] = 0, 0
		h.input(shut)
		for range 5 {
			h.send("data")
		}
		h.advance(1)
	}},
	{"receive queue full", func(h *harness) {
		for !h.full() {
			h.input(h.push(uint32(h.k.rcv.nxt), 0, "full"))
		}
		h.input(h.push(uint32(h.k.rcv.nxt)+1, 0, "early"))
	}},
	{"early held", func(h *harness) {
		next := uint32(h.k.rcv.nxt)
		h.input(h.push(next, 0, "ordered"))
		h.input(h.push(next+2, 0, "early"), h.push(next+9, 3, "early"))
		h.input(h.push(next+h.k.cfg.rcvWnd, 0, "last"))
		h.advance(1)
	}},
	{"message incomplete", func(h *harness) {
		next := uint32(h.k.rcv.nxt)
		h.input(h.push(next, 0, "whole"), h.push(next+1, 5, "broken"), h.push(next+2, 2, "a"), h.push(next+3, 1, "b"))
	}},
	{"pieces held", func(h *harness) {
		next := uint32(h.k.rcv.nxt)
		h.pieces(piece(next, 0, 0, 640, string(make([]byte, 10))))
		h.pieces(piece(next+3, 0, 320, 640, string(make([]byte, 320))))
	}},
	{"receiving ended", func(h *harness) {
		h.input(h.push(uint32(h.k.rcv.nxt)+1, 0, "early"))
		h.k.closeReceive()
	}},
}

// push returns a data segment that acknowledges what is acknowledged already.
func (h *harness) push(sn uint32, frg uint8, payload string) []byte {
	return segment(cmdPush, frg, 0, sn, uint32(h.k.snd.una), payload)
}

func (h *harness) full() bool { return h.k.receiveFull() }

// pieces gives the machine a piece, if it takes any.
func (h *harness) pieces(p []byte) {
	binary.LittleEndian.PutUint32(p[16:], uint32(h.k.snd.una))
	if h.k.cfg.ext.TakePieces {
		h.input(p)
	}
}

// startAt lets a fresh machine's numbers begin elsewhere on the circle.
func (h *harness) startAt(snd, rcv uint32) {
	k := h.k
	k.snd.una, k.snd.nxt = seq(snd), seq(snd)
	k.rcv.nxt, k.rcv.ackPolicy.End = seq(rcv), seq(rcv)
}

// sessionExtensions returns the extensions that sessions have.
func sessionExtensions() Extensions {
	k := New(7, func([]byte) {})
	c := (*Config)(nil).withDefaults()
	c.apply(k)
	return k.cfg.ext
}

// extremes returns the numbers at the distances from base that matter.
func extremes(base seq, window uint32) []uint32 {
	var all []uint32
	for _, d := range []uint32{
		0, 1, 2, window - 1, window, window + 1, 1<<31 - 1, 1 << 31, 1<<31 + 1,
		1<<31 - window, 1<<31 + window, -window & (1<<32 - 1), 1<<32 - 2, 1<<32 - 1,
	} {
		all = append(all, uint32(base)+d)
	}
	return all
}

// Whatever a segment says, the machine neither panics nor works for ever, counts
// right, and takes nothing that is not within its windows.
func TestNumbersFromTheNetwork(t *testing.T) {
	t.Parallel()
	simulated(t)
	sequential(t)
	modes := []struct {
		name   string
		stream bool
		ext    Extensions
	}{
		{"bare", false, Extensions{}},
		{"bare stream", true, Extensions{}},
		{"session", true, sessionExtensions()},
		{"session messages", false, sessionExtensions()},
	}
	starts := []uint32{0, 1<<31 - 3, 1<<32 - 3}
	for i, mode := range modes {
		for j, state := range machineStates {
			if repeated() && j%4 != i || testing.Short() && j%2 != i%2 {
				continue
			}
			t.Run(mode.name+"/"+state.name, func(t *testing.T) {
				snd, rcv := starts[(i+j)%3], starts[(i+j+j/3)%3]
				make := func() *harness {
					h := newQuietHarness(t, func(k *KCP) {
						k.SetStream(mode.stream)
						k.SetExtensions(mode.ext)
						k.SetFastResend(2)
					})
					h.startAt(snd, rcv)
					state.make(h)
					return h
				}
				tryNumbers(t, rand.New(rand.NewPCG(uint64(i), uint64(j))), make)
			})
		}
	}
}

// newQuietHarness is newHarness for those who do not look at the output.
func newQuietHarness(t *testing.T, setup func(k *KCP)) *harness {
	h := &harness{t: t, now: 1000}
	h.k = New(7, func([]byte) {})
	h.k.SetCongestionControl(congestion.NewNone())
	setup(h.k)
	h.k.Update(h.now)
	return h
}

// tryNumbers gives a machine in one state, made anew each time, segments with
// all numbers of each field, and the others drawn from theirs.
func tryNumbers(t *testing.T, r *rand.Rand, make func() *harness) {
	sample := make().k
	draw := func(all []uint32) uint32 { return all[r.IntN(len(all))] }
	unas := append(extremes(sample.snd.una, sample.cfg.sndWnd), extremes(sample.snd.nxt, sample.cfg.sndWnd)...)
	sns := append(extremes(sample.rcv.nxt, sample.cfg.rcvWnd), extremes(sample.rcv.nxt-seq(sample.rcv.queue.n), 1)...)
	sns = append(append(sns, extremes(sample.snd.una, sample.cfg.sndWnd)...), extremes(sample.snd.nxt, 128)...)
	tss := extremes(sample.clock.now, 1000)
	try := func(cmd uint8, una, sn, ts uint32) {
		h := header{
			conv: 7, cmd: cmd, frg: []uint8{0, 1, 127, 255}[r.IntN(4)], wnd: uint16(draw([]uint32{0, 1, 128, 65535})),
			una: seq(una), sn: seq(sn), ts: seq(ts),
		}
		payload := "evil"
		switch {
		case cmd == cmdPiece:
			payload = string(piece(0, 0, 0, 4*(1+r.IntN(2)), payload)[headerSize:])
		case cmd != cmdPush:
			payload = ""
		}
		h.len = uint32(len(payload))
		b := h.appendTo(nil)
		tryPacket(t, make(), &h, append(b, payload...))
	}
	for cmd := uint8(cmdPush); cmd <= cmdPiece; cmd++ {
		for _, una := range unas {
			try(cmd, una, draw(sns), draw(tss))
		}
		for _, sn := range sns {
			try(cmd, draw(unas), sn, draw(tss))
			try(cmd, uint32(sample.snd.una), sn, draw(tss))
		}
		for _, ts := range tss {
			try(cmd, uint32(sample.snd.una), draw(sns), ts)
		}
	}
}

func (h *header) appendTo(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, headerSize)...)
	h.encode(b[n:])
	return b
}

// tryPacket gives a machine one packet of one segment, and looks at what it has
// changed, then and later.
func tryPacket(t *testing.T, h *harness, s *header, packet []byte) {
	k := h.k
	before := *k
	what := func() string {
		return fmt.Sprintf("cmd %d frg %d wnd %d una %d sn %d ts %d to snd [%d %d %d) rcv %d-%d+%d", s.cmd, s.frg, s.wnd,
			s.una, s.sn, s.ts, before.snd.una, before.snd.nxt, before.position().end, before.rcv.nxt, before.rcv.queue.n, before.cfg.rcvWnd)
	}
	check := func(ok bool, rule string) {
		if !ok {
			t.Helper()
			require.FailNow(t, rule, what())
		}
	}
	counted := func() {
		b, err := k.recount()
		check(err == nil && b == k.books(), fmt.Sprintf("counts %+v are %+v: %v", k.books(), b, err))
	}
	counted()
	err := k.Input(packet)
	counted()

	// The send side moves within what was sent.
	behind := before.snd.nxt - s.una // of the una
	check(behind < 1<<31 || errors.Is(err, ErrForgedUna) || errors.Is(err, ErrCommand), "a una from the future is taken")
	check(!errors.Is(err, ErrForgedUna) || behind >= 1<<31, "a una from the past is refused")
	acks := err == nil && (behind < before.snd.nxt-before.snd.una || s.cmd == cmdAck && s.sn-before.snd.una < before.snd.nxt-before.snd.una)
	check(acks || k.snd.inFlight == before.snd.inFlight && k.snd.una == before.snd.una, "what was not sent is acknowledged")
	check(k.snd.una-before.snd.una <= before.snd.nxt-before.snd.una, "snd_una passes snd_nxt")

	// The receive side takes what lies in its window.
	news := s.cmd == cmdPush || s.cmd == cmdPiece
	inside := news && err == nil && s.sn-before.rcv.nxt < seq(before.cfg.rcvWnd)
	check(inside || k.rcv.nxt == before.rcv.nxt && k.rcv.early == before.rcv.early && k.rcv.queue.n == before.rcv.queue.n,
		"data from outside the window is taken")
	check(k.rcv.nxt-before.rcv.nxt <= seq(before.rcv.early)+1, "rcv_nxt passes what was missing")
	check(k.rcv.ring.Len() <= max(before.rcv.ring.Len(), 2*ring.Size(int(before.cfg.rcvWnd))), "the ring is larger than the window")
	check(len(k.rcv.acks) <= len(before.rcv.acks)+1, "more acknowledgements than segments")

	// And it goes on.
	buf := make([]byte, 4096)
	for {
		if _, err := k.Recv(buf); err != nil {
			break
		}
	}
	_, _ = k.Send([]byte("more"))
	counted()
	for range 3 {
		h.advance(150)
		counted()
	}
	k.Compact()
	counted()
}

// The end that a peer announces lies at or after what has come, and less than
// half the circle away; anything else is never reached.
func TestFinalOfThePeer(t *testing.T) {
	for _, next := range []seq{0, 5, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
		for _, final := range extremes(next, 2048) {
			c := &Conn{session: session{kcp: New(7, func([]byte) {})}}
			c.kcp.rcv.nxt = next
			distance := final - uint32(next)
			require.Equal(t, distance < 1<<31, c.takeFin(signal{sigFin, final, 0}), "%d from %d", final, next)
			require.Equal(t, distance < 1<<31, c.closing.Read != closing.ReadOpen)
			require.Equal(t, distance < 1<<31, c.takeFin(signal{sigClose, final, 0}), "the same again")
			if c.closing.Read != closing.ReadOpen {
				require.False(t, c.takeFin(signal{sigClose, final + 1, 0}), "another end")
			}
		}
	}
}
