package kcp

// Payload buffers come in a few sizes, so that a small message does not occupy
// a full segment. The Go allocator rounds none of these sizes up. The third
// holds the payload of an Ethernet frame.
const (
	buffer0       = 128
	buffer1       = 512
	buffer2       = 1536
	buffer3       = 4096
	buffer4       = 16384
	buffer5       = 65536
	bufferClasses = 6
)

// bufferSize returns the class and the size of a buffer for n bytes, which is
// at most what a datagram can hold.
func bufferSize(n int) (class, size int) {
	switch {
	case n <= buffer0:
		return 0, buffer0
	case n <= buffer1:
		return 1, buffer1
	case n <= buffer2:
		return 2, buffer2
	case n <= buffer3:
		return 3, buffer3
	case n <= buffer4:
		return 4, buffer4
	}
	return 5, buffer5
}

// buffers recycles payload buffers and send segments. All that it holds was in
// use at one time, so it never exceeds the peak of the queues.
type buffers struct{ held *heldBuffers } // nil: nothing is held

type heldBuffers struct {
	free     [bufferClasses][][]byte
	bytes    int // capacity of the buffers in free
	segments []*sendSegment
}

// size returns the capacity of the free buffers in bytes.
func (b *buffers) size() int {
	if b.held == nil {
		return 0
	}
	return b.held.bytes
}

// hold returns b.held, which it makes if there is none.
func (b *buffers) hold() *heldBuffers {
	if b.held == nil {
		b.held = new(heldBuffers)
	}
	return b.held
}

// get returns a buffer of length n; nil if n is 0.
func (b *buffers) get(n int) []byte {
	if n == 0 {
		return nil
	}
	class, size := bufferSize(n)
	if b.held == nil || len(b.held.free[class]) == 0 {
		return make([]byte, n, max(n, size))
	}
	free := b.held.free[class]
	buf := free[len(free)-1]
	b.held.free[class] = free[:len(free)-1]
	b.held.bytes -= cap(buf)
	return buf[:n]
}

// put takes back a buffer that get returned.
func (b *buffers) put(buf []byte) {
	class, size := bufferSize(cap(buf))
	if cap(buf) == size {
		h := b.hold()
		h.free[class] = append(h.free[class], buf[:0])
		h.bytes += cap(buf)
	}
}

// grow returns a buffer of length n that begins with the content of buf. It
// takes buf back.
func (b *buffers) grow(buf []byte, n int) []byte {
	if n <= cap(buf) {
		return buf[:n]
	}
	bigger := b.get(n)
	copy(bigger, buf)
	b.put(buf)
	return bigger
}

func (b *buffers) getSegment() *sendSegment {
	if b.held == nil || len(b.held.segments) == 0 {
		return new(sendSegment)
	}
	n := len(b.held.segments) - 1
	s := b.held.segments[n]
	b.held.segments = b.held.segments[:n]
	return s
}

// putSegment recycles s and its buffer. If the buffer is still being written
// (hooks.outputInPlace), s is only marked, and releaseSegment recycles it.
func (b *buffers) putSegment(s *sendSegment) {
	if s.beingWritten {
		s.orphaned = true
		return
	}
	b.put(s.buf)
	*s = sendSegment{}
	h := b.hold()
	h.segments = append(h.segments, s)
}
