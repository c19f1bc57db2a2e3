package kcp

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// What acknowledgements have counted against a segment counts under whatever FastResend
// and its limit are at the next flush, also if it was off while they arrived.
func TestFastResendChanges(t *testing.T) {
	const lost = `push 0 frg=0 "x"`
	for _, c := range []struct {
		name                  string
		before, acks, after   uint32
		limitBefore, limitNow uint32
		again                 bool
	}{
		{name: "on", before: 0, acks: 2, after: 2, again: true},
		{name: "on, above the count", before: 0, acks: 2, after: 3},
		{name: "lower", before: 5, acks: 2, after: 2, again: true},
		{name: "higher", before: 2, acks: 2, after: 3},
		{name: "higher, and counted beyond", before: 2, acks: 3, after: 3, again: true},
		{name: "off", before: 2, acks: 3, after: 0},
		{name: "the most that is counted", before: 0, acks: 400, after: countMost, again: true},
		{name: "many", before: 300, acks: 299, after: 299, again: true},
		{name: "limit", before: 2, acks: 3, after: 2, limitBefore: 5, limitNow: 1, again: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, func(k *KCP) {
				require.NoError(t, k.SetWindow(500, 500))
				k.peer.wnd = 500
				k.SetFastResend(c.before)
				k.SetFastResendLimit(c.limitBefore)
			})
			for range c.acks + 1 {
				h.send("x")
			}
			h.advance(0)
			h.out = nil
			h.now += 10
			h.k.SetClock(h.now)
			for sn := uint32(1); sn <= c.acks; sn++ {
				h.input(ack(sn, 1000, 0))
			}
			if h.k.SetFastResend(c.after); c.limitNow != c.limitBefore {
				h.k.SetFastResendLimit(c.limitNow)
			}
			at, ok := h.k.NextFlush()
			require.True(t, ok)
			require.Equal(t, c.again, at == h.now)
			h.advance(0)
			if c.again {
				h.want(lost)
			}
			h.want()
		})
	}
}

// A segment that may not be fast-retransmitted any more is once the limit grows.
func TestFastResendLimitGrows(t *testing.T) {
	h := newHarness(t, func(k *KCP) {
		k.SetFastResend(1)
		k.SetFastResendLimit(1)
	})
	h.send("x")
	h.send("y")
	h.advance(0)
	h.out = nil
	h.now += 10
	h.k.SetClock(h.now)
	h.input(ack(1, 1000, 0))
	h.advance(0)
	h.want(`push 0 frg=0 "x"`)
	h.send("z")
	h.advance(0)
	h.want(`push 2 frg=0 "z"`)
	h.input(ack(2, h.now, 0))
	h.advance(1)
	h.want()
	at, _ := h.k.NextFlush()
	require.NotEqual(t, h.now, at, "it is left to its time-out")
	h.k.SetFastResendLimit(2)
	h.advance(0)
	h.want(`push 0 frg=0 "x"`)
	h.input(ack(1, h.now, 0))
	h.advance(1)
	h.want()
	h.k.SetFastResendLimit(0)
	h.advance(1)
	h.want(`push 0 frg=0 "x"`)
}

// However many acknowledgements arrive between two flushes, at most countMost are counted
// against each transmission.
func TestCountIsBounded(t *testing.T) {
	for _, acks := range []uint32{0, 2, 1000} {
		const window = 64
		h := newHarness(t, func(k *KCP) {
			require.NoError(t, k.SetWindow(window, window))
			k.SetFastResend(acks)
		})
		for range window {
			h.send("x")
		}
		h.advance(0)
		h.out = nil
		h.k.SetClock(h.now + 1)
		for range 3000 {
			h.input(ack(window-1, 1000, 0))
		}
		most := max(acks, countMost)
		d := &h.k.snd.loss
		require.Zero(t, d.fresh.n+d.resent.n, "nothing is counted any more")
		if acks > 0 {
			require.Equal(t, window-1, d.suspects.n)
			require.Equal(t, most, d.suspects.tail.fastack)
		}
		require.Equal(t, most, h.k.snd.oldest().fastack)
		h.k.SetFastResend(0)
		require.Zero(t, d.suspects.n)
		h.k.Flush()
		h.want()
	}
}

