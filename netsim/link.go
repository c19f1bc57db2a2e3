package netsim

import (
	"math/rand/v2"
	"time"
)

// Delivery is one copy of a packet on its way out of a link.
type Delivery struct {
	At     time.Duration // when it arrives, on the caller's own time line
	Data   []byte        // belongs to the receiver of the Delivery
	Queued time.Duration // how long it waited for its turn at the link's Rate
}

// Link is the model of one direction of a link. It has no clock and starts
// nothing: the same seed and the same calls give the same deliveries. It is not
// safe for concurrent use.
type Link struct {
	cfg    LinkConfig
	rng    *rand.PCG
	more   *rand.PCG // for the luck that was added later, so that the other stays as it was
	stats  LinkStats
	delays Delays
	script Script        // what is left of it, in order
	now    time.Duration // of the latest call

	// Chance with a memory.
	bad    bool   // the state of cfg.Burst
	jitter uint64 // the luck of the packet before

	// Order.
	ordered time.Duration // latest arrival among the packets that keep the order
	latest  time.Duration // latest arrival of all

	// Serialisation.
	free      time.Duration // when the last packet that had its turn has left
	refilled  time.Duration // when the token bucket is full again
	remainder int64         // fraction of a nanosecond to add to free, times Rate
	waiting   fifo[waiter]  // accepted packets by the start of their turn
	queued    int           // bytes in waiting
}

// waiter is a packet in the queue in front of Rate.
type waiter struct {
	start time.Duration
	size  int // with the overhead
}

// flight is what befalls one copy of a packet.
type flight struct {
	at     time.Duration
	queued time.Duration
	flip   int // the bit to flip, or -1
}

// verdict is what became of a packet: no flight, one or two.
type verdict struct {
	flights [2]flight
	n       int
}

// NewLink returns an idle link. It panics if cfg is not valid.
func NewLink(cfg LinkConfig, seed uint64) *Link {
	cfg.mustBeValid()
	l := &Link{
		cfg:  cfg,
		rng:  rand.NewPCG(mix(seed), mix(^seed)),
		more: rand.NewPCG(mix(^seed), mix(seed)),
	}
	l.jitter = l.more.Uint64()
	return l
}

// Send puts a packet on the link at the time now and returns its deliveries:
// none, one or, for a duplicate, two, the original first even if its copy
// overtakes it. Deliveries at the same time are meant to be made in the order
// in which they were returned. The time line is the caller's, but must not run
// backwards: a now before the last call's counts as the last
// call. Send does not keep packet.
func (l *Link) Send(now time.Duration, packet []byte) (deliveries []Delivery) {
	v := l.plan(now, len(packet))
	for _, f := range v.flights[:v.n] {
		deliveries = append(deliveries, Delivery{At: f.at, Data: f.copyTo(nil, packet), Queued: f.queued})
	}
	return deliveries
}

// SetConfig changes the settings for the packets sent from now on; packets
// underway, and those waiting for their turn at Rate, keep their times. It panics if cfg
// is not valid.
func (l *Link) SetConfig(cfg LinkConfig) {
	cfg.mustBeValid()
	if cfg.Rate != l.cfg.Rate {
		l.remainder = 0
	}
	if cfg.Burst != l.cfg.Burst {
		l.bad = false
	}
	l.cfg = cfg
	l.keepOrder(l.latest, l.ordered)
}

// Config returns the present settings.
func (l *Link) Config() LinkConfig { return l.cfg }

// Stats returns what has happened so far. Delivered counts the deliveries that
// Send has returned.
func (l *Link) Stats() LinkStats { return l.stats }

// QueueDelays returns how long packets have waited for their turn at Rate, those
// that need not wait included, those that were dropped from the queue not.
func (l *Link) QueueDelays() Delays { return l.delays.clone() }

// Backlog returns what waits for its turn at the time now, in packets and in
// bytes with Overhead.
func (l *Link) Backlog(now time.Duration) (packets, bytes int) {
	l.leave(now)
	return l.waiting.len(), l.queued
}

// plan decides on one packet of the given size, and counts it.
func (l *Link) plan(now time.Duration, size int) (v verdict) {
	l.now = max(l.now, now)
	l.runScript(l.now)
	draw := l.draw()
	l.stats.Sent.add(size)
	switch {
	case l.cfg.Down:
		l.stats.Lost.add(size)
		return v
	case l.cfg.MTU > 0 && size > l.cfg.MTU:
		l.stats.TooBig.add(size)
		return v
	case !l.cfg.limited():
		return l.pass(l.now, 0, size, &draw)
	}
	l.leave(l.now)
	full := size + l.cfg.Overhead
	start := max(l.now, l.turn(full))
	if start > l.now {
		if !l.room(full) {
			l.stats.Overflow.add(size)
			return v
		}
		l.waiting.push(waiter{start, full})
		l.queued += full
	}
	return l.pass(l.serialise(start, full), start-l.now, size, &draw)
}

