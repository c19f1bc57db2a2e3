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

	in    []byte // received in order and not read, from offset next on
	next  uint32
	ahead []piece // received beyond a gap, by offset, apart from each other

	held int  // bytes allocated for in and ahead
	kept int  // bytes allocated for out
	owes bool // the peer has sent something, and waits for an acknowledgement
}

// piece is bytes that have arrived beyond a gap.
type piece struct {
	from uint32
	data []byte
}

// to returns the offset behind the piece.
func (p *piece) to() uint32 { return p.from + uint32(len(p.data)) }

const (
	// maxAhead is how many pieces a stream holds beyond gaps. What would need
	// one more is dropped, and repeated by the peer.
	maxAhead = 32
	// pieceBytes is what a piece takes beside its bytes.
	pieceBytes = 32
	// maxWritten is the most that may wait to be acknowledged, in bytes.
	maxWritten = 1 << 20
)

// Write appends bytes to be sent. It reports false, and takes none, if too many
// wait already.
func (s *Stream) Write(b []byte) bool {
	if len(s.out)+len(b) > maxWritten || uint64(s.base)+uint64(len(s.out)+len(b)) > 1<<31 {
		return false
	}
	before := cap(s.out)
	s.out = append(s.out, b...)
	if cap(s.out) > before { // it was moved
		s.kept = cap(s.out)
	}
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

// Sent records that the first n bytes of Peek were sent.
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
		s.out, s.kept = nil, 0
	}
	s.base, s.sent = offset, max(s.sent, offset)
}

// Discard drops what was written, as the peer has shown that it has all of it.
func (s *Stream) Discard() { s.out, s.kept, s.base, s.high = nil, 0, s.sent, s.sent }

// Receive takes bytes that have arrived at an offset. It reports false, and
// takes none, if they reach further than limit bytes beyond what was read, if
// the stream would then hold more than room bytes of memory, or if there are too
// many gaps. What lies beyond a gap makes room for what is next in order.
func (s *Stream) Receive(offset uint32, b []byte, limit, room int) bool {
	from, to := uint64(offset), uint64(offset)+uint64(len(b))
	if len(b) == 0 {
		return true
	}
	s.owes = true
	received := uint64(s.Received())
	if to <= received {
		return true // again
	}
	if to > uint64(s.next)+uint64(limit) || to > 1<<31 {
		return false
	}
	if from > received {
		return s.receiveAhead(piece{offset, b}, room)
	}
	in := piece{s.next, joined(s.in, b[received-from:], room)}
	n := 0 // pieces of ahead that it reaches
	for ; n < len(s.ahead) && s.ahead[n].from <= in.to(); n++ {
		if p := &s.ahead[n]; p.to() > in.to() {
			in.data = joined(in.data, p.data[in.to()-p.from:], room)
		}
	}
	if cap(in.data) > room {
		return false
	}
	s.in, s.ahead = in.data, slices.Delete(s.ahead, 0, n)
	for s.count(); s.held > room && len(s.ahead) > 0; s.count() {
		s.ahead = slices.Delete(s.ahead, len(s.ahead)-1, len(s.ahead))
	}
	return true
}

// receiveAhead is Receive for bytes beyond a gap. It joins them with the pieces
// that they touch.
func (s *Stream) receiveAhead(p piece, room int) bool {
	i := 0
	for i < len(s.ahead) && s.ahead[i].to() < p.from {
		i++
	}
	j := i
	for j < len(s.ahead) && s.ahead[j].from <= p.to() {
		j++
	}
	if i < j {
		first, last := &s.ahead[i], &s.ahead[j-1]
		if first.from <= p.from && p.to() <= first.to() {
			return true // again
		}
		end := p.to()
		if first.from < p.from {
			p = piece{first.from, joined(first.data, p.data[first.to()-p.from:], room)}
		} else {
			p.data = slices.Clone(p.data)
		}
		if last.to() > end {
			p.data = joined(p.data, last.data[end-last.from:], room)
		}
	} else {
		p.data = slices.Clone(p.data)
	}
	held := s.held + cap(p.data) + pieceBytes
	for _, old := range s.ahead[i:j] {
		held -= cap(old.data) + pieceBytes
	}
	if held > room || len(s.ahead)-(j-i) >= maxAhead {
		return false
	}
	s.ahead = slices.Replace(s.ahead, i, j, p)
	s.count()
	return true
}

// joined appends b to a, within room bytes if it can.
func joined(a, b []byte, room int) []byte {
	if c := append(a, b...); cap(c) <= room {
		return c
	}
	return slices.Concat(a, b)
}

// count updates held.
func (s *Stream) count() {
	s.held = cap(s.in)
	for _, p := range s.ahead {
		s.held += cap(p.data) + pieceBytes
	}
}

// Read removes and returns what Available returns. The caller owns it.
func (s *Stream) Read() []byte {
	b := s.in
	if len(b) == 0 {
		return nil
	}
	s.next += uint32(len(b))
	s.in = nil
	s.count()
	return b
}

// ReadMessages is Read for the bytes that are whole messages of TLS.
func (s *Stream) ReadMessages() []byte {
	n := wholeMessages(s.in)
	switch n {
	case 0:
		return nil
	case len(s.in):
		return s.Read()
	}
	b := s.in[:n:n]
	s.next, s.in = s.next+uint32(n), slices.Clone(s.in[n:])
	s.count()
	return b
}

// Received returns the offset before which everything has arrived, which
// acknowledges it.
func (s *Stream) Received() uint32 { return s.next + uint32(len(s.in)) }