// After the clock has gone back, what left before it is later by its ts than what leaves
// now, and each is counted by its own.
func TestClockGoesBack(t *testing.T) {
	for _, back := range []uint32{1, 50, 9000} {
		h := newHarness(t, func(k *KCP) { k.SetFastResend(1) })
		h.now += 20000
		h.send("a") // at 21000
		h.advance(0)
		h.want(`push 0 frg=0 "a"`)
		h.now -= back
		h.send("b")
		h.send("c")
		h.advance(0)
		h.want(`push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
		h.input(ack(2, h.now, 0)) // it left later, and is of an earlier time than a
		h.advance(0)
		h.want(`push 1 frg=0 "b"`)
		h.send("d")
		h.advance(0)
		h.want(`push 3 frg=0 "d"`)
		h.input(ack(3, h.now, 0))
		h.advance(0)
		h.want(`push 1 frg=0 "b"`)
		require.True(t, h.k.snd.loss.inDisorder())
		h.input(ack(3, 21000, 0))
		h.advance(0)
		h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`)
		require.False(t, h.k.snd.loss.inDisorder(), "all of before has left again")
	}
}

// A segment that arrives again delivers what a larger receive window has room for, as the
// reference does; SetWindow alone does not.
func TestWindowGrowsOverEarlySegments(t *testing.T) {
	h := newHarness(t, nil)
	for sn := range uint32(130) {
		h.input(push(sn, 0, "x"))
	}
	h.advance(0)
	h.out = nil
	require.Equal(t, uint32(128), h.k.rcv.queue.n)
	require.Equal(t, uint32(2), h.k.rcv.early)
	require.NoError(t, h.k.SetWindow(32, 200))
	require.Equal(t, uint32(128), h.k.rcv.queue.n)
	h.input(push(127, 0, "x"))
	require.Equal(t, uint32(128), h.k.rcv.queue.n, "one below rcv_nxt does not count")
	h.input(push(128, 0, "x"))
	require.Equal(t, uint32(130), h.k.rcv.queue.n)
	h.advance(0)
	h.out = nil
}

// A change of the reference's nc keeps the window, which grows with either. Another
// controller, and one of the same kind, begin anew.
func TestCongestionControlChanges(t *testing.T) {
	h := newHarness(t, func(k *KCP) { k.SetCongestionControl(nil) })
	next := uint32(0)
	grow := func() {
		h.send("x")
		h.advance(10)
		h.input(ack(next, h.now, next+1))
		next++
	}
	for range 10 {
		grow()
	}
	variables := func() (v [3]uint32) {
		s := h.k.traceState()
		return [3]uint32{s["cwnd"], s["ssthresh"], s["incr"]}
	}
	before := variables()
	require.Greater(t, before[2], 2*uint32(h.k.cfg.mss))
	h.k.SetCongestionControl(congestion.NewNone())
	require.Equal(t, before, variables())
	require.Equal(t, math.MaxInt32, h.k.snd.cc.Window())
	for range 20 {
		grow()
	}
	after := variables()
	require.Greater(t, after[2], before[2])
	h.k.SetCongestionControl(congestion.NewReference())
	require.Equal(t, after, variables())
	require.Equal(t, int(after[0]), h.k.snd.cc.Window())
	h.k.SetCongestionControl(congestion.NewReference())
	require.Equal(t, 1, h.k.snd.cc.Window())
	h.out = nil
}

// A clock that jumps by half of its range loses nothing: what was in flight is sent again
// in time, and what follows too.
func TestClockJumps(t *testing.T) {
	for _, jump := range []uint32{1<<31 - 200, 1<<31 - 100, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<31 + 200} {
		p := newPipe(t, 256, 0)
		sent := content(9, 20000)
		for i := 0; i < len(sent); i += 1000 {
			n, err := p.a.Send(sent[i : i+1000])
			require.NoError(t, err)
			require.Equal(t, 1000, n)
			p.a.Update(p.now + 5)
			if i == 10000 {
				p.now += jump
			}
		}
		var got []byte
		buf := make([]byte, 1000)
		for turns := 0; len(got) < len(sent); turns++ {
			require.Less(t, turns, 1000)
			p.turn()
			for n, err := p.b.Recv(buf); err == nil; n, err = p.b.Recv(buf) {
				got = append(got, buf[:n]...)
			}
		}
		require.Equal(t, sent, got)
	}
}

// A round trip of weeks, which a forged ts or a clock that jumps shows, does not overflow
// the estimate of it.
func TestLongRoundTrips(t *testing.T) {
	e := rttEstimator{rto: rtoInitial, minRTO: rtoMin}
	for _, rtt := range []int32{1 << 28, math.MaxInt32, 0, math.MaxInt32, math.MaxInt32, 1 << 30, 0} {
		e.sample(rtt, 100)
		require.Positive(t, e.srtt)
		require.Positive(t, e.rttvar)
		require.Equal(t, uint32(rtoMax), e.rto)
	}
	for range 200 {
		e.sample(10, 100)
	}
	require.Less(t, e.rto, uint32(300))
}
