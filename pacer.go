package kcp

// pacer is a token bucket over the controller's pacing rate. It may be
// overdrawn by one packet, which keeps it exact for packets of any size. Its
// zero value is full.
//
// It must not turn a clock of milliseconds into larger bursts than necessary.
// Acknowledgements release data between two ticks. What a late timer has missed
// is made up for only if the pacer was what held data back. A sender that was
// limited by its window or by lack of data starts with a small burst.
type pacer struct {
	budget  float64 // bytes; not above 0: nothing may leave but the rest of a burst
	last    int64   // when the budget was last refilled, in microseconds
	burst   int32   // by how many bytes it may be overdrawn, besides a packet
	filled  bool    // refill has been called
	blocked bool    // data waits for the budget
}

const (
	// pacerCatchUp is what a late timer may make up for, in microseconds.
	pacerCatchUp = 10_000
	// pacerBurst is what may leave at once otherwise, in microseconds: two
	// ticks of the clock.
	pacerBurst = 2_000
	// pacerDebt is how much of the future may be used up, in microseconds, by
	// retransmissions and by what was sent at a higher rate. One packet comes on
	// top.
	pacerDebt = 200_000
	// pacerIdleBurst is what may always leave at once after a pause, in packets
	// of pacedPacket bytes: the initial window of RFC 6928.
	pacerIdleBurst = 10
	pacedPacket    = 1400
)

// refill adds what was earned until now, in microseconds, at rate bytes a
// second. packet is the size of the largest packet in bytes.
func (p *pacer) refill(now, rate int64, packet int) {
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
	// What was spent at a higher rate must not hold data back much longer now.
	p.budget = max(p.budget, pacerFloor(rate, packet))
	p.last, p.filled = now, true
}

// pacerFloor returns the least budget, in bytes, at rate bytes a second.
func pacerFloor(rate int64, packet int) float64 {
	return -float64(rate)*pacerDebt/1e6 - float64(max(packet, pacedPacket))
}

// ready reports whether a packet may begin.
func (p *pacer) ready() bool {
	p.blocked = !p.open()
	return !p.blocked
}

// open reports whether the budget allows a packet. Once a burst has used it up,
// it must be paid back.
func (p *pacer) open() bool { return p.budget > 0 || !p.blocked && p.budget > -float64(p.burst) }

// idle records that nothing waits for the budget.
func (p *pacer) idle() { p.blocked = false }

func (p *pacer) spend(n int) { p.budget -= float64(n) }

// charge is spend for retransmissions, which do not wait for the budget. The
// debt is bounded: after a burst of retransmissions new data waits for
// pacerDebt at most.
func (p *pacer) charge(n int, rate int64) {
	if floor := pacerFloor(rate, pacedPacket); p.budget > floor {
		p.budget = max(p.budget-float64(n), floor)
	}
}

// wait returns the microseconds until a packet may begin, at rate bytes a
// second.
func (p *pacer) wait(now, rate int64) int64 {
	if !p.filled || p.open() {
		return 0
	}
	// Rounded up, so that the budget is there when the time is up.
	wait := int64(min((1-p.budget)*1e6/float64(rate), 60e6)) + 1
	return max(0, p.last+wait-now)
}
