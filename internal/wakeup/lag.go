package wakeup

import (
	"math/bits"
	"time"
)

// Lag is how late wake-ups were, in the last LagTime to twice that. It is a
// histogram with a bucket for each power of two of a microsecond. The zero value is
// ready to use; it has no lock.
type Lag struct {
	now, before lagTimes // of the present interval of LagTime, and of the one before
	interval    uint32   // the number of the present one, from 1; 0: none yet
}

// lagTimes is the lag of the wake-ups of an interval.
type lagTimes struct {
	most    time.Duration
	buckets [lagBuckets]uint32
}

// LagTime is the interval after which the lag of wake-ups begins to be forgotten.
const LagTime = 10 * time.Second

// lagBuckets is the number of buckets. The last one is for a lag of 8 s and more.
const lagBuckets = 24

// Record records a wake-up at the time now, since the epoch, that was late by d.
func (l *Lag) Record(d, now time.Duration) {
	l.advance(now)
	d = max(d, 0)
	l.now.most = max(l.now.most, d)
	l.now.buckets[min(bits.Len64(uint64(d.Microseconds())), lagBuckets-1)]++
}

// advance begins another interval if its time has come.
func (l *Lag) advance(now time.Duration) {
	switch i := uint32(now/LagTime) + 1; {
	case i == l.interval+1:
		l.interval, l.now, l.before = i, lagTimes{}, l.now
	case i != l.interval:
		l.interval, l.now, l.before = i, lagTimes{}, lagTimes{}
	}
}

// Summary returns the median of the lag, to the power of two above it in
// microseconds, and the longest. Both are 0 if there was no wake-up lately.
func (l *Lag) Summary(now time.Duration) (p50, most time.Duration) {
	l.advance(now)
	return l.summary()
}

// add adds the wake-ups of o, which is of the same interval.
func (l *Lag) add(o *Lag) {
	l.now.add(&o.now)
	l.before.add(&o.before)
}

// add adds the wake-ups of o.
func (l *lagTimes) add(o *lagTimes) {
	l.most = max(l.most, o.most)
	for i, n := range o.buckets {
		l.buckets[i] += n
	}
}

// summary is Summary of the present interval.
func (l *Lag) summary() (p50, most time.Duration) {
	n := uint64(0)
	for i := range lagBuckets {
		n += uint64(l.now.buckets[i]) + uint64(l.before.buckets[i])
	}
	most = max(l.now.most, l.before.most)
	below := uint64(0)
	for i := range lagBuckets {
		below += uint64(l.now.buckets[i]) + uint64(l.before.buckets[i])
		if n > 0 && 2*below >= n {
			return min(time.Duration(1<<i)*time.Microsecond, most), most
		}
	}
	return 0, most
}
