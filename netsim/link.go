// Package netsim is an impaired network for tests and demonstrations, in three
// layers that share one model of a link:
//
//   - Link is the model of one direction: pure, seeded, driven by calls.
//   - Network joins virtual sockets by links, on the clock of the time package,
//     which inside a testing/synctest bubble is virtual.
//   - Relay puts the same links between real UDP sockets.
package netsim

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"
)

// LinkConfig describes one direction of a link. The zero value is a perfect
// link: no delay, no loss, no limits.
//
// A packet meets the settings in this order: MTU, Queue and Rate, Loss,
// Duplicate, and then, for each copy on its own, Delay with Jitter, Reorder and
// Corrupt. Hence a packet that is lost has used the rate all the same, and the
// second copy of a duplicate costs no rate.
type LinkConfig struct {
	// Delay is the one-way base delay. Zero means none.
	Delay time.Duration

	// Jitter bounds a uniform extra delay in [0, Jitter), drawn anew for every
	// copy. Zero means none.
	Jitter time.Duration

	// Loss is the probability, 0 to 1, that a packet is lost, independently of
	// all others. 1 is a dead link.
	Loss float64

	// Duplicate is the probability, 0 to 1, that a packet is delivered twice.
	Duplicate float64

	// Reorder is the probability, 0 to 1, that a packet is exempt from the
	// order: it takes its own delay, may overtake what was sent before it and
	// be overtaken by what is sent after it. All others are delivered in the
	// order in which they were sent, however their jitter fell. As exempt
	// packets differ from the rest only by their jitter, nothing is reordered
	// while Jitter is zero.
	Reorder float64

	// Corrupt is the probability, 0 to 1, that one random bit of a delivered
	// copy is flipped. Empty packets have no bit to flip.
	Corrupt float64

	// Rate is in bytes per second: packets leave one after another, each
	// taking its length divided by Rate. Zero means unlimited.
	Rate int64

	// Queue is the room, in bytes, for packets that wait for their turn at
	// Rate; a packet that does not fit is dropped. The packet that is just
	// leaving takes no room, so an idle link accepts any packet. Zero means
	// unlimited.
	Queue int

	// MTU is the size in bytes of the largest packet that passes; larger ones
	// vanish. Zero means unlimited.
	MTU int
}

// Validate reports the first field that is out of its range.
func (c LinkConfig) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"Loss", c.Loss}, {"Duplicate", c.Duplicate}, {"Reorder", c.Reorder}, {"Corrupt", c.Corrupt},
	} {
		// Put this way round so that NaN fails too.
		if !(p.value >= 0 && p.value <= 1) {
			return fmt.Errorf("netsim: LinkConfig.%s is %v, want 0 to 1", p.name, p.value)
		}
	}
	for _, p := range []struct {
		name  string
		value int64
	}{
		{"Delay", int64(c.Delay)}, {"Jitter", int64(c.Jitter)},
		{"Rate", c.Rate}, {"Queue", int64(c.Queue)}, {"MTU", int64(c.MTU)},
	} {
		if p.value < 0 {
			return fmt.Errorf("netsim: LinkConfig.%s is negative: %d", p.name, p.value)
		}
	}
	return nil
}

// mustBeValid is for the setters, which return no error: a wrong setting there
// is a mistake in a script, and a script that ran on would test nothing.
func (c LinkConfig) mustBeValid() {
	if err := c.Validate(); err != nil {
		panic(err)
	}
}

// Delivery is one copy of a packet on its way out of a link.
type Delivery struct {
	At   time.Duration // when it arrives, on the caller's own time line
	Data []byte        // belongs to the receiver of the Delivery
}

// Link is the model of one direction of a link. It has no clock and starts
// nothing: the same seed and the same calls give the same deliveries. It is not
// safe for concurrent use.
type Link struct {
	cfg   LinkConfig
	rng   *rand.PCG
	stats LinkStats
	now   time.Duration // of the latest Send

	// Order.
	ordered time.Duration // latest arrival among the packets that keep the order
	latest  time.Duration // latest arrival of all

	// Serialisation.
	free      time.Duration // when the last accepted packet has left
	remainder int64         // fraction of a nanosecond to add to free, times Rate
	waiting   []waiter      // accepted packets by the start of their turn
	queued    int           // bytes in waiting
}

// waiter is a packet in the queue in front of Rate.
type waiter struct {
	start time.Duration
	size  int
}

// flight is what befalls one copy of a packet.
type flight struct {
	at   time.Duration
	flip int // the bit to flip, or -1
}

// luck holds all that is random about one packet. Every packet draws the whole
// of it, so that a change of one setting leaves the luck of the others as it
// was, and runs that differ in one setting can be compared.
type luck struct {
	loss, duplicate float64
	copies          [2]copyLuck
}

type copyLuck struct {
	reorder, corrupt float64
	jitter, bit      uint64
}

// NewLink returns an idle link. It panics if cfg is not valid.
func NewLink(cfg LinkConfig, seed uint64) *Link {
	cfg.mustBeValid()
	return &Link{cfg: cfg, rng: rand.NewPCG(mix(seed), mix(^seed))}
}

