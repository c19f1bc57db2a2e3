package congestion

import "math"

// Probes of the BBR controller: for bandwidth and for the round-trip time; and undo.

// probe goes on looking for bandwidth until a queue has formed, or until no
// more has arrived for some rounds.
func (c *bbrControl) probe(s *State, flight float64) {
	if c.limited {
		return // followCeiling ends the probe
	}
	bound := flight+float64(s.Sample.Acked)+2*c.mss >= c.inflightHi
	if c.newRound {
		switch {
		case c.maxRate() >= c.fullRate*bbrFullGrowth:
			c.fullRate, c.fullCount = c.maxRate(), 0
		case !bound:
			c.fullCount++
		}
		c.growth *= 2
	}
	if bound {
		// What was too much may no longer be: a little more in the first
		// round, then twice as much in each.
		c.inflightHi += c.growth * float64(s.Sample.Acked)
	}
	over := flight >= bbrUpPace*c.bdp()+c.heldBack()+c.quantum()
	if c.rounds >= 1 && over || c.fullCount >= bbrFullRounds {
		c.enterDown()
	}
}

// startProbeRTT starts to send little for a moment, so that the path empties: half of what
// the path takes by the rate that arrives and the round-trip time that was the least. With
// that of a queue, the queue would stay.
func (c *bbrControl) startProbeRTT() {
	if c.isLonger() {
		c.change.loaded, c.change.carried, c.change.window = c.change.leastRTT, c.change.recent(), c.cwnd
	}
	rate := c.bandwidth()
	if recent := c.change.recent(); recent > 0 {
		rate = min(rate, recent)
	}
	c.drained = max(bbrProbeRTTCwnd*rate*float64(c.minRTT)/1e6, bbrProbeRTTLeast*c.mss)
	if c.change.loaded == 0 {
		c.drained += c.heldBack()
	}
	c.enter(bbrProbeRTT, 1)
	c.probeRTTDone, c.probed = 0, 0
	c.minAt = c.now
}

func (c *bbrControl) probeRTT(s *State, flight float64) {
	if c.probeRTTDone == 0 {
		if flight <= c.drained {
			c.probeRTTDone = c.now + bbrProbeRTTTime
			c.rounds = 0
			c.roundEnd = s.Delivered + s.FlightBytes // what is in flight has met the queue
		}
		return
	}
	if rtt := s.Sample.RTT; c.rounds >= 1 && rtt > 0 && (c.probed == 0 || rtt < c.probed) {
		c.probed = rtt
	}
	if c.probed == 0 || c.now < c.probeRTTDone {
		return
	}
	c.minAt = c.now
	c.judgeLonger()
	if !c.full {
		c.enter(bbrStartup, bbrStartupPace)
		return
	}
	c.enter(bbrCruise, 1)
	c.inflightLo, c.bwLo = math.Inf(1), math.Inf(1)
}

// OnRecovered undoes the response to losses that turn out to have been none.
func (c *bbrControl) OnRecovered(_ *State, spurious bool) {
	if spurious {
		c.losses.lost, c.lossesBefore.lost = 0, 0
		if c.limited {
			c.endCeiling(false)
		}
		if u := c.undo.state; c.undo.taken {
			c.inflightHi, c.inflightLo, c.bwLo = max(c.inflightHi, u.inflightHi), max(c.inflightLo, u.inflightLo), max(c.bwLo, u.bwLo)
			c.cwnd = max(c.cwnd, u.cwnd)
			c.bw[1] = max(c.bw[1], u.maxRate())
		}
		if c.fullByLoss && c.state != bbrProbeRTT {
			c.full, c.fullCount = false, 0
			c.enter(bbrStartup, bbrStartupPace)
		}
	}
	c.undo.taken, c.fullByLoss = false, false
}
