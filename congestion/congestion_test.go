package congestion

import (
	"math"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// What is near the least round-trip time confirms it; what is not may be it and
// the queue of another flow.
func TestBBRConfirmsMinRTT(t *testing.T) {
	c := NewBBR().(*bbrControl)
	for _, test := range []struct{ now, rtt, minRTT, minAt int64 }{
		{1, 50_000, 50_000, 1}, {2, 50_700, 50_000, 2}, {3, 52_000, 50_000, 2},
		{4, 0, 50_000, 2}, {5, 49_000, 49_000, 5},
	} {
		c.now = test.now
		c.updateMinRTT(&State{Sample: Sample{RTT: test.rtt}})
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

// Losses end Startup if there are more of them than while the rate grew, and
// not if the path has always lost as many.
func TestBBRStartupLossLimit(t *testing.T) {
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
		b.checkFull(&State{})
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

// Losses end Startup when the controller knows of the path only what a greeting
// has shown, and the acknowledgements that follow give no sample. What it knows is
// next to nothing, and must not hold the sender back.
func TestBBRLosesItsFirstWindow(t *testing.T) {
	c := NewBBR().(*bbrControl)
	s := &State{MSS: 1376, Micros: 1_000_000, SRTT: 16}
	c.Init(s)
	s.Micros += 16_000
	s.Delivered = 25
	s.Sample = Sample{Acked: 25, RTT: 16_000, Delivered: 25, Interval: 16_000, InFlight: 25, AppLimited: true}
	c.OnAck(s)
	require.Equal(t, bbrStartup, c.state)
	for range 2 { // as long as the losses of both rounds count
		s.Micros += 100_000
		for i := range 48 {
			c.OnPacketSent(s, Segment{Size: 1400, Sent: 1, SentMicros: s.Micros, LostMicros: s.Micros - 1, SN: uint32(i)})
		}
		s.Delivered += 14_000
		s.SRTT = 90
		s.Sample = Sample{Acked: 14_000}
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

// cubicPath feeds a CUBIC controller with the acknowledgements of whole
// windows, once a round trip.
type cubicPath struct {
	c   *cubicControl
	s   State
	rtt int64
}

func newCubicPath(rtt int64) *cubicPath {
	p := &cubicPath{c: NewCubic().(*cubicControl), rtt: rtt}
	p.s = State{MSS: 976, Micros: 1_000_000}
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
		p.s.Sample = Sample{Acked: part, RTT: p.rtt, PriorDelivered: prior}
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
	for name, c := range map[string]Control{"bbr": NewBBR(), "cubic": NewCubic()} {
		s := State{MSS: 1376, Micros: 1}
		c.Init(&s)
		require.Equal(t, initialWindow, c.Window(), name)
		for range 100 {
			c.OnPacketSent(&s, Segment{Size: 140, Transmissions: 1})
		}
		require.Equal(t, 10*initialWindow, c.Window(), name)
	}
}

// A burst is neither negative nor large, at any rate, and on 32 bits too.
func TestBBRBurst(t *testing.T) {
	c := &bbrControl{mss: 65000}
	require.Zero(t, c.Burst(), "the round-trip time is not known")
	for rtt, most := range map[int64]int{1: 64 << 10, 511: 64 << 10, 512: 32 << 10, 1024: 16 << 10, 100_000: 0, math.MaxInt64: 0} {
		c.minRTT = rtt
		c.rate = 1e18
		require.Equal(t, most, c.Burst(), "%d us", rtt)
		c.rate = 1000 * bbrBurstShare
		require.Equal(t, min(most, 1000), c.Burst())
	}
}

// path shows b a path of 2.5 MB/s and 40 ms that has no queue, for so many
// milliseconds. It returns the state of the last call.
func path(b *bbrControl, ms int) *State {
	const rate, rtt = 2500, 40 // bytes a millisecond, milliseconds
	s := &State{MSS: 1376, Micros: 1_000_000, SRTT: rtt}
	b.Init(s)
	for range ms {
		s.Micros += 1000
		s.Delivered += rate
		s.DeliveredAt = s.Micros
		s.FlightBytes = min(int64(b.cwnd), rate*rtt)
		s.Sample = Sample{Acked: rate, RTT: rtt * 1000, Delivered: rate * rtt, Interval: rtt * 1000, PriorDelivered: s.Delivered - rate*rtt, InFlight: s.FlightBytes}
		b.OnAck(s)
		b.OnTick(s)
	}
	return s
}

// A needless response to losses leaves no trace; a needed one does.
func TestBBRUndo(t *testing.T) {
	for _, spurious := range []bool{false, true} {
		b := NewBBR().(*bbrControl)
		s := path(b, 2000)
		hi, lo, bwLo, cwnd := b.inflightHi, b.inflightLo, b.bwLo, b.cwnd
		b.enter(bbrCruise, 1)
		b.OnPacketSent(s, Segment{Size: 1400, LostMicros: s.Micros})
		b.losses.lost, b.newRound = 1e6, true
		b.lowerBounds(s)
		require.Less(t, b.inflightLo, lo)
		require.Less(t, b.bwLo, bwLo)
		b.OnRecovered(s, spurious)
		require.Equal(t, spurious, b.inflightHi == hi && b.inflightLo == lo && b.bwLo == bwLo && b.cwnd >= cwnd)
	}

	// Startup goes on where only losses that were none have ended it.
	for _, spurious := range []bool{false, true} {
		b := NewBBR().(*bbrControl)
		s := path(b, 60)
		require.Equal(t, bbrStartup, b.state)
		b.OnPacketSent(s, Segment{Size: 1400, LostMicros: s.Micros})
		b.losses.lost = 1e6
		b.answerProbe(s)
		b.step(s)
		require.Equal(t, bbrDrain, b.state)
		b.OnRecovered(s, spurious)
		require.Equal(t, spurious, b.state == bbrStartup && !b.full)
	}
}

// Each state has a name of its own.
func TestStateNames(t *testing.T) {
	names := make(map[string]bool)
	for s := bbrStartup; s <= bbrProbeRTT; s++ {
		names[(&bbrControl{state: s}).State()] = true
	}
	require.Len(t, names, 7)
	for _, c := range []Control{NewReference(), NewCubic()} {
		require.Equal(t, "slow_start", c.(StateNamer).State())
	}
	require.Equal(t, "unlimited", NewNone().(StateNamer).State())
}

// Acknowledgements that came in a bunch, in less than a round trip, show no rate. A
// path of which nothing is known allows no burst.
func TestBBRIgnoresBunches(t *testing.T) {
	b := NewBBR().(*bbrControl)
	require.Zero(t, b.Burst())
	b.rate = 1e9
	require.Zero(t, b.Burst())
	b.minRTT = 20_000
	b.updateRate(&Sample{Delivered: 1_000_000, Interval: 19_999})
	require.Zero(t, b.maxRate())
	b.updateRate(&Sample{Delivered: 1_000_000, Interval: 20_000})
	require.InDelta(t, 50e6, b.maxRate(), 1)
}

// bbrPath feeds a BBR controller with rounds of transmissions on a path that loses
// share of them, and what exceeds capacity segments a round besides.
type bbrPath struct {
	c               *bbrControl
	s               State
	share, capacity float64
}

const bbrPathRTT = 60_000 // microseconds

func newBBRPath(share, capacity float64) *bbrPath {
	p := &bbrPath{c: NewBBR().(*bbrControl), share: share, capacity: capacity}
	p.s = State{MSS: 1376, Micros: 1_000_000, SRTT: bbrPathRTT / 1000}
	p.c.Init(&p.s)
	return p
}

// round sends a window, and returns how many segments of it have arrived.
func (p *bbrPath) round() float64 {
	prior, sent := p.s.Delivered, p.s.Micros
	n := math.Floor(p.c.cwnd / 1400)
	arrived := math.Floor(min(n*(1-p.share), p.capacity))
	part := func(of float64, i int) int64 {
		return int64(of*float64(i+1)/acksOfRound) - int64(of*float64(i)/acksOfRound)
	}
	for i := range acksOfRound {
		p.s.Micros = sent + bbrPathRTT + int64(i)*1000
		part, lost := part(arrived, i), part(n-arrived, i)
		for range part {
			p.c.OnPacketAcked(&p.s, Segment{Size: 1400, SentMicros: sent})
		}
		for range lost { // retransmitted in place of new ones
			p.c.OnPacketSent(&p.s, Segment{Size: 1400, SentMicros: sent, LostMicros: sent})
		}
		p.s.Delivered += part * 1400
		p.s.Sample = Sample{Acked: part * 1400, RTT: bbrPathRTT, PriorDelivered: prior, Delivered: int64(arrived) * 1400, Interval: bbrPathRTT, InFlight: int64(n) * 1400}
		p.c.OnAck(&p.s)
	}
	return arrived
}

// On a path that loses much at random Startup doubles what arrives in a round as on one
// that loses nothing, and paces accordingly. What a full queue loses does not count.
func TestBBRStartupDoubles(t *testing.T) {
	for _, share := range []float64{0, 0.1, 0.2} {
		p := newBBRPath(share, math.Inf(1))
		for range 5 { // until there are enough losses to count
			p.round()
		}
		before := p.round()
		for range 4 {
			arrived := p.round()
			require.InDelta(t, 2, arrived/before, 0.15, "loss %v", share)
			require.InDelta(t, bbrStartupPace*bbrMargin*arrived*1400/(1-share), p.c.rate*bbrPathRTT/1e6, 0.1*p.c.cwnd, "loss %v", share)
			before = arrived
		}
		require.Equal(t, bbrStartup, p.c.state)
		require.InDelta(t, share, p.c.lossFloor, 0.03, "loss %v", share)
		require.False(t, p.c.lossFloorKnown)
	}
	p := newBBRPath(0, 300)
	for range 9 {
		p.round()
	}
	require.True(t, p.c.full)
	require.Zero(t, p.c.lossFloor, "a queue, and not the path")
}

// The share that the path loses is bounded, falls only once there is enough to count, and
// stays as it is when it was measured since.
func TestBBRStartupLossFloor(t *testing.T) {
	c := newBBRPath(0, 0).c
	lose := func(lost, of float64) float64 {
		few := c.grown.lost+c.grown.delivered < bbrStartupFew*c.mss
		c.grown = lossShare{lost: lost * c.mss, delivered: (of - lost) * c.mss}
		c.startupLossFloor(few)
		return c.lossFloor
	}
	require.InDelta(t, bbrLossMost, lose(9, 20), 1e-9)
	require.InDelta(t, 0.05, lose(2, 40), 1e-9)
	require.InDelta(t, 0.10, lose(10, 100), 1e-9)
	require.InDelta(t, 0.08, lose(16, 200), 1e-9)
	require.InDelta(t, 0.08, lose(80, 400), 1e-9, "another flow has filled the queue")
	c.lossFloorKnown = true
	require.InDelta(t, 0.08, lose(1, 1000), 1e-9)
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| BBR", "2.77", bbrStartupPace},
		{"| BBR", "3 rounds", bbrFullRounds},
		{"| BBR", "1.25 x", bbrFullGrowth},
		{"| BBR", "8 segments", bbrFullLost},
		{"| BBR", "0.5", bbrDrainPace},
		{"| BBR", "Up at 1.25", bbrUpPace},
		{"| BBR", "1/24", bbrGrowth},
		{"| BBR", "0.85", bbrHeadroom},
		{"| BBR", "10 s", bbrMinRTTWindow * time.Microsecond},
		{"| BBR", "4 segments", bbrMinCwnd},
		{"| Startup", "36 %", bbrStartupLossMost},
		{"| Startup ends by losses only", "2 %", bbrLossThreshold},
		{"| Startup sends", "20 %", bbrLossMost},
		{"| Startup", "64 segments", bbrStartupFew},
		{"| Startup", "10 %", bbrStartupLossy},
		{"| CUBIC", "0.4", cubicC},
		{"| CUBIC", "0.7", cubicBeta},
		{"| CUBIC", "10 segments", initialWindow},
		{"| CUBIC", "2 at least", minimalWindow},
		{"| CUBIC", "srtt/8", hystartThresholdPart},
		{"| CUBIC", "4 to 16 ms", hystartMinThreshold * time.Microsecond},
		{"| CUBIC", "16 ms", hystartMaxThreshold * time.Microsecond},
		{"| CUBIC", "8 samples", hystartSamples},
		{"| CUBIC", "5 rounds", hystartRounds},
		{"| BBR", "64 KiB", bbrBurst},
		{"| BBR", "512 µs", bbrBurstHalves * time.Microsecond},
		{"| BBR", "1/16 s", time.Second / bbrBurstShare},
		{"| CUBIC", "2 first", ssthreshInitial},
		{"| CUBIC", "ssthresh 2", ssthreshMin},
	})
}
