package streams

import "unsafe"

// spares are buffers of one size for reuse, so that a stream at full speed leaves the
// garbage collector no work. All were in use at one time, so they never exceed the peak
// of what a session holds. The zero value has none.
type spares struct {
	free [][]byte
	size int // the capacity of each
}

const (
	// minSpare is the least size of a buffer that is kept, maxSpare the largest.
	minSpare, maxSpare = 1024, 16 << 10
	// spareSlack is the most by which a buffer may be larger than what it holds. Not more
	// than SegmentCost remains beside it, so a stream holds no more than its credit.
	spareSlack = SegmentCost - fragmentBytesHeld
)

// get returns an empty buffer for n bytes.
func (p *spares) get(n int) []byte {
	if last := len(p.free) - 1; last >= 0 && n <= p.size && p.size-n <= spareSlack {
		b := p.free[last]
		p.free = p.free[:last]
		return b
	}
	return make([]byte, 0, n)
}

// put takes b back, unless it is of no use. One of another size takes the place of
// another: the size may have changed for good, or not.
func (p *spares) put(b []byte) {
	size, last := cap(b), len(p.free)-1
	switch {
	case size < minSpare || size > maxSpare:
	case size == p.size || last < 0:
		p.size = size
		p.free = append(p.free, b[:0])
	default:
		p.free[last] = nil
		p.free = p.free[:last]
	}
}

// memory returns the bytes of memory of the buffers.
func (p *spares) memory() int { return len(p.free)*p.size + cap(p.free)*int(unsafe.Sizeof([]byte{})) }

// Compact releases what is kept for reuse.
func (t *Table) Compact() {
	t.segments, t.list = spares{}, nil
	t.sparePiece, t.sparePieces = nil, 0
}

// spareMemory returns the bytes of memory of what is kept for reuse.
func (t *Table) spareMemory() int {
	return t.segments.memory() + cap(t.list)*int(unsafe.Sizeof(received{})) + t.sparePieces*pieceBytesQueued
}