// Send puts a packet on the link at the time now and returns its deliveries:
// none, one or, for a duplicate, two, the original first even if its copy
// overtakes it. Deliveries at the same time are meant to be made in the order
// in which they were returned. The time line is the caller's, but must not run
// backwards: a now before that of the last call counts as that of the last
// call. Send does not keep packet.
func (l *Link) Send(now time.Duration, packet []byte) []Delivery {
	flights, n := l.plan(now, len(packet))
	if n == 0 {
		return nil
	}
	deliveries := make([]Delivery, n)
	for i, f := range flights[:n] {
		deliveries[i] = Delivery{At: f.at, Data: f.copyTo(nil, packet)}
	}
	return deliveries
}

// SetConfig changes the settings for the packets sent from now on; packets
// underway, and those waiting for their turn at Rate, keep their times. It
// panics if cfg is not valid.
func (l *Link) SetConfig(cfg LinkConfig) {
	cfg.mustBeValid()
	if cfg.Rate != l.cfg.Rate {
		l.remainder = 0
	}
	l.cfg = cfg
	l.keepOrder(l.latest, l.ordered)
}

// Stats returns what has happened so far. Delivered counts the deliveries that
// Send has returned.
func (l *Link) Stats() LinkStats { return l.stats }

// plan decides on one packet of the given size, and counts it.
func (l *Link) plan(now time.Duration, size int) (flights [2]flight, n int) {
	l.now = max(l.now, now)
	draw := l.draw()
	l.stats.Sent.add(size)
	if l.cfg.MTU > 0 && size > l.cfg.MTU {
		l.stats.TooBig.add(size)
		return flights, 0
	}
	left, ok := l.serialise(size)
	if !ok {
		l.stats.Overflow.add(size)
		return flights, 0
	}
	if draw.loss < l.cfg.Loss {
		l.stats.Lost.add(size)
		return flights, 0
	}
	n = 1
	if draw.duplicate < l.cfg.Duplicate {
		l.stats.Duplicated.add(size)
		n = 2
	}
	before := l.latest // a copy that overtakes only its own original reorders nothing
	for i := range n {
		flights[i] = l.fly(left, size, draw.copies[i])
		if flights[i].at < before {
			l.stats.Reordered.add(size)
		}
		l.stats.Delivered.add(size)
	}
	return flights, n
}

// serialise gives a packet its turn at Rate and returns when the last byte has
// left. It reports false if the packet would have to wait and finds no room.
func (l *Link) serialise(size int) (left time.Duration, ok bool) {
	if l.cfg.Rate == 0 {
		return l.now, true
	}
	started := 0
	for started < len(l.waiting) && l.waiting[started].start <= l.now {
		l.queued -= l.waiting[started].size
		started++
	}
	l.waiting = l.waiting[started:]

	start := max(l.now, l.free)
	if start > l.now {
		if l.cfg.Queue > 0 && l.queued+size > l.cfg.Queue {
			return 0, false
		}
		l.waiting = append(l.waiting, waiter{start, size})
		l.queued += size
	}
	if l.free < l.now {
		l.remainder = 0
	}
	// The remainder is carried from packet to packet: rounding each would make
	// fast links of small packets too fast by several percent.
	total := int64(size)*int64(time.Second) + l.remainder
	l.free = start + time.Duration(total/l.cfg.Rate)
	l.remainder = total % l.cfg.Rate
	return l.free, true
}

// fly decides when a copy that left the sender arrives, and in what state.
func (l *Link) fly(left time.Duration, size int, draw copyLuck) flight {
	f := flight{at: left + l.cfg.Delay + time.Duration(below(draw.jitter, uint64(l.cfg.Jitter))), flip: -1}
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

// keepOrder makes later packets keep behind those of a link, or of a
// configuration, that had come to latest and ordered. Where nothing may be
// reordered, that includes the packets that were exempt from the order.
func (l *Link) keepOrder(latest, ordered time.Duration) {
	if l.cfg.Reorder == 0 {
		ordered = latest
	}
	l.latest = max(l.latest, latest)
	l.ordered = max(l.ordered, ordered)
}

func (l *Link) draw() luck {
	var d luck
	d.loss, d.duplicate = l.probability(), l.probability()
	for i := range d.copies {
		d.copies[i] = copyLuck{
			reorder: l.probability(), corrupt: l.probability(),
			jitter: l.rng.Uint64(), bit: l.rng.Uint64(),
		}
	}
	return d
}

// probability returns a number in [0, 1), so that p > probability() is never
// true for p == 0 and always for p == 1.
func (l *Link) probability() float64 { return float64(l.rng.Uint64()>>11) / (1 << 53) }

// below scales a random word to [0, bound), or to 0 if the bound is 0. Unlike
// rand.Uint64N it never needs a second word.
func below(word, bound uint64) uint64 {
	hi, _ := bits.Mul64(word, bound)
	return hi
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

// mix spreads a seed over all 64 bits (the finaliser of SplitMix64), as seeds
// are often small numbers that differ by one.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
