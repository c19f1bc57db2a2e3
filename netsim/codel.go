package netsim

import (
	"math"
	"time"
)

// codel is the state of RFC 8289, section 5. There, one call takes packets off
// the queue until it has one to send; here, one call decides on one packet, and
// again tells that this is not the first of such a loop.
type codel struct {
	firstAbove time.Duration // when to act if the delay stays above the target; 0 means it is below
	dropNext   time.Duration
	count      int // drops since this dropping state was entered
	lastCount  int
	dropping   bool
	again      bool // the packet before was dropped at the same turn, as its time had come
	maxPacket  int  // the largest packet seen, in place of the MTU of an interface
}

// decide reports whether the packet that is taken off the queue at the time now,
// after a wait, is to be dropped, with so many bytes left behind it.
func (c *codel) decide(cfg CoDel, now, wait time.Duration, size, behind int) (drop bool) {
	c.maxPacket = max(c.maxPacket, size)
	ok := c.isAbove(cfg, now, wait, behind)
	if c.again && ok {
		c.dropNext = cfg.next(c.dropNext, c.count) // the time may have come for this one too
	}
	c.again = false
	switch {
	case c.dropping && !ok:
		c.dropping = false
	case c.dropping && now >= c.dropNext:
		c.count++
		c.again = true
		return true
	case !c.dropping && ok:
		c.enter(cfg, now)
		return true
	}
	return false
}

// isAbove reports whether the delay has been above the target for an interval.
func (c *codel) isAbove(cfg CoDel, now, wait time.Duration, behind int) bool {
	switch {
	case wait < orDefault(cfg.Target, codelTarget) || behind <= c.maxPacket:
		c.firstAbove = 0
	case c.firstAbove == 0:
		c.firstAbove = later(now, cfg.interval())
	default:
		return now >= c.firstAbove
	}
	return false
}

// enter begins dropping, at the rate that had controlled the queue before if
// that was a short time ago.
func (c *codel) enter(cfg CoDel, now time.Duration) {
	c.dropping = true
	delta := c.count - c.lastCount
	c.count = 1
	if delta > 1 && now-c.dropNext < 16*cfg.interval() {
		c.count = delta
	}
	c.dropNext = cfg.next(now, c.count)
	c.lastCount = c.count
}

// next is the control law: when to drop again after so many drops.
func (c CoDel) next(t time.Duration, count int) time.Duration {
	return later(t, time.Duration(float64(c.interval())/math.Sqrt(float64(count))))
}

func (c CoDel) interval() time.Duration { return orDefault(c.Interval, codelInterval) }

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
