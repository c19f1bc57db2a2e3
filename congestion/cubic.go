package congestion

import "math"

// The windows that CUBIC and BBR start with and never go below, in full
// segments. BBR has its own minimum, bbrMinCwnd.
const (
	initialWindow = 10 // RFC 6928
	minimalWindow = 2
)

// meanSize follows the mean size of the segments sent. The controllers count in
// bytes; the window of KCP counts segments, which may be much smaller than a
// full one.
type meanSize struct {
	bytes float64
	sum   float64 // of the sizes sent since the last fold
	count float64 // segments sent since the last fold
}

// meanSizeMemory is over how many segments the mean is taken.
const meanSizeMemory = 32

func (m *meanSize) sent(size int) {
	if m.bytes == 0 {
		m.bytes = float64(size)
	}
	m.sum += float64(size)
	m.count++
}

// fold brings the mean up to date. It is called with acknowledgements only, so
// that the window stands still while it is being used.
func (m *meanSize) fold() {
	if m.count > 0 {
		m.bytes += (m.sum/m.count - m.bytes) * min(1, m.count/meanSizeMemory)
		m.sum, m.count = 0, 0
	}
}

// segments returns how many segments make up window bytes. full is the size of
// a full segment.
func (m *meanSize) segments(window, full float64) int {
	size := m.bytes
	if size == 0 {
		size = full
	}
	return int(min(math.Ceil(window/size), math.MaxInt32))
}

// fullSize returns the bytes of a full segment, header included.
func fullSize(s *State) float64 { return float64(s.MSS + HeaderSize) }

// CUBIC (RFC 9438).
const (
	cubicC    = 0.4 // full segments per second cubed
	cubicBeta = 0.7
	// cubicAlpha makes the growth equal to Reno's with the same reduction
	// (RFC 9438 §4.3).
	cubicAlpha = 3 * (1 - cubicBeta) / (1 + cubicBeta)

	// Pacing gains. In congestion avoidance the pace exceeds the window per
	// round trip, so that it is the window that limits. In slow start it
	// exceeds it by as much as the window grows.
	cubicPace     = 1.25
	slowStartPace = 2
)

// cubicControl is CUBIC (RFC 9438) with HyStart++ (RFC 9406) and pacing. Its
// windows are in full segments, its times in microseconds unless stated.
type cubicControl struct {
	size     meanSize
	state    State // of the last call; only what seldom changes is used
	cwnd     float64
	ssthresh float64
	srtt     float64 // seconds
	hystart  hystart

	// Congestion avoidance.
	wMax  float64 // W_max: window before the last reduction, less after fast convergence
	prior float64 // cwnd_prior: window before the last reduction
	k     float64 // K: seconds from the reduction until wMax is reached again
	wEst  float64 // W_est: window of Reno
	epoch int64   // when this stage began; 0: not yet

	recovery int64      // what left before belongs to the last congestion event
	flights  [2]float64 // most in flight in this round and in the one before
	roundEnd int64      // Delivered at which the round ends
	idle     int64      // since when the window has not been used; 0: it is

	undo checkpoint[cubicControl] // from before the recent losses
}

// NewCubic returns CUBIC (RFC 9438), the congestion control of most of the
// internet's TCP. It fills the path and its buffers, and treats every loss as
// congestion. Slow start ends when the round-trip time begins to grow
// (HyStart++, RFC 9406). Data is paced at 1.25 windows a round trip, in slow
// start at twice the window. A window that is not used does not grow.
func NewCubic() Control {
	return &cubicControl{cwnd: initialWindow, ssthresh: math.Inf(1)}
}

func (c *cubicControl) Init(s *State) {
	c.state = *s
	c.hystart.begin(s)
}

func (c *cubicControl) OnRTT(*State, uint32) {}

func (c *cubicControl) OnPacketSent(_ *State, p Segment) { c.size.sent(p.Size) }

func (c *cubicControl) OnPacketAcked(*State, Segment) {}

