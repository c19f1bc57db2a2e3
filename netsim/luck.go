package netsim

import (
	"math"
	"math/bits"
	"time"
)

// luck holds all that is random about one packet. Every packet draws the whole
// of it, so that a change of one setting leaves the luck of the others as it
// was, and runs that differ in one setting can be compared.
type luck struct {
	loss, duplicate float64
	burst           float64 // with bad
	bad             bool    // the state of the burst model
	copies          [2]copyLuck
}

type copyLuck struct {
	reorder, corrupt float64
	jitter, bit      uint64
}

func (l *Link) draw() luck {
	var d luck
	d.loss, d.duplicate = probability(l.rng.Uint64()), probability(l.rng.Uint64())
	for i := range d.copies {
		d.copies[i] = copyLuck{
			reorder: probability(l.rng.Uint64()), corrupt: probability(l.rng.Uint64()),
			jitter: l.rng.Uint64(), bit: l.rng.Uint64(),
		}
	}
	turn := probability(l.more.Uint64())
	if l.bad {
		l.bad = turn >= l.cfg.Burst.ToGood
	} else {
		l.bad = turn < l.cfg.Burst.ToBad
	}
	d.bad, d.burst = l.bad, probability(l.more.Uint64())
	if probability(l.more.Uint64()) < l.cfg.JitterCorrelation {
		d.copies[0].jitter = l.jitter
	}
	if probability(l.more.Uint64()) < l.cfg.JitterCorrelation {
		d.copies[1].jitter = d.copies[0].jitter
	}
	l.jitter = d.copies[0].jitter
	return d
}

// isLost reports whether chance takes a packet.
func (l *Link) isLost(d *luck) bool {
	burst := l.cfg.Burst.LossGood
	if d.bad {
		burst = l.cfg.Burst.LossBad
	}
	return d.loss < l.cfg.Loss || d.burst < burst
}

// extraDelay turns a random word into a delay of the distribution of the
// jitter. It gets by with operations that give the same result on every
// platform.
func (c *LinkConfig) extraDelay(word uint64) time.Duration {
	jitter := uint64(c.Jitter)
	switch c.JitterShape {
	case JitterNormal:
		sum := word&0xffff + word>>16&0xffff + word>>32&0xffff + word>>48
		return time.Duration(below(sum<<46, jitter)) // sum is below 2^18
	case JitterPareto:
		// The inverse of the distribution function of the Lomax distribution of
		// shape 4 and scale 3/2, for a mean of 1/2.
		share := 1 / math.Sqrt(math.Sqrt(1-probability(word)))
		return time.Duration(min((share-1)*1.5, 20) * float64(jitter))
	}
	return time.Duration(below(word, jitter))
}

// probability makes a random word a number in [0, 1), so that p > probability
// is never true for p == 0 and always for p == 1.
func probability(word uint64) float64 { return float64(word>>11) / (1 << 53) }

// below scales a random word to [0, bound), or to 0 if the bound is 0. Unlike
// rand.Uint64N it never needs a second word.
func below(word, bound uint64) uint64 {
	hi, _ := bits.Mul64(word, bound)
	return hi
}

// mix spreads a seed over all 64 bits (the finaliser of SplitMix64), as seeds
// are often small numbers that differ by one.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
