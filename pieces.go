package kcp

import (
	"encoding/binary"
)

// PIECE segments (WIRE.md §5.6). A segment cannot be divided once it has its
// sequence number. If the MTU has shrunk since, it travels as several PIECE
// segments. Each has the header of the whole segment, and says in front of its
// payload where that belongs. Except on the wire, a segment in pieces is one
// segment: it is retransmitted as a whole, and acknowledged once it is
// complete.
//
// Pieces begin and end at multiples of a 64th of the segment, however they are
// cut. So those of different transmissions, at different MTUs, fit together,
// and one word of bits records which have arrived.

const (
	// pieceHeader is what a piece has in front of its payload: its offset in
	// the segment and the size of the segment's payload, 2 bytes each.
	pieceHeader = 4
	maxPieces   = 64
	// maxAssembly bounds the memory held for segments being reassembled, in
	// bytes. The next segment in order is exempt.
	maxAssembly = 1 << 20
	// assemblyRTOs is the number of retransmission time-outs without a further
	// piece after which a segment's pieces are dropped. assemblyTime is the
	// least such time, in milliseconds. The sender retransmits all of them
	// anyway.
	assemblyRTOs = 4
	assemblyTime = 2000
)

// pieceUnit returns the unit, in bytes, of the offsets of a segment's pieces.
// size is the payload of the whole segment.
func pieceUnit(size int) int { return (size + maxPieces - 1) / maxPieces }

// assembly holds the segments of which only some pieces have arrived.
type assembly struct {
	held   map[seq]*pieces // nil: none
	bytes  int             // of memory
	expire seq             // when expirePieces looks next
}

// pieces is a segment being reassembled. Until half of it has arrived, data
// holds its pieces one after the other, in order of arrival. So a small piece
// does not reserve the whole segment.
type pieces struct {
	data  []byte // the whole segment, or its pieces; nil: nothing yet
	parts []part // the pieces in data; nil: data is the whole segment
	size  int    // of the whole segment, in bytes
	have  uint64 // units that have arrived; see unitsIn
	last  seq    // when the latest piece arrived
	frg   uint8
}

// part says where in the segment a piece belongs, in bytes.
type part struct{ at, size uint16 }

// held returns the bytes of memory that p takes.
func (p *pieces) held() int { return piecesBytesHeld + cap(p.data) + 4*cap(p.parts) }

// all returns the value of have of a complete segment.
func (p *pieces) all() uint64 { return unitsIn(0, p.size, pieceUnit(p.size)) }

// add takes a piece at offset at, some of which is new. Buffers come from b.
func (p *pieces) add(at int, data []byte, b *buffers) {
	whole := p.parts == nil && p.data != nil
	if !whole && 2*(len(p.data)+len(data)) < p.size {
		p.data = append(p.data, data...)
		p.parts = append(p.parts, part{uint16(at), uint16(len(data))})
		return
	}
	if !whole {
		p.putTogether(b)
	}
	copy(p.data[at:], data)
}

// putTogether turns data from single pieces into the whole segment.
func (p *pieces) putTogether(b *buffers) {
	whole, from := b.Get(p.size), p.data
	for _, q := range p.parts {
		from = from[copy(whole[q.at:], from[:q.size]):]
	}
	p.data, p.parts = whole, nil
}

// unitsIn returns the bits of the units in [from, to). from is a multiple of
// unit.
func unitsIn(from, to, unit int) uint64 {
	last := (to + unit - 1) / unit // exclusive
	return ^uint64(0) >> (maxPieces - last) &^ (1<<(from/unit) - 1)
}

// decodePiece decodes the payload of a PIECE segment. ok is false if it is not
// part of a segment.
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

// inputPiece processes one piece. If it is the last missing one, the whole
// segment is processed as a PUSH.
func (k *KCP) inputPiece(h *header, payload []byte, recovered bool) error {
	at, size, data, ok := decodePiece(payload)
	if !ok {
		return ErrPiece
	}
	if h.cmd == cmdStreamPiece {
		h.cmd, h.frg = cmdStream, pieceOfStream
	}
	first := at == 0 // the piece that is counted, and acknowledged, for the segment
	if k.arrived(h.sn) {
		if first {
			k.inputWhole(h, data, recovered)
		}
		return nil
	}
	k.expirePieces()
	p := k.rcv.assembly.held[h.sn]
	if p != nil && (p.size != size || p.frg != h.frg) {
		// One of the two is forged, and there is no telling which.
		k.dropPieces(h.sn)
		return ErrPiece
	}
	units := unitsIn(at, at+len(data), pieceUnit(size))
	if p == nil {
		if !k.mayAssemble(h.sn, len(data), size) {
			if first {
				k.counters.SegmentsReceived++
				k.counters.OutOfWindow++
			}
			return nil
		}
		p = k.assemble(h, size)
	} else if p.have&units == units {
		return nil
	}
	k.countPieces(-p.held())
	p.add(at, data, &k.rcv.buffers)
	k.countPieces(p.held())
	p.have |= units
	p.last = k.clock.now
	if p.have == p.all() {
		k.releasePieces(h.sn)
		k.inputWhole(h, p.data, recovered)
		k.rcv.buffers.Put(p.data)
	}
	return nil
}

