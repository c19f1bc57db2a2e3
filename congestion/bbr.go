package congestion

import "math"

// Gains and limits of the controller. If they come from
// draft-ietf-ccwg-bbr, the name there is given.
const (
	bbrStartupPace = 2.77 // StartupPacingGain
	bbrDrainPace   = 0.5  // DrainPacingGain
	bbrUpPace      = 1.25 // of ProbeBW_UP
	bbrDownPace    = 0.9  // of ProbeBW_DOWN
	bbrCwndGain    = 2.0  // DefaultCwndGain
	bbrUpCwnd      = 2.25 // of ProbeBW_UP
	bbrCruiseCwnd  = 1.25 // of ProbeBW_DOWN and ProbeBW_CRUISE: pacing alone should limit
	bbrMargin      = 0.99 // less than 1 by PacingMarginPercent
	bbrBeta        = 0.7  // Beta
	bbrHeadroom    = 0.85 // share of inflightHi that Headroom lets be used

	// bbrGrowth is by how much of the bytes acknowledged inflightHi grows in
	// the first round of ProbeBW_UP. The draft adds a segment a round. A flow
	// whose inflightHi another flow has driven down would then stay there for
	// minutes.
	bbrGrowth = 1. / 24

	bbrFullGrowth = 1.25 // growth of the rate per round; below it the path counts as full
	bbrFullRounds = 3    // rounds without that growth until it does
	bbrFullLost   = 8    // full segments lost until it does if the application sends little

	// Losses count as congestion above the share that the path loses whatever
	// is sent. That share is measured while less is sent than the path takes,
	// and it is bounded.
	bbrLossThreshold = 0.02 // LossThresh, on top of that share
	bbrLossMost      = 0.20 // bound of that share
	bbrLossSevere    = 0.25 // share of loss above which lowerBounds has no floor

	// Times in microseconds.
	bbrMinRTTWindow  = 10_000_000 // MinRTTFilterLen
	bbrProbeRTTTime  = 100_000    // ProbeRTTDuration; half of the draft's
	bbrProbeRTTCwnd  = 0.5        // ProbeRTTCwndGain
	bbrProbeRTTLeast = 2          // segments
	bbrProbeWait     = 600_000    // from ProbeBW_DOWN to the next probe for bandwidth, at least
	bbrProbeSpread   = 400_000    // a random part of this is added

	bbrMinCwnd = 4 // MinPipeCwnd, segments

	// ACK aggregation.
	bbrAggregation = 2 // how much faster than expected a bunch is acknowledged, at least
	bbrAckShare    = 4 // 1/bbrAckShare of a round trip may pass between acknowledgements
	bbrExtraRounds = 5 // half of ExtraAckedFilterLen; there are two such windows
)

// defaultMTU is the size in bytes of a full segment before Init says it.
const defaultMTU = 1400

// bbrState is the state of the controller. Down to Up belong to ProbeBW.
type bbrState uint8

const (
	bbrStartup bbrState = iota
	bbrDrain
	bbrDown   // sends less until no queue is left
	bbrCruise // sends at the rate at which data arrives
	bbrRefill // fills the path, for a round
	bbrUp     // sends more, to see whether more arrives
	bbrProbeRTT
)

