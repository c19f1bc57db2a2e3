package kcp

const (
	RINGBUFFER_MIN = 8    // least capacity of a RingBuffer, in slots
	RINGBUFFER_EXP = 1024 // below so many slots a RingBuffer doubles, above it grows by a tenth
)

// RingBuffer is a queue in a ring of slots that grows as needed. One slot
// always stays empty. The zero value is an empty queue. It is not safe for
// concurrent use. Sessions do not use it; it is here because kcp-go exports it.
type RingBuffer[T any] struct {
	slots []T
	first int // index of the oldest element
	count int // elements in the queue
}

// NewRingBuffer returns an empty queue of size slots, 8 at least.
func NewRingBuffer[T any](size int) *RingBuffer[T] {
	return &RingBuffer[T]{slots: make([]T, max(size, RINGBUFFER_MIN))}
}

// Len returns the number of elements.
func (r *RingBuffer[T]) Len() int { return r.count }

// MaxLen returns how many elements the queue holds before it grows.
func (r *RingBuffer[T]) MaxLen() int { return max(len(r.slots)-1, 0) }

// IsEmpty reports whether there are no elements.
func (r *RingBuffer[T]) IsEmpty() bool { return r.count == 0 }

// IsFull reports whether the next Push makes the queue grow.
func (r *RingBuffer[T]) IsFull() bool { return r.count == r.MaxLen() }

// Push adds an element behind the others.
func (r *RingBuffer[T]) Push(v T) {
	if r.IsFull() {
		r.grow()
	}
	*r.at(r.count) = v
	r.count++
}

// Pop takes out the oldest element. ok is false if there is none.
func (r *RingBuffer[T]) Pop() (v T, ok bool) {
	if r.count == 0 {
		return v, false
	}
	v = *r.at(0)
	r.Discard(1)
	return v, true
}

// Peek returns the oldest element in its place, where it is valid until the
// queue changes. ok is false if there is none.
func (r *RingBuffer[T]) Peek() (v *T, ok bool) {
	if r.count == 0 {
		return nil, false
	}
	return r.at(0), true
}

// Discard takes out the n oldest elements, or all if there are fewer, and
// returns how many.
func (r *RingBuffer[T]) Discard(n int) int {
	n = max(min(n, r.count), 0)
	var zero T
	for i := range n {
		*r.at(i) = zero // nothing is kept alive
	}
	r.count -= n
	switch {
	case r.count == 0:
		r.first = 0
	default:
		r.first = (r.first + n) % len(r.slots)
	}
	return n
}

// ForEach calls fn for each element in its place, from the oldest to the newest,
// until fn returns false.
func (r *RingBuffer[T]) ForEach(fn func(*T) bool) {
	for i := range r.count {
		if !fn(r.at(i)) {
			return
		}
	}
}

// ForEachReverse calls fn for each element in its place, from the newest to the
// oldest, until fn returns false.
func (r *RingBuffer[T]) ForEachReverse(fn func(*T) bool) {
	for i := r.count - 1; i >= 0; i-- {
		if !fn(r.at(i)) {
			return
		}
	}
}

// Clear takes out all elements. The capacity stays.
func (r *RingBuffer[T]) Clear() { r.Discard(r.count) }

// at returns the slot of the i-th element.
func (r *RingBuffer[T]) at(i int) *T {
	i += r.first
	if i >= len(r.slots) {
		i -= len(r.slots)
	}
	return &r.slots[i]
}

// grow moves the elements to a larger ring.
func (r *RingBuffer[T]) grow() {
	size := len(r.slots)
	switch {
	case size < RINGBUFFER_MIN:
		size = RINGBUFFER_MIN
	case size < RINGBUFFER_EXP:
		size *= 2
	default:
		size += (size + 9) / 10
	}
	slots := make([]T, size)
	for i := range r.count {
		slots[i] = *r.at(i)
	}
	r.slots, r.first = slots, 0
}
