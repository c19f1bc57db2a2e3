package fair

import (
	"math/bits"
	"time"
)

// Who gives memory up when it is short (load shedding). Every holder has a rank: what it
// holds for each byte that has moved lately. By Little's law that is how long the average
// byte stays. Holders of the highest rank pay first, and large ones before small ones.

const (
	// period is the time, in milliseconds, after which bytes count half.
	period = 2048
	// amountBits is the size of the amount in Recent.
	amountBits = 40
	maxAmount  = 1<<amountBits - 1
	// spared is what each holder is taken to have moved in any case, in bytes,
	// so that among the ones that move nothing the larger has the higher rank.
	spared = 1 << 10
)

// Recent is how many bytes have moved lately: all in the present period, half
// of the bytes in the period before, a quarter of the ones before that. The zero value
// is none. It holds the number of the period in its upper bits, and the amount
// in its lower ones.
type Recent uint64

// At returns the bytes at a time. Clocks that were read a little before the last
// Add are taken to be at its time.
func (r Recent) At(now time.Duration) int64 {
	return int64(r&maxAmount) >> min(r.age(now), amountBits)
}

// Add returns r with n bytes more, which move now.
func (r Recent) Add(n int64, now time.Duration) Recent {
	age := r.age(now)
	amount := uint64(min(r.At(now)+n, maxAmount))
	return Recent((uint64(r)>>amountBits+age)<<amountBits | amount)
}

// age returns how many periods ago the last Add was.
func (r Recent) age(now time.Duration) uint64 {
	const earlier = 1 << (64 - amountBits - 8) // periods; a day and a half
	age := (uint64(now.Milliseconds())/period - uint64(r)>>amountBits) << amountBits >> amountBits
	if age >= 1<<(64-amountBits)-earlier {
		return 0
	}
	return age
}

// Rank orders holders: holders of higher rank pay first. Four ranks are a factor
// of two in what a holder holds for each byte that it has moved, its ratio.
// Large holders whose ratio is 1/2 or more rank above all others: they hold
// most of what they have got in the last seconds.
type Rank uint8

const (
	// NoRank is above every rank.
	NoRank Rank = 255
	// even is the rank of the ratio 1.
	even = 4 * (1 + ratioBits - 2)
	// mostly is the rank of the ratio 1/2, and raised how much higher large
	// holders rank from there on.
	mostly = even - 4
	raised = 90
	// ratioBits is how many bits behind the point a ratio has.
	ratioBits = 16
)

// RankOf returns the rank of a holder of held bytes that has moved recent bytes
// lately. It takes sizes up to 2^47.
func RankOf(held, recent int64, large bool) Rank {
	ratio := uint64(held) << ratioBits / uint64(recent+spared)
	exponent := bits.Len64(ratio)
	if exponent < 3 {
		return Rank(ratio)
	}
	r := min(Rank(4*(exponent-2))+Rank(ratio>>(exponent-3)&3), mostly+raised-1)
	if large && r >= mostly {
		return min(r+raised, NoRank-1)
	}
	return r
}

// Holds reports whether the ratio is at least the given power of two.
func (r Rank) Holds(exponent int) bool {
	if r >= mostly+raised {
		r -= raised
	}
	return int(r) >= even+4*exponent
}

// Census is how much memory is held at each rank. The zero value is empty.
type Census [NoRank]int64

// Add counts a holder.
func (c *Census) Add(r Rank, held int64) { c[r] += held }

// Line returns the rank from which on holders pay that hold the given power of
// two of what they have moved lately: holders of higher rank together, whether
// they pay or not, hold less than excess bytes. It returns NoRank if nobody pays.
func (c *Census) Line(excess int64, exponent int) Rank {
	line, held := NoRank, int64(0)
	for r := NoRank; r > 0 && held < excess; {
		if r--; c[r] > 0 {
			held += c[r]
			if r.Holds(exponent) {
				line = r
			}
		}
	}
	return line
}
