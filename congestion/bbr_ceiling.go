package congestion

import "math"

const (
	bbrCeilingSegments = 8       // full segments delivered in an interval, at least
	bbrCeilingFirst    = 4       // the same in Startup and Drain, where each costs many losses
	bbrCeilingTime     = 20_000  // its time in microseconds, at least
	bbrCeilingTrips    = 4       // the same in shortest round trips
	bbrCeilingGap      = 100_000 // time without an acknowledgement that is an outage, microseconds
	bbrCeilingSevere   = 0.5     // share lost in an interval, at least
	bbrCeilingModel    = 0.7     // share of the pacing rate; if more arrives the model is right
	bbrCeilingPath     = 8       // full segments in flight on the path, at most
	bbrCeilingTries    = 3       // intervals in which the losses have to end
	bbrCeilingGrowth   = 1.1     // growth of the mean while more is sent; below it the ceiling is right
)

// rateCeiling is the mean rate at which data arrives while much is lost, on a path
// that takes less than MinPipeCwnd: a token bucket with a short queue near the
// sender. The model of draft-ietf-ccwg-bbr is wrong there. Samples of the rate show
// what the bucket has saved up. The bandwidth-delay product is less than a segment,
// so that only MinPipeCwnd limits what is in flight, which is more than fits.
// inflight_longterm and bw_shortterm (§5.5.10) do not help, as they have that floor
// too. The mean over an interval is right, as in BBRv1's detection of policers.
//
// Losses of one's own end when less is sent. Random losses go on, and then the
// ceiling is given up.
type rateCeiling struct {
	rate   float64 // bytes a second; a ceiling if bbrControl.limited
	at     int64   // when it was set, microseconds; losses of what had left before do not count
	share  float64 // share lost in the interval for which it was set
	before float64 // the largest rate then, bytes a second
	random float64 // share lost that was found to be random

	first   bool  // it was set in Startup
	drained bool  // an interval of bbrDown has passed since the last probe
	age     uint8 // intervals since it was set, up to bbrCeilingTries+1
	severe  uint8 // intervals in a row with severe losses, until it is set
	probes  uint8 // intervals of bbrUp without growth

	// Since the last probe: the rate before it was lowered and the share lost then, and
	// the share lost that a lower one has not ended. 0: none.
	prior, priorShare, tolerated float64

	// The interval: when it began, microseconds, in which state, and State.Delivered
	// then; bytes lost in it.
	since, delivered int64
	state            bbrState
	lost             float64
}

// countLost counts a transmission of that size that left at sent and was lost. What
// follows measures a path that is short.
func (c *bbrControl) countLost(s *State, sent int64, size int) {
	if c.ceiling == nil {
		if c.segmentsAt(c.maxRate()) >= bbrCeilingPath {
			return
		}
		c.ceiling = new(rateCeiling)
		c.ceiling.begin(s, c.state)
	}
	if sent >= c.ceiling.at {
		c.ceiling.lost += float64(size)
	}
}

func (e *rateCeiling) begin(s *State, state bbrState) {
	e.since, e.delivered, e.lost, e.state = s.Micros, s.Delivered, 0, state
}

// updateCeiling measures the mean rate, and sets and follows the ceiling. gap is
// the time since the last acknowledgement, in microseconds.
func (c *bbrControl) updateCeiling(s *State, gap int64) {
	e := c.ceiling
	if s.Sample.AppLimited || gap > bbrCeilingGap || c.limited && e.state != c.state {
		e.begin(s, c.state)
		return
	}
	segments, starting := float64(bbrCeilingSegments), c.state <= bbrDrain
	if starting {
		segments = bbrCeilingFirst
	}
	took, arrived := s.Micros-e.since, lossShare{float64(s.Delivered - e.delivered), e.lost}
	if !c.newRound || arrived.delivered < segments*c.mss || took < max(bbrCeilingTime, bbrCeilingTrips*c.minRTT) {
		return
	}
	rate := arrived.delivered * 1e6 / float64(took)
	severe := c.isSevere(rate, &arrived)
	if starting && !severe && arrived.delivered < bbrCeilingSegments*c.mss {
		return
	}
	e.begin(s, c.state)
	switch {
	case c.limited:
		c.followCeiling(rate, arrived.share())
	case !severe:
		e.severe = 0
	case !starting && e.severe == 0: // a burst of losses is not enough
		e.severe++
	default:
		c.setCeiling(rate, arrived.share())
	}
}