// bbrControl is a controller after BBR (draft-ietf-ccwg-bbr). Its model of the
// path is the largest recent delivery rate and the shortest round-trip time.
// Both together determine how fast to send and how much to have in flight.
type bbrControl struct {
	size  meanSize
	mss   float64 // bytes of a full segment on the wire
	now   int64   // microseconds
	state bbrState

	// Together, as every session has a bbrControl. See the fields that they go
	// with.
	tried          bool // this cycle had enough data to fill the path
	newRound       bool // this input began a round
	full           bool // the path has been filled
	fullByLoss     bool // because of recent losses
	lossFloorKnown bool
	limited        bool // ceiling.rate is a ceiling

	// The model. inflightHi and inflightLo are the draft's inflight_longterm
	// and inflight_shortterm, bwLo its bw_shortterm; infinite: no bound yet.
	bw         [2]float64 // largest delivery rates in the last cycle and in this one, bytes a second
	minRTT     int64      // microseconds; 0: not known
	minAt      int64      // when minRTT was last confirmed, microseconds
	inflightHi float64    // bytes in flight at which too much was lost
	inflightLo float64    // bytes; bound because of losses, until the next probe
	bwLo       float64    // bytes a second; likewise

	extraAcked aggregation
	change     pathChange

	// Rounds, from a transmission to its acknowledgement.
	roundEnd int64 // Delivered when the round began: what is sent later ends it
	rounds   int   // since the state began

	// Losses of what was sent in this state and in the one before.
	losses, lossesBefore lossCount

	// Of the rounds of Startup in which the rate grew: the last one, and those
	// before it.
	growing, grown lossShare

	// Startup; in ProbeBW_UP too, fullRate and fullCount.
	fullRate  float64 // bytes a second; the rate must exceed it by bbrFullGrowth
	fullCount int32   // rounds without growth
	random    uint32  // state of the generator for probeAt

	// The share that the path loses whatever is sent, 0 to bbrLossMost. Before
	// lossFloorKnown, Startup has found it.
	lossFloor float64

	ceiling *rateCeiling // nil: nothing was lost on a short path

	undo checkpoint[bbrControl] // from before the recent losses

	probeAt      int64   // when the next probe for bandwidth is due, microseconds
	probeRTTDone int64   // when ProbeRTT ends, microseconds; 0: window not yet reached
	drained      float64 // that window, bytes
	probed       int64   // the least round-trip time in it, microseconds; 0: no sample yet
	growth       float64 // of inflightHi, per byte acknowledged

	pace float64 // pacing gain
	cwnd float64 // bytes
	rate float64 // pacing rate, bytes a second
}

// NewBBR returns a controller after BBR (draft-ietf-ccwg-bbr) that models the
// path instead of filling its buffers until they overflow. It paces at the rate
// at which data arrives, looks for more about once a second, and lets queues
// drain. As a queue it needs no more than a part of the bandwidth-delay
// product.
//
// Its response to loss is bounded: it makes full use of a path that loses up to
// a fifth of whatever is sent. The share that the path loses is measured while
// less is sent than the path takes. Only losses of 2 % more, the threshold of
// BBRv2, count as congestion.
func NewBBR() Control {
	return &bbrControl{inflightHi: math.Inf(1), inflightLo: math.Inf(1), bwLo: math.Inf(1), pace: bbrStartupPace, mss: defaultMTU, cwnd: initialWindow * defaultMTU}
}

func (c *bbrControl) Init(s *State) {
	c.mss = fullSize(s)
	c.cwnd = initialWindow * c.mss
	c.now = s.Micros
	c.random = 1
}

func (c *bbrControl) OnRTT(*State, uint32)    {}
func (c *bbrControl) OnFastRetransmit(*State) {}
func (c *bbrControl) OnTimeout(*State)        {}
func (c *bbrControl) OnAppLimited(*State)     {}

// OnPacketAcked and OnPacketSent attribute what has arrived and what was lost
// to the state in which it was sent.
func (c *bbrControl) OnPacketAcked(_ *State, p Segment) {
	c.account(p.SentMicros).delivered += float64(p.Size)
}

func (c *bbrControl) OnPacketSent(s *State, p Segment) {
	c.size.sent(p.Size)
	if p.LostMicros > 0 {
		c.undo.take(c)
		c.account(p.LostMicros).lost += float64(p.Size)
		c.countLost(s, p.LostMicros, p.Size)
	}
}