// OnTick records how much of the window a flush has used.
func (c *cubicControl) OnTick(s *State) {
	c.state = *s
	c.flights[0] = max(c.flights[0], float64(s.FlightBytes)/fullSize(s))
	if c.limited() {
		if c.idle > 0 && c.epoch > 0 {
			// Time in which the window was not used does not count (RFC 9438
			// §5.8).
			c.epoch += s.Micros - c.idle
		}
		c.idle = 0
	} else if c.idle == 0 {
		c.idle = s.Micros
	}
}

func (c *cubicControl) OnAppLimited(*State) {}

// limited reports whether it is the window that limits the sender. In slow
// start it suffices that half of it is used, since it grows with each
// acknowledgement faster than it can be filled.
func (c *cubicControl) limited() bool {
	used := max(c.flights[0], c.flights[1])
	if c.cwnd < c.ssthresh {
		return c.cwnd < 2*used
	}
	return c.cwnd <= used+2
}

func (c *cubicControl) OnAck(s *State) {
	c.state = *s
	c.size.fold()
	if rtt := s.Sample.RTT; rtt > 0 {
		if c.srtt == 0 {
			c.srtt = float64(rtt) / 1e6
		}
		c.srtt += (float64(rtt)/1e6 - c.srtt) / 8
	}
	if s.Delivered >= c.roundEnd {
		c.roundEnd = s.Delivered + s.FlightBytes
		c.flights[1], c.flights[0] = c.flights[0], float64(s.FlightBytes)/fullSize(s)
	}
	acked := float64(s.Sample.Acked) / fullSize(s)
	if c.cwnd < c.ssthresh {
		done := c.hystart.acked(s)
		if c.limited() {
			c.cwnd += acked / c.hystart.divisor()
		}
		if done {
			c.ssthresh = c.cwnd
		}
		return
	}
	if c.limited() {
		c.avoid(s, acked)
	}
}

// avoid is congestion avoidance (RFC 9438 §4).
func (c *cubicControl) avoid(s *State, acked float64) {
	if c.epoch == 0 {
		c.epoch = s.Micros
		c.wEst = c.cwnd
		c.k = 0
		if c.cwnd < c.wMax {
			c.k = math.Cbrt((c.wMax - c.cwnd) / cubicC)
		} else {
			c.wMax = c.cwnd
		}
	}
	t := float64(s.Micros-c.epoch) / 1e6
	alpha := cubicAlpha
	if c.wEst >= c.prior {
		alpha = 1
	}
	c.wEst += alpha * acked / c.cwnd
	if c.curve(t) < c.wEst {
		c.cwnd = max(c.cwnd, c.wEst)
		return
	}
	target := min(max(c.curve(t+c.srtt), c.cwnd), 1.5*c.cwnd)
	c.cwnd += (target - c.cwnd) / c.cwnd * acked
}

// curve is W_cubic(t) (RFC 9438 §4.2), in full segments. t is in seconds.
func (c *cubicControl) curve(t float64) float64 {
	d := t - c.k
	return cubicC*d*d*d + c.wMax
}

func (c *cubicControl) OnFastRetransmit(s *State) {
	if s.LostSent > c.recovery {
		c.reduce(s)
	}
}

// OnTimeout starts again if nothing was acknowledged since the segment left
// (RFC 5681 §3.1). Otherwise a time-out shows no more than a fast
// retransmission, because in KCP each segment has its own.
func (c *cubicControl) OnTimeout(s *State) {
	if s.LostSent > c.recovery {
		c.reduce(s)
		if s.DeliveredAt <= s.LostSent {
			c.cwnd = minimalWindow
		}
	}
}

