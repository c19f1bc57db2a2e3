package kcp

// pacer is a token bucket over the controller's pacing rate. It may be
// overdrawn by one packet, which keeps it exact for packets of any size.
//
// It must not turn a clock of milliseconds into bursts larger than need be.
// Acknowledgements release data between two ticks, and what a late timer has
// missed is made up for only while the pacer was what held data back; a sender
// that was limited by its window or by want of data starts with a small burst.
type pacer struct {
	budget  float64 // bytes
	last    int64   // when the budget was last filled up, in microseconds
	filled  bool
	blocked bool // data waits for the budget
}

const (
	// pacerCatchUp is what a late timer may make up for, in microseconds.
	pacerCatchUp = 10_000
	// pacerBurst is what may leave at once otherwise: two ticks of the clock.
	pacerBurst = 2_000
	// pacerDebt is how much of the future retransmissions may use up, in
	// microseconds, beside one packet.
	pacerDebt = 200_000
	// pacerIdleBurst is what may always leave at once after a pause, in packets
	// of pacedPacket bytes: the initial window of RFC 6928.
	pacerIdleBurst = 10
	pacedPacket    = 1400
)

// refill adds what rate, in bytes a second, earned until now.
func (p *pacer) refill(now, rate int64) {
	limit := float64(rate) * pacerBurst / 1e6
	if p.blocked {
		limit = float64(rate) * pacerCatchUp / 1e6
	}
	limit = max(limit, pacerIdleBurst*pacedPacket)
	elapsed := now - p.last
	switch {
	case !p.filled || elapsed < 0:
		p.budget = limit
	default:
		p.budget = min(limit, p.budget+float64(rate)*float64(elapsed)/1e6)
	}
	p.last, p.filled = now, true
}

// ready reports whether a packet may begin.
func (p *pacer) ready() bool {
	p.blocked = p.budget <= 0
	return !p.blocked
}

// idle tells that nothing waits for the budget.
func (p *pacer) idle() { p.blocked = false }

func (p *pacer) spend(n int) { p.budget -= float64(n) }

// charge is spend for what does not wait for the budget: retransmissions. The
// debt is bounded, so that after a burst of them new data has to wait for
// pacerDebt at most.
func (p *pacer) charge(n int, rate int64) {
	floor := -float64(rate)*pacerDebt/1e6 - pacedPacket
	if p.budget > floor {
		p.budget = max(p.budget-float64(n), floor)
	}
}

// wait returns the microseconds until a packet may begin.
func (p *pacer) wait(now, rate int64) int64 {
	if !p.filled || p.budget > 0 {
		return 0
	}
	// Rounded up, so that the budget is there when the time has come.
	wait := int64(min((1-p.budget)*1e6/float64(rate), 60e6)) + 1
	return max(0, p.last+wait-now)
}
