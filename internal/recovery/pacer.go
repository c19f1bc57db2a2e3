package recovery

// Pacer spreads what a sender sends over time (RFC 9002 §7.7): a token bucket over the
// controller's pacing rate. It may be overdrawn by one packet, which keeps it exact for
// packets of any size. Its zero value is full.
//
// It must not turn a clock of milliseconds into larger bursts than necessary.
// Acknowledgements release data between two ticks. What a late timer has missed
// is made up for only if the pacer was what held data back. A sender that was
// limited by its window or by lack of data starts with a small burst.
type Pacer struct {
	Budget  float64 // bytes; not above 0: nothing may leave but the rest of a burst
	last    int64   // when the budget was last refilled, in microseconds
	Burst   int32   // by how many bytes it may be overdrawn, besides a packet; negative: bursts are lost
	filled  bool    // Refill has been called
	blocked bool    // data waits for the budget
}

const (
	// catchUp is what a late timer may make up for, in microseconds.
	catchUp = 10_000
	// burstTime is what may leave at once otherwise, in microseconds: two
	// ticks of the clock.
	burstTime = 2_000
	// strictTime is the same if bursts are lost: a tick, and a fifth for late timers.
	strictTime = 1_200
	// debtTime is how much of the future may be used up, in microseconds, by
	// retransmissions and by what was sent at a higher rate. One packet comes on
	// top.
	debtTime = 200_000
	// idleBurst is what may always leave at once after a pause, in packets
	// of packetSize bytes: the initial window of RFC 6928.
	idleBurst  = 10
	packetSize = 1400
)

// Refill adds what was earned until now, in microseconds, at rate bytes a
// second. packet is the size of the largest packet in bytes.
func (p *Pacer) Refill(now, rate int64, packet int) {
	limit := float64(rate) * burstTime / 1e6
	if p.blocked {
		limit = float64(rate) * catchUp / 1e6
	}
	limit = max(limit, idleBurst*packetSize)
	if p.Burst < 0 {
		limit = max(float64(rate)*strictTime/1e6, packetSize)
		p.Budget = max(p.Budget, -packetSize) // what is to be paid back was lost
	}
	elapsed := now - p.last
	switch {
	case !p.filled || elapsed < 0:
		p.Budget = limit
	default:
		p.Budget = min(limit, p.Budget+float64(rate)*float64(elapsed)/1e6)
	}
	// What was spent at a higher rate must not hold data back much longer now.
	p.Budget = max(p.Budget, floor(rate, packet))
	p.last, p.filled = now, true
}

// floor returns the least budget, in bytes, at rate bytes a second.
func floor(rate int64, packet int) float64 {
	return -float64(rate)*debtTime/1e6 - float64(max(packet, packetSize))
}

// Ready reports whether a packet may begin.
func (p *Pacer) Ready() bool {
	p.blocked = !p.open()
	return !p.blocked
}

// open reports whether the budget allows a packet. Once a burst has used it up,
// it must be paid back.
func (p *Pacer) open() bool { return p.Budget > 0 || !p.blocked && p.Budget > -float64(p.Burst) }

// Idle records that nothing waits for the budget.
func (p *Pacer) Idle() { p.blocked = false }

func (p *Pacer) Spend(n int) { p.Budget -= float64(n) }

// Charge is spend for retransmissions, which do not wait for the budget. The
// debt is bounded: after a burst of retransmissions new data waits for
// debtTime at most.
func (p *Pacer) Charge(n int, rate int64) {
	if least := floor(rate, packetSize); p.Budget > least {
		p.Budget = max(p.Budget-float64(n), least)
	}
}

// StrictWait is Wait for retransmissions, which wait only where bursts are lost.
func (p *Pacer) StrictWait(now, rate int64) int64 {
	if p.Burst >= 0 || rate <= 0 {
		return 0
	}
	return p.Wait(now, rate)
}

// Wait returns the microseconds until a packet may begin, at rate bytes a
// second.
func (p *Pacer) Wait(now, rate int64) int64 {
	if !p.filled || p.open() {
		return 0
	}
	// Rounded up, so that the budget is there when the time is up.
	wait := int64(min((1-p.Budget)*1e6/float64(rate), 60e6)) + 1
	return max(0, p.last+wait-now)
}