// account returns the count for what left at sent, in microseconds.
func (c *bbrControl) account(sent int64) *lossCount {
	switch {
	case sent >= c.losses.from:
		return &c.losses
	case sent >= c.lossesBefore.from:
		return &c.lossesBefore
	}
	return new(lossCount)
}

// lossCount counts what was sent in state, which is since from, in
// microseconds.
type lossCount struct {
	state bbrState
	from  int64
	lossShare
}

// lossShare counts bytes that were delivered and that were lost.
type lossShare struct{ delivered, lost float64 }

func (l *lossShare) share() float64 { return l.lost / max(l.lost+l.delivered, 1) }

// above reports whether the share lost exceeds threshold, and not by chance:
// by three standard deviations and three losses more. The three losses are
// there because above is called again and again while there is little to
// count. It counts full segments, as small ones share packets and are lost
// together.
func (l *lossShare) above(threshold, mss float64) bool {
	n := (l.lost + l.delivered) / mss
	return l.share()*n > threshold*n+3*math.Sqrt(threshold*n)+3
}

// OnTick follows the size of segments, which path MTU discovery changes.
func (c *bbrControl) OnTick(s *State) { c.mss = fullSize(s) }

// OnAck updates the model, and then the state, pacing rate and window.
func (c *bbrControl) OnAck(s *State) {
	gap := s.Micros - c.now
	c.now = s.Micros
	c.size.fold()
	r := &s.Sample
	c.countRounds(s)
	c.watchPath(s)
	c.updateRate(r)
	c.updateMinRTT(s)
	c.updateExtraAcked(float64(r.Acked))
	c.measureLossFloor()
	c.answerProbe(s)
	c.collapse(r)
	c.lowerBounds(s)
	c.step(s)
	if c.ceiling != nil {
		c.updateCeiling(s, gap)
	}
	c.setPace(s)
	c.setWindow(s)
}

// countRounds notes when a round ends and the next begins.
func (c *bbrControl) countRounds(s *State) {
	c.newRound = s.Sample.PriorDelivered >= c.roundEnd
	if c.newRound {
		c.roundEnd = s.Delivered
		c.rounds++
	}
}

// lossLimit returns the share of loss above which it counts as congestion.
func (c *bbrControl) lossLimit() float64 {
	if !c.lossFloorKnown {
		return bbrLossMost
	}
	if c.limited {
		return max(c.lossFloor, c.ceiling.tolerated) + bbrLossThreshold
	}
	return c.lossFloor + bbrLossThreshold
}

// measureLossFloor measures what was lost in bbrDown, when less was sent than
// the path takes: congestion is not the cause of these losses. It does so two
// rounds later, when their fate is known.
func (c *bbrControl) measureLossFloor() {
	l := &c.lossesBefore
	if !c.newRound || c.rounds != 2 || l.state != bbrDown || l.delivered == 0 || c.limited {
		return
	}
	share := min(l.share(), bbrLossMost)
	if !c.lossFloorKnown {
		c.lossFloor, c.lossFloorKnown = share, true
	}
	c.lossFloor += (share - c.lossFloor) / 2
}

// updateRate adds the sample to the filter of delivery rates. Its window is
// this cycle of ProbeBW and the one before. Cycles with too little data do not
// count, so that what is known of the path is not forgotten.
func (c *bbrControl) updateRate(r *Sample) {
	rate := float64(r.Rate())
	if rate == 0 || r.Interval < c.minRTT {
		return // acknowledgements that came in a bunch
	}
	c.tried = c.tried || !r.AppLimited
	if !r.AppLimited || rate > c.maxRate() {
		c.bw[1] = max(c.bw[1], rate)
	}
}

func (c *bbrControl) maxRate() float64 { return max(c.bw[0], c.bw[1]) }

// bandwidth returns the estimate of the bandwidth in bytes a second.
func (c *bbrControl) bandwidth() float64 {
	if c.limited {
		return c.ceiling.rate
	}
	return min(c.maxRate(), c.bwLo)
}

