package congestion

import "math"

// The pacing rate, bursts and the window of the BBR controller (draft-ietf-ccwg-bbr
// §5.6).

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
	if c.limited() {
		return -1
	}
	if c.minRTT == 0 {
		return 0
	}
	most := float64(int(bbrBurst) >> min(c.minRTT/bbrBurstHalves, 31))
	return int(min(most, c.rate/bbrBurstShare))
}

func (c *bbrControl) setPace(s *State) {
	if c.limited() {
		c.rate = c.pace * c.ceiling.rate * bbrMargin / (1 - c.lossFloor)
		return
	}
	// What the path loses by itself is sent on top of what arrives. The rate is
	// the largest of samples that vary with those losses: about one and a half
	// standard deviations too high.
	noise := 1.5 * math.Sqrt(c.lossFloor*c.mss/max(c.bdp(), c.mss))
	rate := c.pace * c.bandwidth() * bbrMargin * max(1-noise, 0.5) / (1 - c.lossFloor)
	if !c.full {
		// Not less than the initial window per round trip: an application that
		// sends little shows little of the path.
		rate = max(rate, c.rate)
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
		c.cwnd += acked
	}
	limit := min(c.inflightHi, c.inflightLo)
	switch c.state {
	case bbrCruise, bbrDown:
		// Leave headroom for other flows if it does not cost the rate.
		limit = min(max(bbrHeadroom*c.inflightHi, min(c.inflightHi, c.bdp()+c.aggregated()+2*c.quantum())), c.inflightLo)
	case bbrProbeRTT:
		limit = min(limit, c.windowOfProbeRTT())
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
