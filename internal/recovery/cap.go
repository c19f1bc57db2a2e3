package recovery

// RateCap is a token bucket over a rate that is not to be exceeded. A packet may begin
// while the budget is not negative, and overdraws it. Nothing is saved up while
// nothing waits. So in any time no more leaves than the rate allows, one packet, and
// what was borrowed. The caller passes the time in microseconds, which must not be
// negative. SetRate is called first.
type RateCap struct {
	rate    int64   // bytes a second
	budget  float64 // bytes; negative: what is to be paid for
	debt    float64 // bytes that were borrowed and are to be paid back
	last    int64   // when the budget was last refilled
	blocked bool    // something has waited for the budget since
}

// SetRate sets the rate in bytes a second, from now on. What was earned at another
// rate is forgotten, and what is to be paid beyond what this one lets be borrowed.
func (c *RateCap) SetRate(rate, now int64) {
	if c.rate > 0 {
		c.refill(now)
	}
	c.rate, c.last = rate, now
	least := floor(rate, packetSize)
	c.budget = max(min(c.budget, 0), least)
	c.debt = min(c.debt, -least)
}

// refill adds what was earned until now. What a late timer has missed is made up for,
// up to a limit, if something was waiting. A debt takes half, and what is left over.
func (c *RateCap) refill(now int64) {
	if now <= c.last {
		return
	}
	limit := 0.0
	if c.blocked {
		limit = float64(c.rate) * catchUp / 1e6
	}
	earned := float64(c.rate) * float64(now-c.last) / 1e6
	paid := min(c.debt, earned/2)
	c.budget += earned - paid
	paid += max(c.budget-limit, 0)
	c.budget = min(c.budget, limit)
	c.debt = max(c.debt-paid, 0)
	c.last, c.blocked = now, false
}

// Ready reports whether a packet may begin now, after pending bytes that are not
// spent yet. If not, something waits for that.
func (c *RateCap) Ready(now int64, pending int) bool {
	c.refill(now)
	ready := c.budget-float64(pending) >= 0
	c.blocked = c.blocked || !ready
	return ready
}

// Blocked reports whether something has to wait, as Ready has said since the budget
// was last refilled.
func (c *RateCap) Blocked() bool { return c.blocked }

// Spend takes n bytes from the budget.
func (c *RateCap) Spend(n int) { c.budget -= float64(n) }

// Borrow is Spend for what does not wait for the budget. The debt is bounded by what
// debtTime allows, and one packet. While it lasts the rest has half of the rate, however
// much is borrowed.
func (c *RateCap) Borrow(n int) {
	c.debt = min(c.debt+float64(n), -floor(c.rate, packetSize))
}

// Indebted reports whether more is borrowed than the rate allows.
func (c *RateCap) Indebted() bool { return c.debt >= float64(c.rate)*debtTime/1e6 }

// Wait returns the microseconds from now until a packet may begin.
func (c *RateCap) Wait(now int64) int64 {
	if c.budget >= 0 {
		return 0
	}
	short := min(c.debt, -c.budget) - c.budget // to be earned, as the debt takes half
	// Rounded up, so that the budget is there when the time is up.
	wait := int64(min(short*1e6/float64(c.rate), 3600e6)) + 1
	return max(0, c.last+wait-now)
}