// bdp returns the bytes that are in flight at that bandwidth without a queue,
// including those that will be lost.
func (c *bbrControl) bdp() float64 {
	if c.minRTT == 0 {
		return initialWindow * c.mss
	}
	return c.bandwidth() / (1 - c.lossFloor) * float64(c.minRTT) / 1e6
}

// updateMinRTT follows the shortest round-trip time. A sample within a 64th of
// it confirms it. So a path that is idle or lightly loaded from time to time
// need not be emptied on purpose. A wider margin would confirm the queue of
// another flow.
func (c *bbrControl) updateMinRTT(s *State) {
	rtt := s.Sample.RTT
	if rtt == 0 {
		return
	}
	switch {
	case c.minRTT == 0 || rtt < c.minRTT:
		c.minRTT, c.minAt = rtt, c.now
	case rtt <= c.minRTT+c.minRTT/64:
		c.minAt = c.now
	}
}

// aggregation is by how much acknowledgements at times exceed what the
// bandwidth lets expect (ACK aggregation). Some paths hold packets or
// acknowledgements back and release them in a bunch, as radio links do. Then as
// much more has to be in flight.
type aggregation struct {
	start  int64 // of the interval in which more is acknowledged, microseconds
	acked  float64
	most   [2]float64 // bytes in excess, in the rounds before and in these
	rounds int
}

// updateExtraAcked is BBRUpdateACKAggregation of the draft, except for bunches
// only: a rate that rises slowly is another flow that makes room. An interval lasts as long
// as a path may hold packets back. It would not end if the bandwidth were a little too low.
func (c *bbrControl) updateExtraAcked(acked float64) {
	e := &c.extraAcked
	if c.newRound {
		e.rounds++
		if e.rounds >= bbrExtraRounds || !c.full {
			e.most[0], e.most[1], e.rounds = e.most[1], 0, 0
		}
	}
	expected := c.maxRate() * float64(c.now-e.start) / 1e6
	if e.acked <= expected || c.now-e.start > bbrMostHeld {
		e.start, e.acked, expected = c.now, 0, 0
	}
	e.acked += acked
	if e.acked >= bbrAggregation*expected {
		e.most[1] = max(e.most[1], min(e.acked-expected, c.cwnd))
	}
}

// aggregated returns the bytes that are in flight beyond bdp without a queue.
func (c *bbrControl) aggregated() float64 {
	return max(c.extraAcked.most[0], c.extraAcked.most[1])
}

// heldBack returns the same without what the peer holds back: it acknowledges as rarely as
// four times in a round trip. At an acknowledgement that is not in flight.
func (c *bbrControl) heldBack() float64 {
	return max(c.aggregated()-c.bdp()/bbrAckShare, 0)
}

// answerProbe ends a probe that has caused too much loss, and records in
// inflightHi what was in flight then. The losses of Startup and bbrUp are known
// up to two rounds later.
func (c *bbrControl) answerProbe(s *State) {
	if c.limited {
		return
	}
	l := &c.losses
	if c.rounds <= 2 && (c.state == bbrDrain || c.state == bbrDown) {
		l = &c.lossesBefore
	}
	if l.state != bbrStartup && l.state != bbrUp || !l.above(c.lossLimit(), c.mss) {
		return
	}
	if r := &s.Sample; r.Interval > 0 && !r.AppLimited {
		c.inflightHi = max(float64(r.InFlight-r.Lost), bbrBeta*c.target())
	}
	l.delivered, l.lost = math.Inf(1), 0 // responded once, that is enough
	switch c.state {
	case bbrStartup:
		c.full, c.fullByLoss = true, c.undo.taken
	case bbrUp:
		c.enterDown()
	}
}

// target returns the window that the model calls for, in bytes.
func (c *bbrControl) target() float64 {
	return min(bbrCwndGain*c.bdp(), c.cwnd)
}

