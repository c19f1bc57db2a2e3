package kcp

import (
	"container/heap"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// course is a bulk transfer from a to b over a bottleneck, in virtual time and
// with the extensions of sessions.
type course struct {
	t             *testing.T
	now           time.Duration
	a, b          *KCP
	forward, back *netsim.Link
	cfg           netsim.LinkConfig
	events        courseEvents
	order         int
	supply        int64 // bytes that a may still send
	received      int64
	waits         []time.Duration // in the queue
	buf           [1 << 16]byte
}

type courseEvent struct {
	at     time.Duration
	order  int
	to     *KCP
	packet []byte
}

type courseEvents []courseEvent

func (h courseEvents) Len() int { return len(h) }
func (h courseEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h courseEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *courseEvents) Push(x any)   { *h = append(*h, x.(courseEvent)) }
func (h *courseEvents) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// newCourse has a path of rate bytes a second and a round-trip time, with a
// queue of so many bandwidth-delay products.
func newCourse(t *testing.T, cc CongestionControl, rate int64, rtt time.Duration, queue, loss float64) *course {
	simulated(t)
	sequential(t)
	c := &course{t: t, supply: 1 << 60}
	c.cfg = netsim.LinkConfig{
		Delay: rtt / 2, Rate: rate, Loss: loss, Queue: int(float64(rate) * rtt.Seconds() * queue),
	}
	c.forward, c.back = netsim.NewLink(c.cfg, 1), netsim.NewLink(c.cfg, 2)
	config := (&Config{CongestionControl: func() CongestionControl { return cc }}).withDefaults()
	c.a = New(1, func(p []byte) { c.put(c.forward, c.b, p) })
	c.b = New(1, func(p []byte) { c.put(c.back, c.a, p) })
	config.apply(c.a)
	config.apply(c.b)
	c.a.SetClockMicros(0)
	c.b.SetClockMicros(0)
	return c
}

func (c *course) put(l *netsim.Link, to *KCP, packet []byte) {
	for _, d := range l.Send(c.now, packet) {
		if to == c.b {
			own := time.Duration(int64(len(packet)) * int64(time.Second) / c.cfg.Rate)
			c.waits = append(c.waits, d.At-c.now-c.cfg.Delay-own)
		}
		c.order++
		heap.Push(&c.events, courseEvent{d.At, c.order, to, d.Data})
	}
}

// run lets time pass until then, and returns the goodput of it in bytes a
// second.
func (c *course) run(until time.Duration) float64 {
	start, before := c.now, c.received
	c.waits = nil
	for {
		for c.supply > 0 && c.a.WaitSend() < 3000 {
			n := int(min(c.supply, int64(c.a.cfg.mss)))
			_, err := c.a.Send(c.buf[:n])
			require.NoError(c.t, err)
			c.supply -= int64(n)
		}
		for _, k := range []*KCP{c.a, c.b} {
			k.SetClockMicros(uint64(c.now.Microseconds()))
			if at, ok := k.NextFlush(); ok && !seq(at).after(k.clock.now) {
				k.Flush()
			}
		}
		next := until
		for _, k := range []*KCP{c.a, c.b} {
			if at, ok := k.NextFlush(); ok {
				wait := time.Duration(max(1, seq(at).diff(k.clock.now))) * time.Millisecond
				next = min(next, c.now.Truncate(time.Millisecond)+wait)
			}
		}
		if len(c.events) > 0 {
			next = min(next, c.events[0].at)
		}
		c.now = next
		if c.now >= until {
			return float64(c.received-before) / (until - start).Seconds()
		}
		for len(c.events) > 0 && c.events[0].at <= c.now {
			ev := heap.Pop(&c.events).(courseEvent)
			ev.to.SetClockMicros(uint64(c.now.Microseconds()))
			require.NoError(c.t, ev.to.Input(ev.packet))
			c.received += int64(c.b.recvBytes(c.buf[:]))
		}
	}
}

// queue returns the time that 95 % of the packets of the last run have waited
// at most.
func (c *course) queue() time.Duration {
	slices.Sort(c.waits)
	return c.waits[len(c.waits)*95/100]
}

// change changes both directions.
func (c *course) change(edit func(*netsim.LinkConfig)) {
	edit(&c.cfg)
	c.forward.SetConfig(c.cfg)
	c.back.SetConfig(c.cfg)
}

// resent returns the share of the sender's transmissions that were
// retransmissions.
func (c *course) resent() float64 {
	n := c.a.counters
	again := float64(n.FastRetransmits + n.TimeoutRetransmits)
	return again / (again + float64(n.SegmentsSent))
}

const courseRate = 2_500_000 // 20 Mbit/s

// What a controller makes of paths of 20 Mbit/s and 40 ms. The figures of
// whole transfers are bench's; a controller that does not do its work is far
// from these.
func TestControllersOnPaths(t *testing.T) {
	long(t)
	const rtt = 40 * time.Millisecond
	for _, test := range []struct {
		name        string
		control     func() CongestionControl
		queue, loss float64
		goodput     float64 // share, at least
		wait        float64 // round trips in the queue, at most
		resent      float64 // share, at most
	}{
		{"bbr", NewBBR, 1, 0, 0.94, 0.5, 0.01},
		{"bbr, loss", NewBBR, 1, 0.05, 0.88, 0.7, 0.07},
		{"bbr, much loss", NewBBR, 1, 0.1, 0.8, 0.8, 0.13},
		{"bbr, shallow queue", NewBBR, 0.2, 0, 0.9, 0.2, 0.03},
		{"bbr, deep queue", NewBBR, 8, 0, 0.94, 0.5, 0.01},
		{"cubic", NewCubic, 1, 0, 0.94, 1, 0.03},
		{"cubic, shallow queue", NewCubic, 0.2, 0, 0.75, 0.2, 0.03},
		{"cubic, deep queue", NewCubic, 8, 0, 0.94, 8, 0.02},
	} {
		c := newCourse(t, test.control(), courseRate, rtt, test.queue, test.loss)
		c.run(time.Second)
		goodput := c.run(6 * time.Second)
		require.Greater(t, goodput, test.goodput*courseRate, test.name)
		require.LessOrEqual(t, float64(c.queue()), test.wait*float64(rtt)*1.01, "%s: queue", test.name)
		require.LessOrEqual(t, c.resent(), test.resent, "%s: resent", test.name)
	}
}

// Packets that overtake each other are not declared lost, once that has been
// seen, whether a few of them are exempt from the order or there is none.
func TestReorderedPath(t *testing.T) {
	long(t)
	const rate = 6_250_000 // 50 Mbit/s
	for _, rtt := range []time.Duration{40 * time.Millisecond, 80 * time.Millisecond} {
		for _, share := range []float64{0.02, 1} {
			for seed := range fewer(4) {
				c := newCourse(t, NewBBR(), rate, rtt, 1, 0)
				c.cfg.Jitter, c.cfg.Reorder = 10*time.Millisecond, share
				c.forward, c.back = netsim.NewLink(c.cfg, 2*seed), netsim.NewLink(c.cfg, 2*seed+1)
				c.run(2 * time.Second)
				before := c.a.counters
				goodput := c.run(8 * time.Second)
				again := c.a.counters.Retransmits() - before.Retransmits()
				resent := float64(again) / float64(c.a.counters.SegmentsSent-before.SegmentsSent)
				require.Less(t, resent, 0.004, "%v, %v, seed %d", rtt, share, seed)
				require.Greater(t, goodput, 0.85*rate, "%v, %v, seed %d", rtt, share, seed)
			}
		}
	}
}

// A path that lets packets go in bunches, in order, holds more than its rate and
// its least round-trip time tell.
func TestBunchedPath(t *testing.T) {
	long(t)
	const rate = 6_250_000
	for seed := range fewer(4) {
		c := newCourse(t, NewBBR(), rate, 40*time.Millisecond, 1, 0)
		c.cfg.Jitter = 30 * time.Millisecond
		c.forward, c.back = netsim.NewLink(c.cfg, 2*seed), netsim.NewLink(c.cfg, 2*seed+1)
		c.run(3 * time.Second)
		require.Greater(t, c.run(10*time.Second), 0.85*rate, "seed %d", seed)
	}
}

// What is near the least round-trip time confirms it; what is not may be it and
// the queue of another flow.
func TestBBRConfirmsMinRTT(t *testing.T) {
	long(t)
	c := NewBBR().(*bbrControl)
	for _, test := range []struct{ now, rtt, minRTT, minAt int64 }{
		{1, 50_000, 50_000, 1}, {2, 50_700, 50_000, 2}, {3, 52_000, 50_000, 2},
		{4, 0, 50_000, 2}, {5, 49_000, 49_000, 5},
	} {
		c.now = test.now
		c.updateMinRTT(&CongestionState{Sample: RateSample{RTT: test.rtt}})
		require.Equal(t, test.minRTT, c.minRTT)
		require.Equal(t, test.minAt, c.minAt)
	}
}

// Of few segments some are lost by chance; of many, or where most are lost, it
// has a cause.
func TestLossAboveThreshold(t *testing.T) {
	for _, test := range []struct {
		lost, delivered float64
		want            bool
	}{
		{3, 5, false}, {6, 0, true}, {4, 56, false}, {12, 48, true},
		{60, 1940, false}, {70, 1930, true},
	} {
		l := lossShare{lost: test.lost * 1000, delivered: test.delivered * 1000}
		require.Equal(t, test.want, l.above(0.02, 1000), "%v of %v", test.lost, test.lost+test.delivered)
	}
}

// Startup fills a path that loses a fifth each way, with any seed: a rate that
// does not grow for a round, and losses, do not end it by chance.
func TestBBRStartsOverLoss(t *testing.T) {
	long(t)
	for seed := range fewer(24) {
		c := newCourse(t, NewBBR(), 3*courseRate, 70*time.Millisecond, 1, 0)
		c.cfg.Loss, c.cfg.Jitter = 0.2, 10*time.Millisecond
		c.forward, c.back = netsim.NewLink(c.cfg, 2*seed), netsim.NewLink(c.cfg, 2*seed+1)
		c.run(1500 * time.Millisecond)
		require.Greater(t, c.run(2500*time.Millisecond), 0.3*3*courseRate, "seed %d", seed)
	}
}

// Losses end Startup if there are more of them than while the rate grew, and
// not if the path has always lost as many.
func TestBBRStartupLossLimit(t *testing.T) {
	long(t)
	for _, test := range []struct {
		lost, of   float64 // segments, while the rate grew
		least, max float64
	}{
		{0, 0, 0.38, 0.38}, {0, 10, 0.30, 0.32}, {0, 64, 0.02, 0.02}, {0, 1000, 0.02, 0.02},
		{4, 20, 0.38, 0.43}, {20, 1000, 0.02, 0.02}, {21, 1000, 0.05, 0.06}, {200, 1000, 0.22, 0.25}, {900, 1000, 0.38, 0.38},
	} {
		b := NewBBR().(*bbrControl)
		b.grown = lossShare{lost: test.lost * b.mss, delivered: (test.of - test.lost) * b.mss}
		limit := b.startupLossLimit()
		require.GreaterOrEqual(t, limit, test.least-1e-9, "%v of %v", test.lost, test.of)
		require.LessOrEqual(t, limit, test.max+1e-9, "%v of %v", test.lost, test.of)
	}

	// round is a round of Startup in which the rate is rate and a share of n
	// segments was lost.
	round := func(b *bbrControl, rate, n, share float64) {
		b.bw[1], b.newRound = rate, true
		b.lossesBefore.lossShare = lossShare{lost: n * share * b.mss, delivered: n * (1 - share) * b.mss}
		b.checkFull(&CongestionState{})
	}
	for _, test := range []struct {
		path, last float64 // shares of loss
		rounds     int     // without growth, until Startup ends
	}{{0, 0, 3}, {0, 0.3, 1}, {0.2, 0.2, 3}, {0.05, 0.3, 1}, {0.2, 0.5, 2}, {0.5, 0.9, 2}} {
		b := NewBBR().(*bbrControl)
		rate := 1000.
		for n := 20.; n < 5000; n *= 2 {
			round(b, rate, n, test.path)
			require.False(t, b.full)
			rate *= 2
		}
		rounds := 0
		for ; !b.full; rounds++ {
			round(b, rate/2, 5000, test.last)
			// What was sent in this round is counted in the next.
			b.losses.lossShare = lossShare{}
		}
		require.Equal(t, test.rounds, rounds, "%v, then %v", test.path, test.last)
	}
}

// A path that becomes slower, or faster, is found out in some seconds, without
// a standing queue and without a flood.
func TestBBRFollowsThePath(t *testing.T) {
	long(t)
	c := newCourse(t, NewBBR(), courseRate, 40*time.Millisecond, 2, 0)
	c.run(3 * time.Second)
	c.change(func(l *netsim.LinkConfig) { l.Rate /= 4 })
	c.run(7 * time.Second)
	require.Greater(t, c.run(10*time.Second), 0.9*courseRate/4)
	require.Less(t, c.queue(), 60*time.Millisecond)
	c.change(func(l *netsim.LinkConfig) { l.Rate *= 4 })
	c.run(16 * time.Second)
	require.Greater(t, c.run(18*time.Second), 0.85*courseRate)
	c.change(func(l *netsim.LinkConfig) { l.Delay *= 3 })
	c.run(32 * time.Second) // the least round-trip time is forgotten after ten
	require.Greater(t, c.run(35*time.Second), 0.85*courseRate)
}

// What a slow application shows of the path is not taken for the path.
func TestControllersWithSlowApplication(t *testing.T) {
	for name, control := range map[string]func() CongestionControl{"bbr": NewBBR, "cubic": NewCubic} {
		c := newCourse(t, control(), courseRate, 40*time.Millisecond, 1, 0)
		c.run(2 * time.Second)
		c.supply = 0
		c.run(5 * time.Second)
		for c.now < 14*time.Second {
			c.supply += 3000
			c.run(c.now + 30*time.Millisecond)
			require.Less(t, c.a.WaitSend(), 10, "%s holds back what is little", name)
		}
		window := c.a.snd.cc.Window()
		require.Less(t, window, 300, "%s: the window grew without use", name)
		c.supply = 1 << 60
		require.Greater(t, c.run(15*time.Second), 0.6*courseRate, name)
	}
}

// Losses end Startup when the controller knows of the path only what a greeting
// has shown, and the acknowledgements that follow give no sample. What it knows is
// next to nothing, and must not hold the sender back.
func TestBBRLosesItsFirstWindow(t *testing.T) {
	c := NewBBR().(*bbrControl)
	s := &CongestionState{MSS: 1376, Micros: 1_000_000, SRTT: 16}
	c.Init(s)
	s.Micros += 16_000
	s.Delivered = 25
	s.Sample = RateSample{Acked: 25, RTT: 16_000, Delivered: 25, Interval: 16_000, InFlight: 25, AppLimited: true}
	c.OnAck(s)
	require.Equal(t, bbrStartup, c.state)
	for range 2 { // as long as the losses of both rounds count
		s.Micros += 100_000
		for i := range 48 {
			c.OnPacketSent(s, SegmentInfo{Size: 1400, Sent: 1, SentMicros: s.Micros, LostMicros: s.Micros - 1, SN: uint32(i)})
		}
		s.Delivered += 14_000
		s.SRTT = 90
		s.Sample = RateSample{Acked: 14_000}
		c.OnAck(s)
	}
	require.True(t, c.full)
	require.Less(t, c.bandwidth(), 2000.)
	require.True(t, math.IsInf(c.inflightHi, 1), "%v bytes, of a sample that there was not", c.inflightHi)
	require.InDelta(t, bbrMinCwnd*1400/0.090, c.PacingRate(), 1)
	s.SRTT = 0
	c.setPace(s)
	require.InDelta(t, bbrMinCwnd*1400/0.016, c.PacingRate(), 1, "the shortest round trip")
	c.minRTT = 10
	c.setPace(s)
	require.InDelta(t, bbrMinCwnd*1400/0.001, c.PacingRate(), 1, "shorter than the clock shows")
}

// What follows a question and its answer is the initial window, in bytes, however
// small those were. While nothing is known of the path it is not paced.
func TestFirstWindow(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: 100 * time.Millisecond}, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		bothWays(t, a, b, []byte("ask"), []byte("answer"))
		time.Sleep(50 * time.Millisecond)
		start, data := time.Now(), content(3, 200_000)
		go func() { _, _ = a.Write(data) }()
		receive(t, b, data[:13_000])
		require.Less(t, time.Since(start), 150*time.Millisecond)
		first := a.Stats()
		require.LessOrEqual(t, first.InFlight, initialWindow+1)
		receive(t, b, data[13_000:])
	})
}

