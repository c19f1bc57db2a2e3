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
	minSpare, maxSpare = 1024, chunkSize
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

// put takes b back, unless it is of no use.
func (p *spares) put(b []byte) {
	size := cap(b)
	if size < minSpare || size > maxSpare {
		return
	}
	if size != p.size {
		p.free, p.size = p.free[:0], size
		clear(p.free[:cap(p.free)])
	}
	p.free = append(p.free, b[:0])
}

// memory returns the bytes of memory of the buffers.
func (p *spares) memory() int { return len(p.free)*p.size + cap(p.free)*int(unsafe.Sizeof([]byte{})) }

// Compact releases what is kept for reuse.
func (t *Table) Compact() { t.segments, t.chunks, t.list = spares{}, spares{}, nil }

// spareMemory returns the bytes of memory of what is kept for reuse.
func (t *Table) spareMemory() int {
	return t.segments.memory() + t.chunks.memory() + cap(t.list)*int(unsafe.Sizeof(received{}))
}
