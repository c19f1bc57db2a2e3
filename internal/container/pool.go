package container

import "unsafe"

// A pool recycles buffers of a few sizes, and elements of one type. It belongs to one
// owner, whose lock guards it. All that it holds was in use at one time, so it never
// exceeds the peak of its owner's queues. Trim lets go of what was not needed since the
// last Trim.

// Buffers come in a few sizes, so that a small message does not occupy a full
// segment. The Go allocator rounds none of these sizes up. The third holds the
// payload of an Ethernet frame.
const (
	size0   = 128
	size1   = 512
	size2   = 1536
	size3   = 4096
	size4   = 16384
	size5   = 65536
	classes = 6
)

// BufferSize returns the size of a buffer for n bytes, which is at most what a datagram
// can hold.
func BufferSize(n int) int {
	_, size := classOf(n)
	return size
}

// classOf returns the class and the size of a buffer for n bytes.
func classOf(n int) (class, size int) {
	switch {
	case n <= size0:
		return 0, size0
	case n <= size1:
		return 1, size1
	case n <= size2:
		return 2, size2
	case n <= size3:
		return 3, size3
	case n <= size4:
		return 4, size4
	}
	return 5, size5
}

// Pool holds free buffers and free elements. Its zero value is empty.
type Pool[E any] struct{ held *held[E] } // nil: nothing is held

type held[E any] struct {
	free     [classes][][]byte
	bytes    int // capacity of the buffers in free
	elements []*E
	least    [classes]int // free buffers there were at all times since the last Trim
	idle     int          // likewise, elements
	trimmed  uint32       // when that was, in milliseconds; 0: not yet
}

// Held returns the bytes of memory of what is free.
func (p *Pool[E]) Held() int {
	if p.held == nil {
		return 0
	}
	var e E
	return p.held.bytes + len(p.held.elements)*int(unsafe.Sizeof(e))
}

// Trim releases what was free at all times since the last Trim, if that was a given time
// ago. Both times are in milliseconds of a clock that may wrap around.
func (p *Pool[E]) Trim(now, after uint32) {
	h := p.held
	if h == nil || h.trimmed != 0 && now-h.trimmed < after {
		return
	}
	if now = max(now, 1); h.trimmed != 0 {
		for class := range h.free {
			for _, buf := range h.free[class][:h.least[class]] {
				h.bytes -= cap(buf)
			}
			h.free[class] = without(h.free[class], h.least[class])
		}
		h.elements = without(h.elements, h.idle)
	}
	for class := range h.free {
		h.least[class] = len(h.free[class])
	}
	h.idle, h.trimmed = len(h.elements), now
}

// without returns a list without its first n elements, and without their memory.
func without[T any](list []T, n int) []T {
	if n == 0 {
		return list
	}
	return append([]T(nil), list[n:]...)
}

// hold returns p.held, which it makes if there is none.
func (p *Pool[E]) hold() *held[E] {
	if p.held == nil {
		p.held = new(held[E])
	}
	return p.held
}

// Get returns a buffer of length n; nil if n is 0.
func (p *Pool[E]) Get(n int) []byte {
	if n == 0 {
		return nil
	}
	class, size := classOf(n)
	if p.held == nil || len(p.held.free[class]) == 0 {
		return make([]byte, n, max(n, size))
	}
	free := p.held.free[class]
	buf := free[len(free)-1]
	p.held.free[class] = free[:len(free)-1]
	p.held.least[class] = min(p.held.least[class], len(free)-1)
	p.held.bytes -= cap(buf)
	return buf[:n]
}

// Put takes back a buffer that Get returned.
func (p *Pool[E]) Put(buf []byte) {
	class, size := classOf(cap(buf))
	if cap(buf) == size {
		h := p.hold()
		h.free[class] = append(h.free[class], buf[:0])
		h.bytes += cap(buf)
	}
}

// Grow returns a buffer of length n that begins with the content of buf. It takes
// buf back.
func (p *Pool[E]) Grow(buf []byte, n int) []byte {
	if n <= cap(buf) {
		return buf[:n]
	}
	bigger := p.Get(n)
	copy(bigger, buf)
	p.Put(buf)
	return bigger
}

// New returns an element, which is zero.
func (p *Pool[E]) New() *E {
	if p.held == nil || len(p.held.elements) == 0 {
		return new(E)
	}
	n := len(p.held.elements) - 1
	e := p.held.elements[n]
	p.held.elements = p.held.elements[:n]
	p.held.idle = min(p.held.idle, n)
	return e
}

// Free makes e zero and takes it back.
func (p *Pool[E]) Free(e *E) {
	*e = *new(E)
	h := p.hold()
	h.elements = append(h.elements, e)
}