// cubicPath feeds a CUBIC controller with the acknowledgements of whole
// windows, once a round trip.
type cubicPath struct {
	c   *cubicControl
	s   CongestionState
	rtt int64
}

func newCubicPath(rtt int64) *cubicPath {
	p := &cubicPath{c: NewCubic().(*cubicControl), rtt: rtt}
	p.s = CongestionState{MSS: 976, Micros: 1_000_000}
	p.c.Init(&p.s)
	return p
}

// round sends a window, or as many segments, and has it acknowledged.
func (p *cubicPath) round(segments float64) {
	if segments == 0 {
		segments = p.c.cwnd
	}
	prior := p.s.Delivered
	p.s.FlightBytes = int64(segments * 1000)
	p.c.OnTick(&p.s)
	p.s.Micros += p.rtt
	for range acksOfRound {
		part := int64(segments * 1000 / acksOfRound)
		p.s.Delivered += part
		p.s.Sample = RateSample{Acked: part, RTT: p.rtt, PriorDelivered: prior}
		p.c.OnAck(&p.s)
	}
}

const acksOfRound = 10

func (p *cubicPath) lose() {
	p.s.LostSent = p.s.Micros - 1
	p.c.OnFastRetransmit(&p.s)
}

// Slow start doubles the window, and ends some rounds after the round-trip
// time has begun to grow (RFC 9406).
func TestCubicSlowStart(t *testing.T) {
	p := newCubicPath(50_000)
	for want := 20.; want <= 160; want *= 2 {
		p.round(0)
		require.InDelta(t, want, p.c.cwnd, 0.01)
	}
	p.rtt += 7000 // more than an eighth of 50 ms
	p.round(0)
	grown := p.c.cwnd
	for range hystartRounds {
		require.True(t, math.IsInf(p.c.ssthresh, 1))
		p.round(0)
	}
	p.round(0)
	require.False(t, math.IsInf(p.c.ssthresh, 1), "slow start goes on")
	require.Less(t, p.c.cwnd, grown*math.Pow(1.25, hystartRounds+2))
}

