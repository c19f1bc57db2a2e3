package recovery

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/container"
)

// Segments that travel in pieces (PIECE, WIRE.md §5.6; compare fragmentation, RFC 791
// §3.2).
//
// Pieces begin and end at multiples of a 64th of the segment, however they are
// cut. So pieces of different transmissions, at different MTUs, fit together, and
// one word of bits records which have arrived.

const (
	// PieceHeader is what a piece has in front of its payload: its offset in the
	// segment and the size of the segment's payload, 2 bytes each.
	PieceHeader = 4
	// MaxPieces is how many pieces a segment has at most.
	MaxPieces = 64
	// PieceOverhead is what a segment takes in memory beside its payload, in bytes.
	PieceOverhead = 256
)

// PieceUnit returns the unit, in bytes, of the offsets of a segment's pieces. size is
// the payload of the whole segment.
func PieceUnit(size int) int { return (size + MaxPieces - 1) / MaxPieces }

// Piece is a piece of a segment.
type Piece struct {
	At   int    // offset in the segment
	Size int    // payload of the whole segment, in bytes
	Data []byte // at least one byte
}

// DecodePiece decodes the payload of a PIECE segment. ok is false if it is not part of a
// segment.
func DecodePiece(payload []byte) (p Piece, ok bool) {
	if len(payload) <= PieceHeader {
		return p, false
	}
	p.At = int(binary.LittleEndian.Uint16(payload))
	p.Size = int(binary.LittleEndian.Uint16(payload[2:]))
	p.Data = payload[PieceHeader:]
	end := p.At + len(p.Data)
	if end > p.Size {
		return p, false
	}
	unit := PieceUnit(p.Size)
	return p, p.At%unit == 0 && (end%unit == 0 || end == p.Size)
}

// Encode writes the payload of a PIECE segment to b.
func (p *Piece) Encode(b []byte) {
	binary.LittleEndian.PutUint16(b, uint16(p.At))
	binary.LittleEndian.PutUint16(b[2:], uint16(p.Size))
	copy(b[PieceHeader:], p.Data)
}

// units returns the bits of the units that p covers.
func (p *Piece) units() uint64 { return unitsIn(p.At, p.At+len(p.Data), PieceUnit(p.Size)) }

// unitsIn returns the bits of the units in [from, to). from is a multiple of unit.
func unitsIn(from, to, unit int) uint64 {
	last := (to + unit - 1) / unit // exclusive
	return ^uint64(0) >> (MaxPieces - last) &^ (1<<(from/unit) - 1)
}

// Buffers are where the memory of whole segments comes from.
type Buffers interface {
	Get(n int) []byte
	Put(b []byte)
}

// PartialSegments are the segments of which only some pieces have arrived, by their
// sequence number. The zero value has none, and nil, of which Bytes, Len and Has may be
// called.
type PartialSegments struct {
	held   map[container.Serial]*partial // nil: none
	bytes  int                           // of memory
	expire container.Serial              // when Expire looks next
}

// partial is a segment being reassembled. Until half of it has arrived, data holds
// its pieces one after the other, in order of arrival. So a small piece does not
// reserve the whole segment.
type partial struct {
	data  []byte           // the whole segment, or its pieces; nil: nothing yet
	parts []part           // the pieces in data; nil: data is the whole segment
	size  int              // of the whole segment, in bytes
	have  uint64           // units that have arrived; see unitsIn
	last  container.Serial // when the latest piece arrived
	frg   uint8
}

// part says where in the segment a piece belongs, in bytes.
type part struct{ at, size uint16 }

// memory returns the bytes of memory that s takes.
func (s *partial) memory() int { return PieceOverhead + cap(s.data) + 4*cap(s.parts) }

// add takes a piece, some of which is new.
func (s *partial) add(p *Piece, b Buffers) {
	whole := s.parts == nil && s.data != nil
	if !whole && 2*(len(s.data)+len(p.Data)) < s.size {
		s.data = append(s.data, p.Data...)
		s.parts = append(s.parts, part{uint16(p.At), uint16(len(p.Data))})
		return
	}
	if !whole {
		s.putTogether(b)
	}
	copy(s.data[p.At:], p.Data)
}

// putTogether turns data from single pieces into the whole segment.
func (s *partial) putTogether(b Buffers) {
	whole, from := b.Get(s.size), s.data
	for _, q := range s.parts {
		from = from[copy(whole[q.at:], from[:q.size]):]
	}
	s.data, s.parts = whole, nil
}

// Bytes returns the memory that the segments take, in bytes.
func (a *PartialSegments) Bytes() int {
	if a == nil {
		return 0
	}
	return a.bytes
}

// Len returns the number of segments.
func (a *PartialSegments) Len() int {
	if a == nil {
		return 0
	}
	return len(a.held)
}

// Has reports whether pieces of segment sn have arrived.
func (a *PartialSegments) Has(sn container.Serial) bool { return a != nil && a.held[sn] != nil }

// PieceNews is what a piece is to those that have arrived before.
type PieceNews uint8

const (
	FirstPiece         PieceNews = iota // of its segment
	MorePiece                           // with something that was missing
	KnownPiece                          // all of it has arrived before
	ContradictingPiece                  // another size or frg of the segment: one of the two is forged
)

// Compare returns what p is, a piece of segment sn with the given frg.
func (a *PartialSegments) Compare(sn container.Serial, frg uint8, p *Piece) PieceNews {
	s := a.held[sn]
	switch units := p.units(); {
	case s == nil:
		return FirstPiece
	case s.size != p.Size || s.frg != frg:
		return ContradictingPiece
	case s.have&units == units:
		return KnownPiece
	}
	return MorePiece
}

// Add takes a piece that is FirstPiece or MorePiece. If the segment is complete, Add
// removes it, and returns it in a buffer of b. now and wait are as for Expire.
func (a *PartialSegments) Add(sn container.Serial, frg uint8, p *Piece, b Buffers, now, wait container.Serial) (whole []byte) {
	if a.held == nil {
		a.held = make(map[container.Serial]*partial)
		a.expire = now + wait
	}
	s := a.held[sn]
	if s == nil {
		s = &partial{size: p.Size, frg: frg}
		a.held[sn] = s
	} else {
		a.bytes -= s.memory()
	}
	s.add(p, b)
	a.bytes += s.memory()
	s.have |= p.units()
	s.last = now
	if s.have != unitsIn(0, s.size, PieceUnit(s.size)) {
		return nil
	}
	a.remove(sn, s)
	return s.data
}

// remove removes segment sn.
func (a *PartialSegments) remove(sn container.Serial, s *partial) {
	a.bytes -= s.memory()
	if delete(a.held, sn); len(a.held) == 0 {
		a.held = nil
	}
}

// Drop drops the pieces of segment sn, if there are any.
func (a *PartialSegments) Drop(sn container.Serial, b Buffers) {
	s := a.held[sn]
	if s == nil {
		return
	}
	a.remove(sn, s)
	if s.parts == nil && s.data != nil {
		b.Put(s.data)
	}
}

// Expire drops segments of which no piece has arrived for the time wait. It looks
// for them once in that time.
func (a *PartialSegments) Expire(now, wait container.Serial, b Buffers) {
	if a.held == nil || now.Before(a.expire) {
		return
	}
	a.expire = now + wait
	for sn, s := range a.held {
		if now-s.last >= wait {
			a.Drop(sn, b)
		}
	}
}
