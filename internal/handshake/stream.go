package handshake

import "slices"

// Stream carries the handshake bytes of one encryption level both ways, as the
// CRYPTO frames of QUIC do (RFC 9000 §19.6): pieces at offsets, which are
// repeated until they are acknowledged by the offset before which everything has
// arrived. The zero value is empty. It is not safe for concurrent use.
type Stream struct {
	out  []byte // written and not acknowledged, from offset base on
	base uint32
	sent uint32 // offset of the next byte to send; at most base + len(out)
	high uint32 // highest value that sent ever had

	in    []byte // received and not read, from offset next on, with gaps
	next  uint32
	spans []span // of in that have arrived, in order, apart from each other

	owes bool // the peer has sent something since Acknowledged
}

// span is a range of offsets.
type span struct{ from, to uint32 }

const (
	// maxSpans is how many ranges a stream holds. What would need one more is
	// dropped, and repeated by the peer.
	maxSpans = 32
	// maxWritten is the most that may wait to be acknowledged, in bytes.
	maxWritten = 1 << 20
)

// Write appends bytes to be sent. It reports false, and takes none, if too many
// wait already.
func (s *Stream) Write(b []byte) bool {
	if len(s.out)+len(b) > maxWritten || uint64(s.base)+uint64(len(s.out)+len(b)) > 1<<31 {
		return false
	}
	s.out = append(s.out, b...)
	return true
}

// Unsent reports whether bytes wait to be sent.
func (s *Stream) Unsent() bool { return int(s.sent-s.base) < len(s.out) }

// Unacknowledged reports whether bytes were written that are not acknowledged.
func (s *Stream) Unacknowledged() bool { return len(s.out) > 0 }

// Peek returns the next bytes to send, at most n, and their offset. They are
// valid until the next call of Write or Acknowledge.
func (s *Stream) Peek(n int) (offset uint32, b []byte) {
	rest := s.out[s.sent-s.base:]
	return s.sent, rest[:min(n, len(rest))]
}

// Sent takes note that the first n bytes of Peek were sent.
func (s *Stream) Sent(n int) {
	s.sent += uint32(n)
	s.high = max(s.high, s.sent)
}

// Rewind makes all that is not acknowledged wait to be sent again.
func (s *Stream) Rewind() { s.sent = s.base }

// Acknowledge takes the offset before which the peer has everything. Offsets
// that go back, or beyond what was sent, are ignored.
func (s *Stream) Acknowledge(offset uint32) {
	if offset <= s.base || offset > s.high {
		return
	}
	s.out = s.out[offset-s.base:]
	if len(s.out) == 0 {
		s.out = nil
	}
	s.base, s.sent = offset, max(s.sent, offset)
}

// Discard drops what was written, as the peer has shown that it has all of it.
func (s *Stream) Discard() { s.out, s.base, s.high = nil, s.sent, s.sent }

// Receive takes bytes that have arrived at an offset. It reports false, and
// takes none, if they reach further than limit bytes beyond what was read, or if
// there are too many gaps.
func (s *Stream) Receive(offset uint32, b []byte, limit int) bool {
	from, to := uint64(offset), uint64(offset)+uint64(len(b))
	if len(b) == 0 {
		return true
	}
	s.owes = true
	if to <= uint64(s.next) {
		return true // again
	}
	if to > uint64(s.next)+uint64(limit) || to > 1<<31 {
		return false
	}
	if from < uint64(s.next) {
		b, from = b[uint64(s.next)-from:], uint64(s.next)
	}
	if !s.mark(span{uint32(from), uint32(to)}) {
		return false
	}
	if n := int(to - uint64(s.next)); n > len(s.in) {
		s.in = slices.Grow(s.in, n-len(s.in))[:n]
	}
	copy(s.in[from-uint64(s.next):], b)
	return true
}

// mark adds a range to those that have arrived, and joins it with those that it
// touches.
func (s *Stream) mark(n span) bool {
	i := 0
	for i < len(s.spans) && s.spans[i].to < n.from {
		i++
	}
	j := i
	for j < len(s.spans) && s.spans[j].from <= n.to {
		n.from, n.to = min(n.from, s.spans[j].from), max(n.to, s.spans[j].to)
		j++
	}
	if i == j && len(s.spans) >= maxSpans {
		return false
	}
	s.spans = slices.Replace(s.spans, i, j, n)
	return true
}

// Available returns the bytes that have arrived in order and were not read. They
// are valid until the next call of Receive.
func (s *Stream) Available() []byte {
	if len(s.spans) == 0 || s.spans[0].from != s.next {
		return nil
	}
	return s.in[:s.spans[0].to-s.next]
}

// Read removes and returns what Available returns. The caller owns it.
func (s *Stream) Read() []byte {
	b := slices.Clone(s.Available())
	if len(b) == 0 {
		return nil
	}
	s.next += uint32(len(b))
	s.spans = s.spans[1:]
	if s.in = slices.Clone(s.in[len(b):]); len(s.spans) == 0 {
		s.in, s.spans = nil, nil
	}
	return b
}

// Received returns the offset before which everything has arrived, which
// acknowledges it.
func (s *Stream) Received() uint32 { return s.next + uint32(len(s.Available())) }

// Owes reports whether the peer waits for an acknowledgement.
func (s *Stream) Owes() bool { return s.owes }

// Acknowledged takes note that Received was sent to the peer.
func (s *Stream) Acknowledged() { s.owes = false }

// Held returns the memory of what has arrived and was not read, in bytes.
func (s *Stream) Held() int { return cap(s.in) }
