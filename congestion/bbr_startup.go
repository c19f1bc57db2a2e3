package congestion

import "math"

// When Startup of the BBR controller ends (draft-ietf-ccwg-bbr §5.3.1).

const (
	// In Startup the share that the path loses is not yet known. It is taken
	// from the rounds in which the rate still grew. The bound is for a path
	// that loses bbrLossMost each way: a segment whose acknowledgement is lost
	// counts as lost too.
	bbrStartupLossMost = 1 - (1-bbrLossMost)*(1-bbrLossMost)
	bbrStartupFew      = 64  // full segments; of fewer, a small share lost may be chance
	bbrStartupLossy    = 0.1 // share above which one round without growth may be chance
)

// checkFull ends Startup when the rate has stopped growing for some rounds, or
// for one if losses show the same; for two if the path is lossy, as then the
// samples of the rate vary. For an application that sends in bursts the losses
// may be the only sign.
func (c *bbrControl) checkFull(s *State) {
	if !c.newRound {
		return
	}
	limit := c.startupLossLimit()
	lossy := c.losses.above(limit, c.mss) || c.lossesBefore.above(limit, c.mss)
	switch {
	case c.maxRate() >= c.fullRate*bbrFullGrowth:
		c.fullRate, c.fullCount = c.maxRate(), 0
		few := c.grown.lost+c.grown.delivered < bbrStartupFew*c.mss
		c.grown.lost += c.growing.lost
		c.grown.delivered += c.growing.delivered
		c.growing = c.lossesBefore.lossShare
		c.startupLossFloor(few)
	case !s.Sample.AppLimited:
		c.fullCount++
		c.full = c.fullCount >= bbrFullRounds || lossy && (c.fullCount > 1 || limit < bbrStartupLossy)
		c.fullByLoss = c.full && c.fullCount < bbrFullRounds
	default:
		c.full = lossy && c.losses.lost+c.lossesBefore.lost >= bbrFullLost*c.mss
		c.fullByLoss = c.full
	}
	c.lossesBefore = c.losses
	c.losses = lossCount{state: bbrStartup, from: c.now}
}

// startupLossLimit returns the share of loss above which a round of Startup has
// filled the path. It is bbrLossThreshold above what was lost while the rate
// still grew: the upper end of the Wilson score interval, of two standard
// deviations. What was lost in the last round that grew does not count, as that
// round may have filled the path already. A path that loses bbrLossThreshold or
// less counts as one that loses nothing.
func (c *bbrControl) startupLossLimit() float64 {
	lost, n := c.grown.lost/c.mss, (c.grown.lost+c.grown.delivered)/c.mss
	if lost <= bbrLossThreshold*n && n >= bbrStartupFew {
		return bbrLossThreshold
	}
	upper := (lost + 2 + 2*math.Sqrt(lost*(1-lost/max(n, 1))+1)) / (n + 4)
	return min(upper, bbrStartupLossMost) + bbrLossThreshold
}

// startupLossFloor takes what was lost while the rate still grew for what the path loses
// whatever is sent. Startup then doubles what is delivered in a round (§5.3.1). Otherwise
// BBR.bw, and with it the pacing rate and the window, would grow by less the more the
// path loses. From bbrStartupFew segments on, of which few is the opposite, that share
// only falls: a flow of another controller that fills the queue lets the rate grow, and
// loses packets, for some rounds.
func (c *bbrControl) startupLossFloor(few bool) {
	if share := min(c.grown.share(), bbrLossMost); !c.lossFloorKnown && (few || share < c.lossFloor) {
		c.lossFloor = share
	}
}

// State returns the name of the state in draft-ietf-ccwg-bbr, in lower case,
// such as "probe_bw_cruise".
func (c *bbrControl) State() string {
	switch c.state {
	case bbrStartup:
		return "startup"
	case bbrDrain:
		return "drain"
	case bbrDown:
		return "probe_bw_down"
	case bbrCruise:
		return "probe_bw_cruise"
	case bbrRefill:
		return "probe_bw_refill"
	case bbrUp:
		return "probe_bw_up"
	}
	return "probe_rtt"
}
