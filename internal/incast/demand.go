// Package incast has the arithmetic of incast: many senders at once overrun a
// receive buffer, although each of them keeps to its window. It says how much of the
// buffer each sender may fill. It has no lock, clock or socket.
package incast

import "math/bits"

// Demand is how much each of many senders has sent in an epoch, as a histogram:
// eight buckets for each power of two. The zero value is for no sender.
type Demand struct {
	buckets [8 * 33]bucket
	senders int
	sum     int64 // bytes
}

// bucket is the senders of about one demand.
type bucket struct {
	senders int32
	sum     int64 // bytes
}

// bucketOf returns the index of the bucket for n bytes, which is positive.
func bucketOf(n uint32) int {
	octave := bits.Len32(n)
	if octave <= 3 {
		return 8*octave + int(n<<(4-octave)&7)
	}
	return 8*octave + int(n>>(octave-4)&7)
}

// Add counts n bytes that a sender has sent, besides the bytes before; 0: it is
// its first in the epoch. It returns all its bytes of the epoch. What is not in the
// histogram is not taken out of it: then the sender counts as one that begins.
func (d *Demand) Add(before, n uint32) (all uint32) {
	old := &d.buckets[bucketOf(before)]
	switch {
	case before == 0, old.senders == 0, old.sum < int64(before):
		if before = 0; n == 0 {
			return 0
		}
		d.senders++
	default:
		old.senders--
		old.sum -= int64(before)
	}
	if all = before + n; all < before {
		all = 1<<32 - 1
	}
	now := &d.buckets[bucketOf(all)]
	now.senders++
	now.sum += int64(all)
	d.sum += int64(all - before)
	return all
}

// Senders returns how many have sent something.
func (d *Demand) Senders() int { return d.senders }

// Sum returns the bytes that all have sent.
func (d *Demand) Sum() int64 { return d.sum }

// Above returns how many have sent about n bytes or more.
func (d *Demand) Above(n uint32) (senders int) {
	for i := bucketOf(n); i < len(d.buckets); i++ {
		senders += int(d.buckets[i].senders)
	}
	return senders
}

// Reset forgets all senders.
func (d *Demand) Reset() { *d = Demand{} }

// Halve forgets about half of the senders.
func (d *Demand) Halve() {
	d.senders, d.sum = 0, 0
	for i := range d.buckets {
		b := &d.buckets[i]
		n := b.senders / 2
		if b.senders > 0 {
			b.sum = b.sum / int64(b.senders) * int64(n)
		}
		b.senders = n
		d.senders += int(n)
		d.sum += b.sum
	}
}

// Dominated reports whether one sender has sent at least two thirds of all, or
// there is none.
func (d *Demand) Dominated() bool {
	if d.senders < 2 {
		return true
	}
	for i := len(d.buckets) - 1; ; i-- {
		if b := &d.buckets[i]; b.senders > 0 {
			return b.senders == 1 && b.sum >= d.sum/3*2
		}
	}
}

// lightPart is which part of what a sender has sent in an epoch counts as being on
// the way at a time, if that was less than the level.
const lightPart = 8

// Level returns how much each sender may have on the way, if all of them may have
// budget bytes: the max-min fair share. Senders that send less in a whole epoch
// need not be limited, and leave what they do not use to the others, which have
// equal shares. It is 0 if none has to be limited.
func (d *Demand) Level(budget int) int {
	left, limited := int64(budget)-d.sum/lightPart, int64(0)
	level := int64(0)
	for i := len(d.buckets) - 1; i >= 0; i-- {
		b := &d.buckets[i]
		if b.senders <= 0 {
			continue
		}
		if limited > 0 && b.sum/int64(b.senders) <= level {
			break // they use less than that
		}
		limited += int64(b.senders)
		left += b.sum / lightPart
		level = max(left/limited, 1)
		if limited == int64(b.senders) && b.sum/limited <= level {
			return 0
		}
	}
	return int(level)
}