// countPieces adds n, which may be negative, to the bytes that the assembly
// holds.
func (k *KCP) countPieces(n int) {
	k.rcv.assembly.bytes += n
	k.rcv.held += n
}

// arrived reports whether segment sn has already arrived.
func (k *KCP) arrived(sn seq) bool {
	head := k.rcv.nxt - seq(k.rcv.queued)
	return sn.Before(k.rcv.nxt) ||
		sn.Within(head, head+seq(k.rcv.ring.Len())) && k.rcv.ring.at(sn).held
}

// mayAssemble reports whether there is room for n bytes of segment sn, which
// arrives in pieces and is of size bytes. Of a peer whose address is not
// validated, or whose session was not offered to Accept, only the next segment
// is assembled, and only if all of it fits into what such a peer may have held:
// the first segment of a session travels in pieces, and may overtake CONFIRM.
func (k *KCP) mayAssemble(sn seq, n, size int) bool {
	if !sn.Before(k.rcv.nxt+seq(k.cfg.rcvWnd)) || k.dropsForMemory(sn, n) {
		return false
	}
	if k.rcv.peerUnvalidated || k.rcv.pressure == pressureReserved {
		return sn == k.rcv.nxt && k.Held()+piecesBytesHeld+2*size <= unvalidatedBytes
	}
	return sn == k.rcv.nxt || k.rcv.assembly.bytes+n+piecesBytesHeld <= maxAssembly
}

// assemble starts the reassembly of a segment.
func (k *KCP) assemble(h *header, size int) *pieces {
	if k.rcv.assembly.held == nil {
		k.rcv.assembly.held = make(map[seq]*pieces)
		k.rcv.assembly.expire = k.clock.now + k.assemblyTime()
	}
	p := &pieces{size: size, frg: h.frg}
	k.rcv.assembly.held[h.sn] = p
	k.countPieces(p.held())
	return p
}

// assemblyTime returns the milliseconds without a further piece after which the
// pieces of a segment are dropped.
func (k *KCP) assemblyTime() seq { return max(assemblyTime, assemblyRTOs*seq(k.snd.rtt.rto)) }

// expirePieces drops pieces that have waited for assemblyTime. It looks for
// them once in that time.
func (k *KCP) expirePieces() {
	a := &k.rcv.assembly
	if a.held == nil || k.clock.now.Before(a.expire) {
		return
	}
	wait := k.assemblyTime()
	a.expire = k.clock.now + wait
	for sn, p := range a.held {
		if k.clock.now-p.last >= wait {
			k.dropPieces(sn)
		}
	}
}

// releasePieces removes segment sn from the assembly and returns its pieces;
// nil if it was not being reassembled.
func (k *KCP) releasePieces(sn seq) *pieces {
	p := k.rcv.assembly.held[sn]
	if p == nil {
		return nil
	}
	k.countPieces(-p.held())
	if delete(k.rcv.assembly.held, sn); len(k.rcv.assembly.held) == 0 {
		k.rcv.assembly.held = nil
	}
	return p
}

// dropPieces drops the pieces of segment sn, if there are any.
func (k *KCP) dropPieces(sn seq) {
	if p := k.releasePieces(sn); p != nil && p.parts == nil {
		k.rcv.buffers.Put(p.data)
	}
}

// needsPieces reports whether s must, and can, be cut into pieces for packets of
// size bytes.
func (k *KCP) needsPieces(s *sendSegment, size int) bool {
	if !k.cfg.ext.SendPieces || len(s.data) == 0 || !k.divisible(s, size) {
		return false
	}
	// If the peer has been restarted, a PUSH with sn 0 would open a session
	// there, and the packets of that session would be taken for the peer's.
	return s.size() > size || s.sn == 0
}

// divisible reports whether pieces of s fit into packets of size bytes.
func (k *KCP) divisible(s *sendSegment, size int) bool {
	return pieceUnit(len(s.data)) <= size-headerSize-pieceHeader
}

// putPieces puts s, in pieces, into packets of up to size bytes. h is the
// header of the whole segment.
func (k *KCP) putPieces(s *sendSegment, h *header, size int) {
	unit := pieceUnit(len(s.data))
	room := (size - headerSize - pieceHeader) / unit * unit
	if h.cmd = cmdPiece; s.ofStream() {
		h.cmd = cmdStreamPiece
	}
	for at := 0; at < len(s.data); at += room {
		data := s.data[at:min(at+room, len(s.data))]
		h.len = uint32(pieceHeader + len(data))
		n := headerSize + pieceHeader + len(data)
		b := k.reserve(n, size)
		h.encode(b)
		binary.LittleEndian.PutUint16(b[headerSize:], uint16(at))
		binary.LittleEndian.PutUint16(b[headerSize+2:], uint16(len(s.data)))
		copy(b[headerSize+pieceHeader:], data)
		k.packed(s)
	}
}
