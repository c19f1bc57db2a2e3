package fec

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// checkAccounts compares the sums a Decoder keeps with what it holds.
func checkAccounts(t testing.TB, d *Decoder) {
	t.Helper()
	idle, pending, used := 0, 0, 0
	for i, free := range d.pool.free {
		for _, b := range free {
			if index, size := class(cap(b)); index != i || size != cap(b) {
				t.Fatalf("a free buffer of %d bytes in class %d", cap(b), i)
			}
			idle += cap(b)
		}
	}
	for _, h := range d.pending {
		pending += cap(h.bytes)
	}
	filled := 0
	for i := range d.window.groups {
		used += checkGroup(t, d, &d.window.groups[i])
		if d.window.groups[i].shards != nil {
			filled++
		}
	}
	if filled != d.window.used {
		t.Fatalf("%d groups have shards, %d are counted", filled, d.window.used)
	}
	if idle != d.pool.idle || pending != d.bytes || idle+pending+used != d.pool.held {
		t.Fatalf("%d idle, %d pending and %d used bytes are taken for %d, %d and %d in all",
			idle, pending, used, d.pool.idle, d.bytes, d.pool.held)
	}
}

// checkGroup returns the bytes in buffers of g.
func checkGroup(t testing.TB, d *Decoder, g *group) int {
	t.Helper()
	data, parity, used := 0, 0, 0
	for i, shard := range g.shards {
		if shard == nil {
			continue
		}
		used += cap(shard)
		if i < d.code.data {
			data++
		} else {
			parity++
		}
	}
	if g.done && used != 0 || !g.done && (data != g.data || parity != g.parity) {
		t.Fatalf("a group with %d and %d shards: %+v", data, parity, g)
	}
	return used
}

// What a Decoder says it holds is what it keeps from the garbage collector.
func TestHeldIsAllMemory(t *testing.T) {
	for _, c := range []struct {
		name   string
		attack int
		n      int
	}{{"random", 0, 2000}, {"alternating", 1, 64}, {"edges", 2, 200}, {"changing", 4, 1300}} {
		decoders := 300
		if testing.Short() {
			decoders = 30
		}
		list := make([]*Decoder, decoders)
		held := 0
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range list {
			list[i] = NewDecoder()
			random := rand.New(rand.NewPCG(1, uint64(i)))
			packet := make([]byte, HeaderSize)
			for j := range c.n {
				_, _, _ = list[i].Decode(attacks[c.attack].next(packet, j, random), uint32(j/20), nil)
			}
			held += list[i].Held() + int(unsafe.Sizeof(Decoder{}))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		heap := float64(after.HeapAlloc) - float64(before.HeapAlloc)
		require.InEpsilon(t, heap, held, 0.15, c.name)
		runtime.KeepAlive(list)
	}
}

// Buffers for a size of packets that has gone out of use are given up.
func TestUnusedBuffersAge(t *testing.T) {
	s := newSender(t, ratio{10, 3}, 1)
	s.longest = 1400
	r := newReceiver(s)
	r.learn()
	r.feed(s.groups(10)...)
	require.Greater(t, r.dec.Stats().Held, 5000)
	s.longest = 50
	for range 4 {
		r.now += sweepPeriod
		r.feed(s.groups(2)...)
	}
	require.LessOrEqual(t, r.dec.pool.held, 20*vector)
}

// Data without parity, as a slow sender's, is not kept for long while the ratio
// is unknown.
func TestSlowSenderBeforeTheRatioIsKnown(t *testing.T) {
	s := newSender(t, ratio{10, 3}, 1)
	r := newReceiver(s)
	r.now = 1 << 31 // a clock need not begin at 0
	for range 300 {
		s.now += 1000
		r.now += 1000
		r.feed(s.packet()...)
		require.LessOrEqual(t, len(r.dec.pending), 2*sweepPeriod/1000)
	}
	r.learn()
}

// What passes through costs no allocation, with losses or without.
func TestAllocations(t *testing.T) {
	for _, r := range []ratio{{1, 1}, {10, 3}} {
		s := newSender(t, r, 1)
		packet := make([]byte, HeaderSize+1400)
		require.Zero(t, testing.AllocsPerRun(100, func() { s.enc.Encode(packet, 0) }), "encode %v", r)
		packets, next, recovered := newSender(t, r, 1).group(), uint32(0), 0
		d := NewDecoder()
		group := func(losses int) {
			for i, p := range packets {
				putHeader(p, next, packetType(p))
				if next = (next + 1) % r.limit(); i >= losses {
					_, _, _ = d.Decode(p, 0, func([]byte) { recovered++ })
				}
			}
		}
		for range 1200/int(r.size()) + 2 {
			group(0)
		}
		require.Nil(t, d.doubt)
		for losses := range r.parity + 1 {
			for range maxGroups + 1 { // groups of the window get their bookkeeping on first use
				group(losses)
			}
			allocs := testing.AllocsPerRun(100, func() { group(losses) })
			require.Zero(t, allocs, "decode %v, %d lost", r, losses)
			require.Equal(t, losses > 0, recovered > 0)
		}
	}
}
