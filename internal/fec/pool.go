package fec

import "math/bits"

// Shards are kept in buffers of some twenty sizes, so that a small packet costs
// a small buffer. Sizes are multiples of the 64 bytes that vector code takes at
// a time; what of a buffer lies between the end of a shard and the next such
// multiple is zero, which spares the vector code an end to deal with byte by
// byte.
const (
	vector  = 64
	classes = 20
)

// padded returns n rounded up to what vector code takes at a time.
func padded(n int) int { return (n + vector - 1) &^ (vector - 1) }

// class returns the number and the size of the smallest class of buffers that
// holds n bytes, 0 to 65536: 64, 128, 192, 256, 384, 512, 768 and so on, by a
// power of two and by one and a half of it.
func class(n int) (index, size int) {
	if n <= 2*vector {
		if n <= vector {
			return 0, vector
		}
		return 1, 2 * vector
	}
	k := bits.Len(uint(n - 1)) // 8 and more; 2^(k-1) < n <= 2^k
	if middle := 3 << (k - 2); n <= middle {
		return 2 * (k - 7), middle
	}
	return 2*(k-7) + 1, 1 << k
}

// pool hands out buffers and takes them back. The zero value is ready for use.
type pool struct {
	free [classes][][]byte
	low  [classes]int // fewest free buffers since the last call of age
	held int          // bytes in all buffers, free or handed out
	idle int          // bytes in free buffers
}

// get returns a buffer of n bytes with arbitrary content, padding included.
func (p *pool) get(n int) []byte {
	index, size := class(n)
	free := p.free[index]
	if len(free) == 0 {
		p.held += size
		return make([]byte, n, size)
	}
	last := len(free) - 1
	b := free[last]
	free[last] = nil
	p.free[index] = free[:last]
	p.low[index] = min(p.low[index], last)
	p.idle -= size
	return b[:n]
}

// clone returns a buffer with the content of src, padded with zeros.
func (p *pool) clone(src []byte) []byte {
	b := p.get(len(src))
	copy(b, src)
	clear(b[len(b):padded(len(b))])
	return b
}

// put takes back a buffer that get or clone returned.
func (p *pool) put(b []byte) {
	index, size := class(cap(b))
	p.free[index] = append(p.free[index], b)
	p.idle += size
}

// growth returns by how many bytes a buffer of n bytes would make the pool
// larger.
func (p *pool) growth(n int) int {
	index, size := class(n)
	if len(p.free[index]) > 0 {
		return 0
	}
	return size
}

// lists returns how much memory the lists of free buffers occupy, in bytes.
func (p *pool) lists() (n int) {
	for i := range p.free {
		n += cap(p.free[i]) * sliceSize
	}
	return n
}

// trim gives up all free buffers.
func (p *pool) trim() {
	for i := range p.free {
		p.free[i] = nil
		p.low[i] = 0
	}
	p.held -= p.idle
	p.idle = 0
}

// age gives up the free buffers that were not needed since the last call.
func (p *pool) age() {
	for i, free := range p.free {
		keep := len(free) - p.low[i]
		for j := keep; j < len(free); j++ {
			p.held -= cap(free[j])
			p.idle -= cap(free[j])
			free[j] = nil
		}
		p.free[i] = free[:keep]
		p.low[i] = keep
	}
}