// lowerBounds responds to losses that come without a probe: another flow has
// begun, or the path has become slower. The bounds hold until the next probe.
// Unless losses are severe, they are at least bbrBeta of the largest rate and
// of the window.
func (c *bbrControl) lowerBounds(s *State) {
	if !c.newRound || c.state != bbrCruise && (c.state != bbrDown || c.limited) {
		return
	}
	l := &c.losses
	if !l.above(c.lossLimit(), c.mss) {
		return
	}
	if c.limited {
		c.lowerCeiling(l.share())
		*l = lossCount{state: c.state, from: c.now}
		return
	}
	floor := bbrBeta
	if l.share() > bbrLossSevere {
		floor = 0
	}
	latest := float64(s.Sample.Rate())
	c.bwLo = max(min(c.bwLo, c.maxRate())*bbrBeta, latest, floor*c.maxRate())
	c.inflightLo = max(min(c.inflightLo, c.cwnd)*bbrBeta, float64(s.Sample.Delivered), floor*c.cwnd)
	if c.state == bbrCruise {
		*l = lossCount{state: c.state, from: c.now}
	}
}

// step goes on to the next state when it is time.
func (c *bbrControl) step(s *State) {
	flight := float64(s.FlightBytes)
	switch c.state {
	case bbrStartup:
		c.checkFull(s)
		if c.full {
			c.enter(bbrDrain, bbrDrainPace)
		}
	case bbrDrain:
		if flight <= c.bdp()+c.heldBack() {
			c.enterDown()
		}
	case bbrDown:
		if c.limited {
			break // followCeiling ends it
		}
		if c.rounds >= 2 && flight <= min(c.bdp()+c.heldBack(), bbrHeadroom*c.inflightHi) || c.probeDue() {
			c.enter(bbrCruise, 1)
		}
	case bbrCruise:
		if c.probeDue() {
			c.enter(bbrRefill, 1)
			c.inflightLo, c.bwLo = math.Inf(1), math.Inf(1)
		}
	case bbrRefill:
		if c.rounds >= 1 {
			c.enter(bbrUp, bbrUpPace)
			c.fullRate, c.fullCount = c.maxRate(), 0
			c.growth = bbrGrowth
		}
	case bbrUp:
		c.probe(s, flight)
	case bbrProbeRTT:
		c.probeRTT(s, flight)
	}
	if c.state != bbrProbeRTT && c.state != bbrStartup && (c.now-c.minAt > bbrMinRTTWindow || c.isLonger()) {
		c.startProbeRTT()
	}
}

func (c *bbrControl) enter(state bbrState, pace float64) {
	c.state, c.pace = state, pace
	c.rounds = 0
	c.lossesBefore = c.losses
	c.losses = lossCount{state: state, from: c.now}
}

func (c *bbrControl) enterDown() {
	c.enter(bbrDown, bbrDownPace)
	if c.tried {
		c.bw[0], c.bw[1], c.tried = c.bw[1], 0, false
	}
	c.random = c.random*1664525 + 1013904223 + uint32(c.now)
	c.probeAt = c.now + bbrProbeWait + int64(c.random>>8)%bbrProbeSpread
}

// probeDue reports whether it is time to look for more bandwidth.
func (c *bbrControl) probeDue() bool {
	return c.now >= c.probeAt
}

// quantum returns the bytes that leave at once (send_quantum): what one
// millisecond of the clock releases, and a burst on very short paths.
func (c *bbrControl) quantum() float64 {
	return max(c.rate/1000, 2*c.mss) + float64(max(c.Burst(), 0))
}

const (
	// bbrBurst is the burst on a path without delay, in bytes.
	bbrBurst = 64 << 10
	// bbrBurstHalves is the round-trip time that halves it, in microseconds.
	bbrBurstHalves = 512
	// bbrBurstShare bounds it to what is paid back within 1/bbrBurstShare s.
	bbrBurstShare = 16
)

