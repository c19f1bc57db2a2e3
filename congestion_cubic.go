package kcp

import "math"

// What the controllers beyond the reference start with and never go below, in
// full segments.
const (
	initialWindow = 10 // RFC 6928
	minimalWindow = 2
)

// meanSize follows the size of the segments that are sent. The controllers
// count in bytes; the window of KCP counts segments, which may be much smaller
// than the largest.
type meanSize struct {
	bytes float64
	sum   float64 // of what was sent since the last fold,
	count float64 // and how many these were
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

// fold brings the mean up to date. It happens with acknowledgements only, so
// that the window stands still while it is being used.
func (m *meanSize) fold() {
	if m.count > 0 {
		m.bytes += (m.sum/m.count - m.bytes) * min(1, m.count/meanSizeMemory)
		m.sum, m.count = 0, 0
	}
}

// segments returns how many segments make window bytes; full is the size of the
// largest.
func (m *meanSize) segments(window, full float64) int {
	size := m.bytes
	if size == 0 {
		size = full
	}
	return int(min(math.Ceil(window/size), maxInt32))
}

// fullSize returns the bytes of a full segment on the wire.
func fullSize(s *CongestionState) float64 { return float64(s.MSS + headerSize) }

// CUBIC of RFC 9438.
const (
	cubicC    = 0.4 // full segments per second cubed
	cubicBeta = 0.7
	// cubicAlpha makes the growth that of Reno with the same reduction.
	cubicAlpha = 3 * (1 - cubicBeta) / (1 + cubicBeta)

	// Pacing: faster than the window per round trip, so that it is the window
	// that limits; in slow start by as much as it grows.
	cubicPace     = 1.25
	slowStartPace = 2
)

// cubicControl is CUBIC (RFC 9438) with HyStart++ (RFC 9406) and pacing.
// Windows are in full segments here.
type cubicControl struct {
	size     meanSize
	state    CongestionState // of the last call; only what does not change often is used
	cwnd     float64
	ssthresh float64
	srtt     float64 // seconds
	hystart  hystart

	// Congestion avoidance.
	wMax  float64 // window before the last reduction, less where it shrinks
	prior float64 // window before the last reduction
	k     float64 // seconds from the reduction until wMax is reached again
	wEst  float64 // window of Reno
	epoch int64   // when this stage began; 0: not yet

	recovery int64      // what left before is part of the last congestion event
	flights  [2]float64 // most in flight in this round and the one before
	roundEnd int64      // Delivered at which the round ends
	idle     int64      // since when the window is not used; 0: it is

	undo checkpoint[cubicControl] // before the losses of late
}

// NewCubic returns CUBIC (RFC 9438), the congestion control of most of the
// internet's TCP: it fills the path and its buffers and takes every loss for
// congestion. Slow start ends when the round-trip time begins to grow
// (HyStart++, RFC 9406), data is paced at 1.25 windows a round trip, twice the
// window in slow start, and a window that is not used does not grow.
func NewCubic() CongestionControl {
	return &cubicControl{cwnd: initialWindow, ssthresh: math.Inf(1)}
}

func (c *cubicControl) Init(s *CongestionState) {
	c.state = *s
	c.hystart.begin(s)
}

func (c *cubicControl) OnRTT(*CongestionState, uint32) {}

func (c *cubicControl) OnPacketSent(_ *CongestionState, p SegmentInfo) { c.size.sent(p.Size) }

func (c *cubicControl) OnPacketAcked(*CongestionState, SegmentInfo) {}

// OnTick notes how much of the window a flush has used.
func (c *cubicControl) OnTick(s *CongestionState) {
	c.state = *s
	c.flights[0] = max(c.flights[0], float64(s.FlightBytes)/fullSize(s))
	if c.limited() {
		if c.idle > 0 && c.epoch > 0 {
			// RFC 9438, section 5.8: the time that the window was not used
			// does not count.
			c.epoch += s.Micros - c.idle
		}
		c.idle = 0
	} else if c.idle == 0 {
		c.idle = s.Micros
	}
}

func (c *cubicControl) OnAppLimited(*CongestionState) {}

// limited reports whether it is the window that holds the sender back. In slow
// start half of it has to be used, since it grows with each acknowledgement
// faster than it can be filled.
func (c *cubicControl) limited() bool {
	used := max(c.flights[0], c.flights[1])
	if c.cwnd < c.ssthresh {
		return c.cwnd < 2*used
	}
	return c.cwnd <= used+2
}

func (c *cubicControl) OnAck(s *CongestionState) {
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

// avoid is congestion avoidance, RFC 9438, section 4.
func (c *cubicControl) avoid(s *CongestionState, acked float64) {
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

// curve is W_cubic(t).
func (c *cubicControl) curve(t float64) float64 {
	d := t - c.k
	return cubicC*d*d*d + c.wMax
}

func (c *cubicControl) OnFastRetransmit(s *CongestionState) {
	if s.LostSent > c.recovery {
		c.reduce(s)
	}
}

// OnTimeout starts anew where nothing has come back since the segment left
// (RFC 5681, section 3.1). Otherwise a time-out of KCP, which each segment has
// for itself, tells no more than a fast retransmission.
func (c *cubicControl) OnTimeout(s *CongestionState) {
	if s.LostSent > c.recovery {
		c.reduce(s)
		if s.DeliveredAt <= s.LostSent {
			c.cwnd = minimalWindow
		}
	}
}

// OnRecovered restores what RFC 9438, section 4.9.2, tells to, where nothing had
// been lost.
func (c *cubicControl) OnRecovered(_ *CongestionState, spurious bool) {
	if u := c.undo.state; c.undo.taken && spurious && c.cwnd < u.cwnd {
		c.cwnd, c.ssthresh, c.hystart = u.cwnd, u.ssthresh, u.hystart
		c.wMax, c.prior, c.k, c.wEst, c.epoch = u.wMax, u.prior, u.k, u.wEst, u.epoch
	}
	c.undo.taken = false
}

// reduce answers a congestion event.
func (c *cubicControl) reduce(s *CongestionState) {
	c.undo.take(c)
	c.recovery = s.Micros
	c.prior = c.cwnd
	if c.cwnd < c.wMax {
		c.wMax = c.cwnd * (1 + cubicBeta) / 2 // fast convergence
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

// HyStart++ of RFC 9406, for a paced sender (L is infinite). Times in
// microseconds.
const (
	hystartMinThreshold  = 4_000
	hystartMaxThreshold  = 16_000
	hystartThresholdPart = 8
	hystartSamples       = 8
	hystartGrowth        = 4 // slower in conservative slow start
	hystartRounds        = 5 // of conservative slow start
)

// hystart finds the end of slow start.
type hystart struct {
	roundEnd      int64 // Delivered at which the round ends
	last, current int64 // least round-trip time of the rounds; 0: none
	samples       int
	baseline      int64 // of conservative slow start; 0: not in it
	rounds        int   // in conservative slow start
}

func (h *hystart) begin(s *CongestionState) {
	*h = hystart{roundEnd: s.Delivered + s.FlightBytes}
}

// divisor returns by what the growth of slow start is to be divided.
func (h *hystart) divisor() float64 {
	if h.baseline > 0 {
		return hystartGrowth
	}
	return 1
}

// acked takes an input in slow start and reports whether that is over.
func (h *hystart) acked(s *CongestionState) bool {
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
