package congestion

import "math"

// What the BBR controller does if the path changes under it. Its model is the largest
// rate of some seconds and the least round-trip time of ten (draft-ietf-ccwg-bbr §5.5): a
// path that becomes slower or longer is not that for as long.

const (
	// bbrQueueTime is the queue that may form on a path whatever its round-trip time, in
	// microseconds. What is in flight is bounded to what arrives, at the rate of the last
	// two round trips, in that time and the least round-trip time.
	bbrQueueTime = 50_000
	// bbrMostHeld is for how long a path may hold packets or acknowledgements back, in
	// microseconds, for what is in flight to be more by as much: Wi-Fi that saves power
	// does so for a beacon interval or two.
	bbrMostHeld = 250_000
	// bbrLonger is how many times the least round-trip time each one of a round has to
	// be, in bbrLongerRounds rounds in a row, until the model is tested by ProbeRTT: more
	// than bbrUpCwnd, which explains a queue of this flow. bbrLongerTime is the least
	// difference in microseconds.
	bbrLonger       = bbrUpCwnd
	bbrLongerRounds = 3
	bbrLongerTime   = 5_000
	// bbrLateRound is how long a round lasts, in microseconds, and bbrLateTrips in least
	// round trips, until what has arrived in it bounds the rate.
	bbrLateRound = 1_000_000
	bbrLateTrips = 4
)

// pathChange watches for one.
type pathChange struct {
	rates    [2]float64 // largest delivery rate of the round before and of this one, bytes a second
	leastRTT int64      // of the round, microseconds; 0: no sample
	begun    int64      // when the round began, microseconds
	before   int64      // State.Delivered then
	late     float64    // rate at which data has arrived in a late round, bytes a second; 0: it is not late
	longer   uint8      // rounds in which the path was longer, in a row
	shortest int64      // least of their leastRTT
	longest  int64      // largest

	// If the present ProbeRTT tests whether the path is longer, the round-trip time and
	// the rate and the window before it, in microseconds, bytes a second and bytes; loaded
	// is 0 otherwise.
	loaded          int64
	carried, window float64
}

// recent returns the largest delivery rate of the last rounds; 0: not known. If what is
// acknowledged was sent again, there are no samples, and the round does not end.
func (p *pathChange) recent() float64 {
	if rate := max(p.rates[0], p.rates[1]); p.late == 0 || rate < p.late {
		return rate
	}
	return p.late
}

// watchPath records a sample. It runs before the filters of the model have it.
func (c *bbrControl) watchPath(s *State) {
	p, r := &c.change, &s.Sample
	took := c.now - p.begun
	if p.late = 0; took > max(bbrLateRound, bbrLateTrips*c.minRTT) && !r.AppLimited {
		p.late = float64(s.Delivered-p.before) * 1e6 / float64(took)
	}
	if c.newRound {
		p.begun, p.before, p.late = c.now, s.Delivered, 0
		if p.leastRTT > 0 {
			if c.state != bbrStartup && c.state != bbrDrain && float64(p.leastRTT) > c.longestRTT() {
				if p.longer == 0 {
					p.shortest, p.longest = p.leastRTT, 0
				}
				p.longer++
				p.shortest, p.longest = min(p.shortest, p.leastRTT), max(p.longest, p.leastRTT)
			} else {
				p.longer = 0
			}
		}
		p.leastRTT = 0
		if p.rates[1] > 0 {
			p.rates[0], p.rates[1] = p.rates[1], 0
		}
	}
	if r.RTT > 0 && (p.leastRTT == 0 || r.RTT < p.leastRTT) {
		p.leastRTT = r.RTT
	}
	switch rate := float64(r.Rate()); {
	case rate == 0 || r.Interval < c.minRTT:
	case r.AppLimited:
		p.rates[1] = max(p.rates[1], rate, c.maxRate())
	default:
		p.rates[1] = max(p.rates[1], rate)
	}
}

// longestRTT returns the longest that the least round-trip time of a round is, in
// microseconds, if the model is right: with the queue of this flow, and what the path
// holds back.
func (c *bbrControl) longestRTT() float64 {
	return bbrLonger*float64(c.minRTT) + c.aggregated()*1e6/max(c.bandwidth(), 1) + bbrLongerTime
}

// mostInFlight returns the bound on what is in flight that the rate of the last rounds
// sets, in bytes.
func (c *bbrControl) mostInFlight() float64 {
	time := float64(c.minRTT) + max((bbrUpCwnd-1)*float64(c.minRTT), bbrQueueTime)
	recent := c.change.recent()
	return recent*time/1e6/(1-c.lossFloor) + min(c.aggregated(), recent*bbrMostHeld/1e6) + c.quantum()
}

// isLonger reports whether round trips have been so long that the model needs a test.
func (c *bbrControl) isLonger() bool { return c.change.longer >= bbrLongerRounds }

// judgeLonger ends a test, which has found the least round-trip time while little was in
// flight. Either the path is longer, and is another one, whose rate Startup finds. Or there
// was a queue, as the path has become slower.
func (c *bbrControl) judgeLonger() {
	p := &c.change
	if p.loaded == 0 {
		c.minRTT = c.probed
		return
	}
	c.forgetRate(p.carried)
	steady := p.longest <= p.shortest*3/2
	if steady || c.probed < c.minRTT {
		c.minRTT = c.probed
	}
	if steady && c.minRTT >= p.loaded-p.loaded/4 {
		c.full, c.rate = false, 0
		c.cwnd = max(c.cwnd, min(c.bdp(), p.window)) // as before the test
	}
	p.loaded, p.longer = 0, 0
}

// forgetRate makes rate, in bytes a second, all that is known of the rate of the path.
func (c *bbrControl) forgetRate(rate float64) {
	c.bw = [2]float64{0, rate}
	c.fullRate, c.fullCount = 0, 0
	c.inflightHi, c.inflightLo, c.bwLo = math.Inf(1), math.Inf(1), math.Inf(1)
	c.extraAcked = aggregation{start: c.now}
}

// collapse forgets the rate if most of what was sent in a round trip was lost, and what
// has arrived in two shows a path of less than half of it. Otherwise what was in flight
// would leave again at the old rate, and be lost again.
func (c *bbrControl) collapse(r *Sample) {
	lost := lossShare{float64(r.Delivered), float64(r.Lost)}
	if !c.full || c.limited || r.AppLimited {
		return
	}
	if rate := c.change.recent(); rate > 0 && rate < c.maxRate()/2 && lost.above(c.lossFloor+bbrLossSevere, c.mss) {
		c.forgetRate(rate)
		c.enterDown()
	}
}