// OnRecovered restores the state as RFC 9438 §4.9.2 says, if nothing had been
// lost.
func (c *cubicControl) OnRecovered(_ *State, spurious bool) {
	if u := c.undo.state; c.undo.taken && spurious && c.cwnd < u.cwnd {
		c.cwnd, c.ssthresh, c.hystart = u.cwnd, u.ssthresh, u.hystart
		c.wMax, c.prior, c.k, c.wEst, c.epoch = u.wMax, u.prior, u.k, u.wEst, u.epoch
	}
	c.undo.taken = false
}

// reduce is the response to a congestion event (RFC 9438 §4.6).
func (c *cubicControl) reduce(s *State) {
	c.undo.take(c)
	c.recovery = s.Micros
	c.prior = c.cwnd
	if c.cwnd < c.wMax {
		c.wMax = c.cwnd * (1 + cubicBeta) / 2 // fast convergence (RFC 9438 §4.7)
	} else {
		c.wMax = c.cwnd
	}
	c.ssthresh = max(c.cwnd*cubicBeta, minimalWindow)
	c.cwnd = c.ssthresh
	c.epoch = 0
	c.hystart.begin(s)
}

func (c *cubicControl) Window() int {
	full := fullSize(&c.state)
	return c.size.segments(c.cwnd*full, full)
}

func (c *cubicControl) WindowBytes() float64 { return c.cwnd * fullSize(&c.state) }

func (c *cubicControl) PacingRate() int64 {
	if c.srtt == 0 {
		return 0
	}
	gain := float64(cubicPace)
	if c.cwnd < c.ssthresh {
		gain = slowStartPace
	}
	return max(1, int64(gain*c.cwnd*fullSize(&c.state)/c.srtt))
}

// HyStart++ (RFC 9406) for a paced sender: L is infinite. Times are in
// microseconds.
const (
	hystartMinThreshold  = 4_000  // MIN_RTT_THRESH
	hystartMaxThreshold  = 16_000 // MAX_RTT_THRESH
	hystartThresholdPart = 8      // MIN_RTT_DIVISOR
	hystartSamples       = 8      // N_RTT_SAMPLE
	hystartGrowth        = 4      // CSS_GROWTH_DIVISOR
	hystartRounds        = 5      // CSS_ROUNDS
)

// hystart finds the end of slow start. CSS is conservative slow start.
type hystart struct {
	roundEnd      int64 // the round ends when PriorDelivered reaches it
	last, current int64 // shortest round-trip times of the rounds; 0: none
	samples       int   // in the current round
	baseline      int64 // cssBaselineMinRtt; 0: not in CSS
	rounds        int   // in CSS
}

func (h *hystart) begin(s *State) {
	*h = hystart{roundEnd: s.Delivered + s.FlightBytes}
}

// divisor returns by what the growth of slow start is divided.
func (h *hystart) divisor() float64 {
	if h.baseline > 0 {
		return hystartGrowth
	}
	return 1
}

// acked handles an input in slow start, and reports whether that is over.
func (h *hystart) acked(s *State) bool {
	if s.Sample.PriorDelivered >= h.roundEnd {
		h.roundEnd = s.Delivered
		h.last, h.current, h.samples = h.current, 0, 0
		if h.baseline > 0 {
			h.rounds++
			if h.rounds >= hystartRounds {
				return true
			}
		}
	}
	rtt := s.Sample.RTT
	if rtt == 0 {
		return false
	}
	h.samples++
	if h.current == 0 || rtt < h.current {
		h.current = rtt
	}
	if h.samples < hystartSamples || h.last == 0 {
		return false
	}
	switch {
	case h.baseline == 0:
		threshold := min(max(h.last/hystartThresholdPart, hystartMinThreshold), hystartMaxThreshold)
		if h.current >= h.last+threshold {
			h.baseline, h.rounds = h.current, 0
		}
	case h.current < h.baseline: // the growth was not lasting
		h.baseline = 0
	}
	return false
}

// State returns "slow_start" or "congestion_avoidance".
func (c *cubicControl) State() string {
	if c.cwnd < c.ssthresh {
		return "slow_start"
	}
	return "congestion_avoidance"
}
