package netpath

import (
	"math"
	"time"
)

// RTTEstimate is the round-trip time as the application sees it, of data and of
// signals. The time-outs of data do not depend on it: the state machine has its
// own estimate (RFC 6298).
type RTTEstimate struct {
	At       time.Duration // the last sample that counted, since the epoch; 0: none yet
	Smoothed uint32        // microseconds; 0: no sample yet
	least    uint32        // of the minute of the last sample, in microseconds; 0: no sample yet
	before   uint32        // the same of the minute before; 0: none
	minute   uint32        // of the last sample, since the epoch
	Jitter   uint32        // mean deviation of the samples, in microseconds
	asked    uint16        // when Stats was called, in seconds since the epoch, modulo 2^16; 0: it was not
	again    bool          // not for the first time in askedFor
	Prompt   bool          // smoothed is of answers that leave at once
}

const (
	// RefreshAfter is the age of the last sample from which a datagram that is sent
	// takes a PING along, and data if Stats is called now and then.
	RefreshAfter = time.Second
	// promptFor is how long the answer to a PING counts in place of what ACKs show,
	// which may have been delayed (RFC 1122 §4.2.3.2).
	promptFor = 3 * time.Second
	// askedFor is for how many seconds after a call of Stats PINGs measure beside data,
	// if it was not the first.
	askedFor = 10
	// leastWindow is the time whose shortest sample is kept, beside that of the one
	// before.
	leastWindow = time.Minute
	// mostTimeout is the longest time-out.
	mostTimeout = 10 * time.Second
)

// Prompted takes a sample of an answer that leaves at once; 0 is none.
func (r *RTTEstimate) Prompted(sample, now time.Duration) {
	if sample > 0 {
		if r.again && !r.Prompt {
			r.Smoothed = 0
		}
		r.add(sample, now)
		r.Prompt = true
	}
}

// ByData takes a sample of an ACK, which may have been delayed. It reports whether the
// application wants to know the round-trip time.
func (r *RTTEstimate) ByData(sample, now time.Duration) (wanted bool) {
	wanted = r.wanted(now)
	if !wanted || !r.Prompt || now-r.At >= promptFor {
		r.add(sample, now)
		r.Prompt = false
	}
	return wanted
}

// Recent reports whether the last sample is recent.
func (r *RTTEstimate) Recent(now time.Duration) bool { return r.At > 0 && now-r.At < RefreshAfter }

// add takes a sample.
func (r *RTTEstimate) add(sample, now time.Duration) {
	us := uint32(min(max(sample.Microseconds(), 1), math.MaxUint32))
	switch minute := uint32(now / leastWindow); { // what is older is of a route that may have changed
	case r.least > 0 && minute == r.minute:
		r.least = min(r.least, us)
	case minute == r.minute+1:
		r.before, r.least, r.minute = r.least, us, minute
	default:
		r.before, r.least, r.minute = 0, us, minute
	}
	if r.Smoothed == 0 {
		r.Smoothed, r.Jitter = us, 0
	} else {
		off := max(r.Smoothed, us) - min(r.Smoothed, us)
		r.Jitter = uint32((3*uint64(r.Jitter) + uint64(off)) / 4)
		r.Smoothed = uint32((7*uint64(r.Smoothed) + uint64(us)) / 8)
	}
	r.At = max(now, 1)
}

// Least returns the shortest sample of the last one to two minutes with samples; 0: none.
func (r *RTTEstimate) Least() time.Duration {
	us := r.least
	if r.before > 0 {
		us = min(us, r.before)
	}
	return time.Duration(us) * time.Microsecond
}

// Ask notes that the application wants to know the round-trip time. A single call of
// Stats, or several within a moment, change nothing on the wire.
func (r *RTTEstimate) Ask(now time.Duration) {
	at := max(uint16(now/time.Second)+1, 1) // once in 18 hours it would be 0
	switch age := at - r.asked; {
	case r.asked == 0 || age >= askedFor:
		r.asked, r.again = at, false
	case r.again || age > 1:
		r.asked, r.again = at, true
	}
}

// wanted reports whether the application asks for the round-trip time now and then.
func (r *RTTEstimate) wanted(now time.Duration) bool {
	if r.again && uint16(now/time.Second)+1-r.asked >= askedFor {
		r.asked, r.again = 0, false // else it would be recent again after 18 hours
	}
	return r.again
}

// Current returns the smoothed round-trip time. Without a sample that is the
// state machine's, srtt in milliseconds.
func (r *RTTEstimate) Current(srtt int32) time.Duration {
	if r.Smoothed == 0 {
		return time.Duration(srtt) * time.Millisecond
	}
	return time.Duration(r.Smoothed) * time.Microsecond
}

// Timeout returns how long an answer may take that is not lost (RFC 6298 §2), 10 s at
// most; 0 without a sample.
func (r *RTTEstimate) Timeout() time.Duration {
	us := uint64(r.Smoothed) + max(4*uint64(r.Jitter), uint64(r.Smoothed)/2)
	return min(time.Duration(us)*time.Microsecond, mostTimeout)
}

// Age returns the time since the last sample; 0: none.
func (r *RTTEstimate) Age(now time.Duration) time.Duration {
	if r.At == 0 {
		return 0
	}
	return now - r.At
}