// After a loss the window follows the curve of RFC 9438, section 4.2.
func TestCubicCurve(t *testing.T) {
	p := newCubicPath(100_000)
	p.c.cwnd, p.c.ssthresh = 100, 50
	p.lose()
	require.InDelta(t, 70, p.c.cwnd, 0.01)
	k := math.Cbrt(100 * (1 - cubicBeta) / cubicC)
	p.round(0)
	start := p.s.Micros
	for p.s.Micros-start < 8_000_000 {
		p.round(0)
		at := float64(p.s.Micros-start) / 1e6
		want := cubicC*math.Pow(at+0.1-k, 3) + 100
		require.InDelta(t, want, p.c.cwnd, 0.05*want, "after %v s", at)
	}
	require.Greater(t, p.c.cwnd, 110., "it goes on beyond the old maximum")
}

// On a short path the window grows as Reno's would (section 4.3).
func TestCubicRenoFriendly(t *testing.T) {
	p := newCubicPath(5_000)
	p.c.cwnd, p.c.ssthresh = 20, 10
	p.lose()
	require.InDelta(t, 14, p.c.cwnd, 0.01)
	for range 10 {
		p.round(0)
	}
	require.InDelta(t, 14+10*cubicAlpha, p.c.cwnd, 1)
}

// One round of losses is one reduction; a second one below the old maximum
// gives up room (section 4.7); nothing back at all means starting anew.
func TestCubicReductions(t *testing.T) {
	p := newCubicPath(100_000)
	p.c.cwnd, p.c.ssthresh = 100, 50
	p.lose()
	p.c.OnFastRetransmit(&p.s)
	p.s.DeliveredAt = p.s.Micros
	p.c.OnTimeout(&p.s)
	require.InDelta(t, 70, p.c.cwnd, 0.01)
	require.InDelta(t, 100, p.c.wMax, 0.01)
	p.round(0)
	before := p.c.cwnd
	p.lose()
	require.InDelta(t, before*cubicBeta, p.c.cwnd, 0.01)
	require.InDelta(t, before*(1+cubicBeta)/2, p.c.wMax, 0.01, "fast convergence")
	p.round(0)
	p.s.LostSent, p.s.DeliveredAt = p.s.Micros-1, p.s.Micros-2
	p.c.OnTimeout(&p.s)
	require.EqualValues(t, minimalWindow, p.c.cwnd)
}