// Burst returns how many bytes may leave at once beyond what pacing allows, to be
// paid back by a pause. Packets of their own would cost close hosts much, and a
// burst does no harm there (compare tcp_tso_rtt_log of Linux). It is less than a
// packet from a round-trip time of about 3 ms on.
func (c *bbrControl) Burst() int {
	if c.limited {
		return -1
	}
	if c.minRTT == 0 {
		return 0
	}
	most := float64(int(bbrBurst) >> min(c.minRTT/bbrBurstHalves, 31))
	return int(min(most, c.rate/bbrBurstShare))
}

func (c *bbrControl) setPace(s *State) {
	if c.limited {
		c.rate = c.pace * c.ceiling.rate * bbrMargin / (1 - c.lossFloor)
		return
	}
	// What the path loses by itself is sent on top of what arrives. The rate is
	// the largest of samples that vary with those losses: about one and a half
	// standard deviations too high.
	noise := 1.5 * math.Sqrt(c.lossFloor*c.mss/max(c.bdp(), c.mss))
	rate := c.pace * c.bandwidth() * bbrMargin * max(1-noise, 0.5) / (1 - c.lossFloor)
	if !c.full {
		// The largest sample is the newest, and not too high. An application that sends
		// little shows little of the path: not less than the initial window a round.
		rate = max(c.pace*c.bandwidth()*bbrMargin/(1-c.lossFloor), c.rate)
		if c.minRTT > 0 {
			rate = max(rate, bbrStartupPace*initialWindow*c.mss*1e6/float64(c.minRTT))
		}
	}
	if c.rate = rate; rate > 0 || c.full { // 0: nothing is known of the path, and nothing is paced
		c.rate = max(rate, c.leastRate(s))
	}
}

// leastRate returns the rate of the least window, MinPipeCwnd, in bytes a second.
// It slows down with the path, as round trips get longer. If an estimate from too
// little data made the sender slower than that, it would learn nothing of the
// path.
func (c *bbrControl) leastRate(s *State) float64 {
	rtt := max(int64(s.SRTT)*1000, 1000) // microseconds
	if s.SRTT == 0 {
		rtt = max(c.minRTT, 1000)
	}
	return bbrMinCwnd * c.mss * 1e6 / float64(rtt)
}

func (c *bbrControl) setWindow(s *State) {
	acked := float64(s.Sample.Acked)
	target := c.cwndGain()*c.bdp() + c.aggregated() + 3*c.quantum()
	switch {
	case c.full:
		c.cwnd = min(c.cwnd+acked, target)
	case c.cwnd < target || float64(s.Delivered) < initialWindow*c.mss:
		c.cwnd += acked / (1 - c.lossFloor)
	}
	limit := min(c.inflightHi, c.inflightLo)
	bound := c.full && c.change.recent() > 0
	switch c.state {
	case bbrCruise, bbrDown:
		// Leave headroom for other flows if it does not cost the rate.
		limit = min(max(bbrHeadroom*c.inflightHi, min(c.inflightHi, c.bdp()+c.aggregated()+2*c.quantum())), c.inflightLo)
	case bbrProbeRTT:
		c.cwnd = min(c.cwnd, limit, c.drained)
		return
	}
	if bound {
		limit = min(limit, c.mostInFlight())
	}
	c.cwnd = max(min(c.cwnd, limit), bbrMinCwnd*c.mss)
}

func (c *bbrControl) cwndGain() float64 {
	switch c.state {
	case bbrUp:
		return bbrUpCwnd
	case bbrCruise, bbrDown:
		return bbrCruiseCwnd
	}
	return bbrCwndGain
}

func (c *bbrControl) Window() int { return c.size.segments(c.cwnd, c.mss) }

func (c *bbrControl) WindowBytes() float64 { return c.cwnd }

func (c *bbrControl) PacingRate() int64 { return int64(c.rate) }
