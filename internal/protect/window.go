package protect

import "math"

// Window is the anti-replay window of RFC 4303 §3.4.3, as a ring of words (RFC
// 6479). It remembers the last 1984 numbers. The zero value has taken none. It
// is not safe for concurrent use.
type Window struct {
	next uint64 // one more than the highest number taken
	bits [words]uint64
}

// Expand returns the number whose lowest 32 bits are given, and which is nearest
// to the one after the highest that was taken (RFC 9000 §17.1).
func (w *Window) Expand(low uint32) uint64 { return Expand(low, w.next) }

// MaxNumber is the highest packet number of which only the lowest bits travel
// (RFC 9000 §17.1).
const MaxNumber = 1<<62 - 1

// Expand returns the number up to MaxNumber whose lowest 32 bits are given, and
// which is nearest to next (RFC 9000 §A.3). next is MaxNumber+1 at most.
func Expand(low uint32, next uint64) uint64 { return ExpandBits(low, 32, next) }

// ExpandBits is Expand for a number whose lowest bits, as many as bits, are given.
func ExpandBits(low uint32, bits uint8, next uint64) uint64 {
	span := uint64(1) << bits
	n := next&^(span-1) | uint64(low)
	switch {
	case n+span/2 <= next && n+span <= MaxNumber:
		return n + span
	case n > next+span/2 && n >= span || n > MaxNumber:
		return n - span
	}
	return n
}

// words is the length of the ring. A word is 64 numbers, and one word is being
// filled.
const words = 32

// IsNew reports whether n was not taken. A number too old to be remembered is
// not new.
func (w *Window) IsNew(n uint64) bool {
	if n >= w.next {
		return n != math.MaxUint64 // no number follows it
	}
	return w.next-n <= (words-1)*64 && w.bits[n/64%words]&(1<<(n%64)) == 0
}

// IsLatest reports whether n is above all numbers that were taken.
func (w *Window) IsLatest(n uint64) bool { return n >= w.next && w.IsNew(n) }

// Take reports whether n is new, and takes it if so.
func (w *Window) Take(n uint64) bool {
	if !w.IsNew(n) {
		return false
	}
	if n >= w.next {
		first := w.next / 64
		if w.next%64 != 0 {
			first++
		}
		for i := range min(n/64+1-first, words) {
			w.bits[(n/64-i)%words] = 0
		}
		w.next = n + 1
	}
	w.bits[n/64%words] |= 1 << (n % 64)
	return true
}