// A window that is not used does not grow, and the time does not count.
func TestCubicApplicationLimited(t *testing.T) {
	p := newCubicPath(100_000)
	p.c.cwnd, p.c.ssthresh = 100, 50
	p.lose()
	for range 5 {
		p.round(0)
	}
	before := p.c.cwnd
	for range 100 {
		p.round(10)
	}
	require.InDelta(t, before, p.c.cwnd, 1)
	p.round(0)
	p.round(0)
	require.InDelta(t, before, p.c.cwnd, 0.1*before, "it jumps to where the curve would be")
}

// The window counts segments as they are, and small ones do not shrink it.
func TestWindowOfSmallSegments(t *testing.T) {
	for name, c := range map[string]CongestionControl{"bbr": NewBBR(), "cubic": NewCubic()} {
		s := CongestionState{MSS: 1376, Micros: 1}
		c.Init(&s)
		require.Equal(t, initialWindow, c.Window(), name)
		for range 100 {
			c.OnPacketSent(&s, SegmentInfo{Size: 140, Transmissions: 1})
		}
		require.Equal(t, 10*initialWindow, c.Window(), name)
	}
}

// A burst is neither negative nor large, at any rate, and on 32 bits too.
func TestBBRBurst(t *testing.T) {
	c := &bbrControl{mss: 65000}
	require.Zero(t, c.burst(), "the round-trip time is not known")
	for rtt, most := range map[int64]int{1: 64 << 10, 511: 64 << 10, 512: 32 << 10, 1024: 16 << 10, 100_000: 0, math.MaxInt64: 0} {
		c.minRTT = rtt
		c.rate = 1e18
		require.Equal(t, most, c.burst(), "%d us", rtt)
		c.rate = 1000 * bbrBurstShare
		require.Equal(t, min(most, 1000), c.burst())
	}
}