// isSevere reports whether an interval of that mean rate shows a ceiling: more was
// lost than by chance on a path that loses bbrStartupLossMost, less has arrived than
// the model says, and the path is short.
func (c *bbrControl) isSevere(rate float64, l *lossShare) bool {
	const p = bbrStartupLossMost
	n := (l.lost + l.delivered) / c.mss
	return l.share() > max(bbrCeilingSevere, c.ceiling.random+bbrLossSevere) &&
		l.share()*n > p*n+2*math.Sqrt(p*(1-p)*n) &&
		rate < bbrCeilingModel*c.rate && c.segmentsAt(c.maxRate()) < bbrCeilingPath
}

// segmentsAt returns how many full segments the path has in flight at rate.
func (c *bbrControl) segmentsAt(rate float64) float64 {
	return rate * float64(c.minRTT) / 1e6 / c.mss
}

// setCeiling sets a ceiling, for an interval of that mean rate in which share was
// lost. The other bounds on the model have no meaning below it.
func (c *bbrControl) setCeiling(rate, share float64) {
	e := c.ceiling
	e.rate, e.share, e.at, e.before, e.first = rate, share, c.now, c.maxRate(), !c.full
	e.age, e.severe, e.probes, e.prior, e.tolerated = 0, 0, 0, 0, 0
	c.lossFloor, c.lossFloorKnown = 0, true
	c.inflightHi, c.inflightLo, c.bwLo = math.Inf(1), math.Inf(1), math.Inf(1)
	c.full, c.limited = true, true
	c.enterDown()
}

// followCeiling brings the ceiling up to date after an interval of that mean rate,
// in which share was lost.
func (c *bbrControl) followCeiling(rate, share float64) {
	e := c.ceiling
	if c.state == bbrUp {
		c.probeCeiling(rate, share)
		return
	}
	e.age = min(e.age+1, bbrCeilingTries+1)
	switch goesOn := share > e.share/2; {
	case goesOn && e.age > bbrCeilingTries: // the path has become slower
		c.setCeiling(rate, share)
	case goesOn && e.age == bbrCeilingTries:
		e.random = share
		c.endCeiling(e.first)
		c.bw[1] = max(c.bw[1], e.before)
	case goesOn || e.age == 1 && share > bbrLossThreshold:
		e.rate = min(e.rate, rate)
	case e.age <= bbrCeilingTries: // it is right, and may be too low
		e.age = bbrCeilingTries
		c.lossFloor = min(share, bbrStartupLossMost)
		c.enter(bbrCruise, 1)
		c.probeAt = c.now
	case c.state == bbrDown && !e.drained: // of the queue that the probe has left
		e.drained = true
	case c.state == bbrDown:
		c.lossFloor += (min(share, bbrStartupLossMost) - c.lossFloor) / 4
		c.enter(bbrCruise, 1)
	}
}

// probeCeiling raises the ceiling as long as more arrives when more is sent.
func (c *bbrControl) probeCeiling(rate, share float64) {
	e := c.ceiling
	switch {
	case c.segmentsAt(rate) > 2*bbrCeilingPath: // the path is another one
		c.endCeiling(true)
	case rate >= bbrCeilingGrowth*e.rate:
		e.rate, e.probes = rate, 0
		c.pace = min(bbrUpPace*c.pace, bbrCwndGain)
	default:
		e.probes++
		if share > c.lossFloor+bbrLossThreshold || e.probes == bbrCeilingTries {
			e.probes, e.drained, e.prior, e.tolerated = 0, false, 0, 0
			c.enterDown()
		}
	}
}

// lowerCeiling responds to share lost at the ceiling. If as much is lost at a lower
// one, that was not the cause, and is tolerated until the next probe.
func (c *bbrControl) lowerCeiling(share float64) {
	e := c.ceiling
	if e.prior > 0 && share > e.priorShare/2 {
		e.rate, e.tolerated = e.prior, share
		return
	}
	e.prior, e.priorShare = e.rate, share
	e.rate *= 1 - share + c.lossFloor
}

// endCeiling gives the ceiling up. With startup, Startup finds what the path takes.
func (c *bbrControl) endCeiling(startup bool) {
	c.limited = false
	c.ceiling.at, c.ceiling.tolerated = 0, 0
	if startup {
		c.full, c.fullCount = false, 0
		c.enter(bbrStartup, bbrStartupPace)
	}
}
