package kcp

import "encoding/binary"

// Pieces: a segment cannot be cut anew once it has its sequence number. Where
// the MTU has shrunk since, it travels as several PIECE segments, which have the
// header of the whole one and say in front of their payload where that belongs.
// To everything but the wire, a segment in pieces is one segment: it is sent
// again as a whole, and acknowledged once it is whole. WIRE.md §5.6.
//
// Pieces begin and end at multiples of a 64th of the segment, however they are
// cut, so that those of different transmissions, at different MTUs, fit together
// and one word of bits tells what has come.

const (
	// pieceHeader is what a piece has in front of its payload: its offset in
	// the segment and the size of that, 2 bytes each.
	pieceHeader = 4
	maxPieces   = 64
	// maxAssembly bounds the segments that are being put together, in bytes, but
	// for the next one in order: a small piece reserves room for all of its
	// segment.
	maxAssembly = 1 << 20
)

// pieceUnit returns what the offsets of the pieces of a segment are multiples of.
func pieceUnit(size int) int { return (size + maxPieces - 1) / maxPieces }

// assembly holds the segments of which some pieces have come.
type assembly struct {
	held  map[seq]*pieces // nil: none
	bytes int             // of their segments
}

// pieces is a segment that is being put together.
type pieces struct {
	data []byte
	have uint64 // units that have come
	frg  uint8
}

// all returns have of a segment that is whole.
func (p *pieces) all() uint64 { return unitsIn(0, len(p.data), pieceUnit(len(p.data))) }

// unitsIn returns the bits of the units in [from, to), which begins with one.
func unitsIn(from, to, unit int) uint64 {
	last := (to + unit - 1) / unit // not in it
	return ^uint64(0) >> (maxPieces - last) &^ (1<<(from/unit) - 1)
}

// decodePiece reads the payload of a PIECE segment. It is false where that is
// no part of a segment.
func decodePiece(payload []byte) (at, size int, data []byte, ok bool) {
	if len(payload) <= pieceHeader {
		return 0, 0, nil, false
	}
	at = int(binary.LittleEndian.Uint16(payload))
	size = int(binary.LittleEndian.Uint16(payload[2:]))
	data = payload[pieceHeader:]
	end := at + len(data)
	if end > size {
		return 0, 0, nil, false
	}
	unit := pieceUnit(size)
	return at, size, data, at%unit == 0 && (end%unit == 0 || end == size)
}

// inputPiece takes one piece, and the segment when it is the last that was
// missing.
func (k *KCP) inputPiece(h *header, payload []byte, recovered bool) error {
	at, size, data, ok := decodePiece(payload)
	if !ok {
		return ErrPiece
	}
	first := at == 0 // it stands for the segment, where that is not put together
	if k.arrived(h.sn) {
		if first {
			k.inputPush(h, data, recovered)
		}
		return nil
	}
	p := k.assembly.held[h.sn]
	if p != nil && (len(p.data) != size || p.frg != h.frg) {
		// One of the two is forged, and which one is not known.
		k.dropPieces(h.sn)
		return ErrPiece
	}
	if p == nil {
		if !k.mayAssemble(h.sn, size) {
			if first {
				k.counters.SegmentsReceived++
				k.counters.OutOfWindow++
			}
			return nil
		}
		p = k.assemble(h, size)
	}
	copy(p.data[at:], data)
	p.have |= unitsIn(at, at+len(data), pieceUnit(size))
	if p.have == p.all() {
		k.releasePieces(h.sn)
		k.inputPush(h, p.data, recovered)
		k.buffers.put(p.data)
	}
	return nil
}

// arrived reports whether the segment sn is there already.
func (k *KCP) arrived(sn seq) bool {
	head := k.rcvNxt - seq(k.rcvQueued)
	return sn.before(k.rcvNxt) ||
		sn.within(head, head+seq(len(k.rcv.slots))) && k.rcv.at(sn).held
}

// mayAssemble reports whether there is room for a segment that comes in pieces.
// Nobody whose address is not proven has reason to send any.
func (k *KCP) mayAssemble(sn seq, size int) bool {
	if !sn.before(k.rcvNxt+seq(k.rcvWnd)) || k.spares(sn) || k.sparing == sparesAlways || k.stranger {
		return false
	}
	return sn == k.rcvNxt || k.assembly.bytes+size <= maxAssembly
}

// assemble begins to put a segment together.
func (k *KCP) assemble(h *header, size int) *pieces {
	if k.assembly.held == nil {
		k.assembly.held = make(map[seq]*pieces)
	}
	p := &pieces{data: k.buffers.get(size), frg: h.frg}
	k.assembly.held[h.sn] = p
	k.assembly.bytes += size
	k.rcvBytes += size
	return p
}

// releasePieces takes the segment sn, if it is being put together, out of the
// assembly.
func (k *KCP) releasePieces(sn seq) *pieces {
	p := k.assembly.held[sn]
	if p == nil {
		return nil
	}
	k.assembly.bytes -= len(p.data)
	k.rcvBytes -= len(p.data)
	if delete(k.assembly.held, sn); len(k.assembly.held) == 0 {
		k.assembly.held = nil
	}
	return p
}

// dropPieces forgets what has come of the segment sn.
func (k *KCP) dropPieces(sn seq) {
	if p := k.releasePieces(sn); p != nil {
		k.buffers.put(p.data)
	}
}

// cuts returns the size of the packets into which s has to be cut, and can be; 0:
// it is sent whole.
func (k *KCP) cuts(s *sendSegment) int {
	switch {
	case k.doubtful(s):
		return min(k.mtu, k.sizes.above)
	case s.size() > k.mtu && k.ext.SendPieces && k.divisible(s, k.mtu):
		return k.mtu
	}
	return 0
}

// divisible reports whether s can be sent in pieces in packets of a size.
func (k *KCP) divisible(s *sendSegment, size int) bool {
	return pieceUnit(len(s.data)) <= size-headerSize-pieceHeader
}

// putPieces puts s into packets of up to a size, piece by piece. h is the header
// of the whole.
func (k *KCP) putPieces(s *sendSegment, h *header, size int) {
	unit := pieceUnit(len(s.data))
	room := (size - headerSize - pieceHeader) / unit * unit
	h.cmd = cmdPiece
	for at := 0; at < len(s.data); at += room {
		data := s.data[at:min(at+room, len(s.data))]
		h.len = uint32(pieceHeader + len(data))
		n := headerSize + pieceHeader + len(data)
		if len(k.packet)+n > size {
			k.emit() // though a larger packet might have room
		}
		b := k.reserve(n)
		h.encode(b)
		binary.LittleEndian.PutUint16(b[headerSize:], uint16(at))
		binary.LittleEndian.PutUint16(b[headerSize+2:], uint16(len(s.data)))
		copy(b[headerSize+pieceHeader:], data)
	}
	if size < k.mtu {
		k.emit()
	}
}

// segmentSize returns the payload of the segments that n bytes are cut into.
// A message that had few enough segments before the MTU has shrunk still has.
func (k *KCP) segmentSize(n int) int {
	if k.stream || k.wholeMSS <= k.mss || n <= k.fragmentLimit()*k.mss {
		return k.mss
	}
	return k.wholeMSS
}
