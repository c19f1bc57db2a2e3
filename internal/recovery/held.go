package recovery

import (
	"iter"
	"time"
)

const (
	// heldTime is how long datagrams wait for a RateCap at most.
	heldTime = 100 * time.Millisecond
	// MaxHeld is how many packets a Held has at most. The oldest make room: fresh
	// datagrams are worth more, and old parity is of no use.
	MaxHeld = 256
	// leastCapWait is the shortest time between wake-ups for a cap above fineCap bytes a
	// second. Several packets leave at each then.
	leastCapWait = time.Millisecond
	fineCap      = 1_000_000
	// cappedTime is for how long the write buffer lasts at a cap. It has at least
	// LeastWriteBuffer bytes.
	cappedTime       = time.Second
	LeastWriteBuffer = 64 << 10
)

// Held is the packets that wait for a RateCap, oldest first. The zero value has none.
type Held[P any] struct{ waiting []held[P] }

type held[P any] struct {
	packet P
	since  time.Duration
}

// Len returns how many packets wait.
func (h *Held[P]) Len() int { return len(h.waiting) }

// Add lets a packet wait from now on.
func (h *Held[P]) Add(p P, now time.Duration) { h.waiting = append(h.waiting, held[P]{p, now}) }

// First returns the oldest packet. There must be one.
func (h *Held[P]) First() *P { return &h.waiting[0].packet }

// Take removes the oldest packet, and returns it. There must be one.
func (h *Held[P]) Take() P {
	p := h.waiting[0].packet
	h.waiting[0] = held[P]{}
	h.waiting = h.waiting[1:]
	return p
}

// Beyond removes the oldest packets until n wait, and returns them.
func (h *Held[P]) Beyond(n int) iter.Seq[P] {
	return func(yield func(P) bool) {
		for len(h.waiting) > n && yield(h.Take()) {
		}
	}
}

// Stale removes the packets beyond MaxHeld, and those that have waited for too long, and
// returns them.
func (h *Held[P]) Stale(now time.Duration) iter.Seq[P] {
	n := 0
	for n < len(h.waiting) && now-h.waiting[n].since > heldTime {
		n++
	}
	return h.Beyond(min(len(h.waiting)-n, MaxHeld))
}

// WakeAfter returns after what time something that waits for a RateCap is to be looked at
// again, of so many bytes a second, whose Wait is wait.
func WakeAfter(rate int, wait int64) time.Duration {
	at := time.Duration(wait) * time.Microsecond
	if rate > fineCap {
		at = max(at, leastCapWait)
	}
	return max(at, time.Microsecond)
}

// WriteBuffer returns the largest write buffer at a cap of so many bytes a second, of at
// most so many bytes.
func WriteBuffer(rate, most int) int {
	return max(min(rate, most)*int(cappedTime/time.Second), LeastWriteBuffer)
}
