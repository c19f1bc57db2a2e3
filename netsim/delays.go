package netsim

import (
	"math"
	"math/bits"
	"time"
)

const (
	// delayBits are the leading bits of a delay by which it is sorted: 16
	// buckets to each power of two.
	delayBits    = 4
	delayUnit    = 10 // as a shift: about a microsecond
	delayBuckets = (1<<6 - delayUnit - delayBits) << delayBits
)

// Delays is a histogram of delays, exact to a sixteenth of a delay, or to a
// microsecond where that is more. The zero value is empty. It is a value: copies
// are independent.
type Delays struct {
	count   int64
	sum     time.Duration
	longest time.Duration
	buckets *[delayBuckets]int64
}

func (d *Delays) add(delay time.Duration) {
	d.count++
	d.sum = later(d.sum, delay)
	d.longest = max(d.longest, delay)
	if d.buckets == nil {
		d.buckets = new([delayBuckets]int64)
	}
	d.buckets[bucketOf(delay)]++
}

// later returns the time d after t, or the last that there is. Neither is negative,
// except t where a script begins before its network.
func later(t, d time.Duration) time.Duration {
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// bucketOf returns the bucket of a delay: buckets are as wide as the unit up to
// 2<<delayBits units, and then grow.
func bucketOf(delay time.Duration) int {
	units := uint64(max(delay, 0)) >> delayUnit
	exponent := max(bits.Len64(units)-delayBits-1, 0)
	return exponent<<delayBits + int(units>>exponent)
}

// bucketStart returns the shortest delay of a bucket.
func bucketStart(bucket int) time.Duration {
	exponent := max(bucket>>delayBits-1, 0)
	return time.Duration(bucket-exponent<<delayBits) << (exponent + delayUnit)
}

// clone returns a copy that shares nothing.
func (d *Delays) clone() Delays {
	c := *d
	if d.buckets != nil {
		buckets := *d.buckets
		c.buckets = &buckets
	}
	return c
}

func (d *Delays) merge(o *Delays) {
	if o.count == 0 {
		return
	}
	d.count += o.count
	d.sum = later(d.sum, o.sum)
	d.longest = max(d.longest, o.longest)
	if d.buckets == nil {
		d.buckets = new([delayBuckets]int64)
	}
	for i, n := range o.buckets {
		d.buckets[i] += n
	}
}

// Count returns how many delays there are.
func (d Delays) Count() int64 { return d.count }

// Max returns the longest delay, exactly.
func (d Delays) Max() time.Duration { return d.longest }

// Mean returns the mean delay, exactly, or zero if there are none.
func (d Delays) Mean() time.Duration {
	if d.count == 0 {
		return 0
	}
	return d.sum / time.Duration(d.count)
}

// Quantile returns the delay that the share p of all delays, 0 to 1, does not
// exceed: 0.95 for the 95th percentile. It is zero if there are no delays.
func (d Delays) Quantile(p float64) time.Duration {
	if d.count == 0 {
		return 0
	}
	rank := max(int64(p*float64(d.count)+0.5), 1)
	for bucket, n := range d.buckets {
		if rank > n {
			rank -= n
			continue
		}
		start, end := bucketStart(bucket), bucketStart(bucket+1)
		high, low := bits.Mul64(uint64(end-start), uint64(rank))
		part, _ := bits.Div64(high, low, uint64(n)) // rank is at most n
		return min(later(start, time.Duration(part)), d.longest)
	}
	return d.longest
}