// pass sends a packet on that has left at the given time.
func (l *Link) pass(left, queued time.Duration, size int, draw *luck) (v verdict) {
	if l.cfg.limited() || queued > 0 {
		l.delays.add(queued)
	}
	if l.isLost(draw) {
		l.stats.Lost.add(size)
		return v
	}
	v.n = 1
	if draw.duplicate < l.cfg.Duplicate {
		l.stats.Duplicated.add(size)
		v.n = 2
	}
	before := l.latest // a copy that overtakes only its own original reorders nothing
	for i := range v.n {
		v.flights[i] = l.fly(left, size, &draw.copies[i])
		v.flights[i].queued = queued
		if v.flights[i].at < before {
			l.stats.Reordered.add(size)
		}
		l.stats.Delivered.add(size)
	}
	return v
}

// leave takes packets whose turn has begun out of the queue.
func (l *Link) leave(now time.Duration) {
	for l.waiting.len() > 0 && l.waiting.first().start <= now {
		l.queued -= l.waiting.pop().size
	}
}

// room reports whether a packet that has to wait finds room.
func (l *Link) room(size int) bool {
	return (l.cfg.Queue == 0 || l.queued+size <= l.cfg.Queue) &&
		(l.cfg.QueuePackets == 0 || l.waiting.len() < l.cfg.QueuePackets)
}

// turn returns when a packet of size bytes, with the overhead, has its turn at the
// earliest: when the one before it has left and the bucket has as many tokens.
func (l *Link) turn(size int) time.Duration {
	if r := l.cfg.Recording; r != nil {
		return r.next(max(l.free, l.now))
	}
	if l.cfg.Rate == 0 || size >= l.cfg.Bucket {
		return max(l.free, l.refilled)
	}
	return max(l.free, l.refilled-time.Duration(int64(l.cfg.Bucket-size)*int64(time.Second)/l.cfg.Rate))
}

// serialise gives a packet its turn at Rate and returns when the last byte has
// left.
func (l *Link) serialise(start time.Duration, size int) (left time.Duration) {
	if l.cfg.Recording != nil {
		l.free = start + 1 // behind this place
		return start
	}
	if l.cfg.Rate == 0 {
		l.free = start
		return start
	}
	if max(l.free, l.refilled) < start {
		l.remainder = 0
	}
	// The remainder is carried from packet to packet: rounding each would make
	// fast links of small packets too fast by several percent.
	total := int64(size)*int64(time.Second) + l.remainder
	took := time.Duration(total / l.cfg.Rate)
	l.remainder = total % l.cfg.Rate
	if l.cfg.Bucket > 0 {
		l.free, l.refilled = start, later(max(start, l.refilled), took)
		return start
	}
	l.free = later(start, took)
	return l.free
}

// fly decides when a copy that left the sender arrives, and in what state.
func (l *Link) fly(left time.Duration, size int, draw *copyLuck) flight {
	f := flight{at: later(left, l.cfg.Delay+l.cfg.extraDelay(draw.jitter)), flip: -1}
	if b := l.cfg.Bunch; b > 0 {
		f.at = (f.at + b - 1) / b * b
	}
	if draw.reorder >= l.cfg.Reorder {
		f.at = max(f.at, l.ordered)
		l.ordered = f.at
	}
	l.latest = max(l.latest, f.at)
	if size > 0 && draw.corrupt < l.cfg.Corrupt {
		f.flip = int(below(draw.bit, uint64(size)*8))
		l.stats.Corrupted.add(size)
	}
	return f
}

// keepOrder makes later packets keep behind the packets of a link, or of a
// configuration, that had come to latest and ordered. Where nothing may be
// reordered, that includes the packets that were exempt from the order.
func (l *Link) keepOrder(latest, ordered time.Duration) {
	if l.cfg.Reorder == 0 {
		ordered = latest
	}
	l.latest = max(l.latest, latest)
	l.ordered = max(l.ordered, ordered)
}

// copyTo appends the copy of packet that f describes to buf.
func (f flight) copyTo(buf, packet []byte) []byte {
	at := len(buf)
	buf = append(buf, packet...)
	if f.flip >= 0 {
		buf[at+f.flip/8] ^= 1 << (f.flip % 8)
	}
	return buf
}
