package machine

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/congestion"
	"github.com/stretchr/testify/require"
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

// A round trip of weeks, which a forged ts or a clock that jumps shows, does not overflow
// the estimate of it.
func TestLongRoundTrips(t *testing.T) {
	e := rttEstimator{rto: rtoInitial, minRTO: rtoMin}
	for _, rtt := range []int32{1 << 28, math.MaxInt32, 0, math.MaxInt32, math.MaxInt32, 1 << 30, 0} {
		e.sample(rtt, 100)
		require.Positive(t, e.srtt)
		require.Positive(t, e.rttvar)
		require.Equal(t, uint32(MaxRTO), e.rto)
	}
	for range 200 {
		e.sample(10, 100)
	}
	require.Less(t, e.rto, uint32(300))
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

// At the cap datagrams are ahead of data by a packet of the size that the MTU has now.
func TestCapFollowsTheMTU(t *testing.T) {
	k := newHarness(t, nil).k
	k.CapRate(1000, 28)
	require.NoError(t, k.SetMTU(500))
	require.True(t, k.RateCap().Pass(600, true, 0))
	require.False(t, k.RateCap().DatagramsFirst())
}

// pipe joins two state machines in memory.
type pipe struct {
	a, b   *KCP
	toA    []pipePacket
	toB    []pipePacket
	free   [][]byte
	now    uint32
	random *rand.Rand
	batch  int    // segments sent in a millisecond
	delay  uint32 // of ACKs, in milliseconds
}

type pipePacket struct {
	data []byte
	sent uint32
}

func newPipe(tb testing.TB, window int, loss float64) *pipe {
	p := &pipe{random: rand.New(rand.NewPCG(1, 2)), batch: 64, delay: uint32(window / 64)}
	link := func(queue *[]pipePacket) func([]byte) {
		return func(packet []byte) {
			if loss > 0 && p.random.Float64() < loss {
				return
			}
			var c []byte
			if n := len(p.free); n > 0 {
				c, p.free = p.free[n-1], p.free[:n-1]
			}
			*queue = append(*queue, pipePacket{append(c[:0], packet...), p.now})
		}
	}
	p.a = New(1, link(&p.toB))
	p.b = New(1, link(&p.toA))
	for _, k := range []*KCP{p.a, p.b} {
		if err := k.SetWindow(window, window); err != nil {
			tb.Fatal(err)
		}
		k.SetNoDelay(NoDelayOn)
		k.SetFastResend(2)
		k.SetCongestionControl(congestion.NewNone())
		if err := k.SetInterval(10); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}

// run moves n payloads from a to b, a batch in a millisecond. By default, ACKs
// take as many milliseconds to come back as it takes to fill the window.
func (p *pipe) run(n int, payload, buf []byte) {
	window := int(p.a.cfg.sndWnd)
	for sent, received := 0, 0; received < n; {
		for i := 0; i < p.batch && sent < n && p.a.span() < window; i++ {
			if _, err := p.a.Send(payload); err != nil {
				panic(err)
			}
			sent++
		}
		p.now++
		p.a.SetClock(p.now)
		p.a.Flush()
		p.deliver(&p.toB, p.b, 0)
		for p.b.PeekSize() >= 0 {
			if _, err := p.b.Recv(buf); err != nil {
				panic(err)
			}
			received++
		}
		p.b.SetClock(p.now)
		p.b.Flush()
		p.deliver(&p.toA, p.a, p.delay)
	}
}

// turn flushes both ends and delivers everything, at one time.
func (p *pipe) turn() {
	p.a.SetClock(p.now)
	p.b.SetClock(p.now)
	p.a.Flush()
	p.deliver(&p.toB, p.b, 0)
	p.b.Flush()
	p.deliver(&p.toA, p.a, 0)
}

// deliver hands to k the packets of queue that are at least delay old.
func (p *pipe) deliver(queue *[]pipePacket, k *KCP, delay uint32) {
	n := 0
	for _, packet := range *queue {
		if p.now-packet.sent < delay {
			break
		}
		if err := k.Input(packet.data); err != nil {
			panic(err)
		}
		p.free = append(p.free, packet.data)
		n++
	}
	*queue = append((*queue)[:0], (*queue)[n:]...)
}

// span returns how much of the window is taken, holes included.
func (k *KCP) span() int { return int(k.snd.nxt-k.snd.una) + k.snd.queue.n }
