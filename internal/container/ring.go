package container

// A ring holds what is numbered in sequence in a slice whose length is a power of two.
// Finding, adding and removing cost the same at every size. Numbers are uint32 and wrap
// around.

// smallest is the number of places of the smallest ring.
const smallest = 8

// Ring has a place for each of Len numbers in a row, wherever they begin. Its zero
// value has none.
type Ring[E any] struct{ places []E }

// Len returns the number of places.
func (r *Ring[E]) Len() int { return len(r.places) }

// At returns the place of number i. The ring has at least one.
func (r *Ring[E]) At(i uint32) *E { return &r.places[int(i)&(len(r.places)-1)] }

// Reserve makes places for n numbers from first on, and keeps what is in those that
// the ring has.
func (r *Ring[E]) Reserve(first uint32, n int) {
	if n <= len(r.places) {
		return
	}
	old := *r
	r.places = make([]E, RingSize(n))
	for i := range old.places {
		sn := first + uint32(i)
		*r.At(sn) = *old.At(sn)
	}
}

// RingSize returns the number of places of a ring for n numbers, a power of two.
func RingSize(n int) int {
	size := smallest
	for size < n {
		size *= 2
	}
	return size
}
