package kcp

// Payload buffers are kept in sizes that are size classes of the Go allocator,
// so that a small message does not occupy a full segment. The third holds the
// payload of an Ethernet frame.
const (
	buffer0       = 128
	buffer1       = 512
	buffer2       = 1536
	buffer3       = 4096
	buffer4       = 16384
	buffer5       = 65536
	bufferClasses = 6
)

// bufferSize returns the class and the size of a buffer for n bytes, which are
// fewer than a datagram can have.
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

// buffers recycles payload buffers and send segments. What it holds has been
// in use at one time, so it never exceeds the peak of the queues.
type buffers struct{ held *heldBuffers } // nil: nothing

type heldBuffers struct {
	free     [bufferClasses][][]byte
	bytes    int // in free
	segments []*sendSegment
}

// size returns the bytes of the free buffers.
func (b *buffers) size() int {
	if b.held == nil {
		return 0
	}
	return b.held.bytes
}

// hold returns where to hold something.
func (b *buffers) hold() *heldBuffers {
	if b.held == nil {
		b.held = new(heldBuffers)
	}
	return b.held
}

// get returns a buffer of length n; nil for 0.
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

// put takes a buffer back that get returned.
func (b *buffers) put(buf []byte) {
	class, size := bufferSize(cap(buf))
	if cap(buf) == size {
		h := b.hold()
		h.free[class] = append(h.free[class], buf[:0])
		h.bytes += cap(buf)
	}
}

// grow returns a buffer of length n that begins with buf, which it takes.
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

// putSegment takes a segment back with its buffer, or leaves that to when the
// buffer is no longer lent.
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
