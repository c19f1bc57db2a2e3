package kcp

import (
	"encoding/binary"
)

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
	// maxAssembly bounds what is held of segments that are being put together, in
	// bytes, but for the next one in order.
	maxAssembly = 1 << 20
	// assemblyRTOs is after how many time-outs without a further piece those of a
	// segment are forgotten, and assemblyTime after how many milliseconds at
	// least. The sender sends all of them again anyway.
	assemblyRTOs = 4
	assemblyTime = 2000
)

// pieceUnit returns what the offsets of the pieces of a segment are multiples of.
func pieceUnit(size int) int { return (size + maxPieces - 1) / maxPieces }

// assembly holds the segments of which some pieces have come.
type assembly struct {
	held   map[seq]*pieces // nil: none
	bytes  int             // of memory
	expire seq             // when to look next for those to be forgotten
}

// pieces is a segment that is being put together. Until half of it is there, its
// pieces stand one after the other as they came: a small piece does not reserve
// the whole.
type pieces struct {
	data  []byte // the segment, or its pieces
	parts []part // nil: data is the segment
	size  int    // of the segment
	have  uint64 // units that have come
	last  seq    // when the last one did
	frg   uint8
}

// part says where a piece belongs that stands among others.
type part struct{ at, size uint16 }

// held returns the bytes of memory that p takes.
func (p *pieces) held() int { return piecesBytesHeld + cap(p.data) + 4*cap(p.parts) }

// all returns have of a segment that is whole.
func (p *pieces) all() uint64 { return unitsIn(0, p.size, pieceUnit(p.size)) }

// add takes a piece, some of which is new. b is where buffers come from.
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

// putTogether makes data the segment.
func (p *pieces) putTogether(b *buffers) {
	whole, from := b.get(p.size), p.data
	for _, q := range p.parts {
		from = from[copy(whole[q.at:], from[:q.size]):]
	}
	p.data, p.parts = whole, nil
}

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
	k.expirePieces()
	p := k.rcv.assembly.held[h.sn]
	if p != nil && (p.size != size || p.frg != h.frg) {
		// One of the two is forged, and which one is not known.
		k.dropPieces(h.sn)
		return ErrPiece
	}
	units := unitsIn(at, at+len(data), pieceUnit(size))
	if p == nil {
		if !k.mayAssemble(h.sn, len(data)) {
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
		k.inputPush(h, p.data, recovered)
		k.rcv.buffers.put(p.data)
	}
	return nil
}

// countPieces counts n bytes more, or fewer, that the assembly holds.
func (k *KCP) countPieces(n int) {
	k.rcv.assembly.bytes += n
	k.rcv.held += n
}

// arrived reports whether the segment sn is there already.
func (k *KCP) arrived(sn seq) bool {
	head := k.rcv.nxt - seq(k.rcv.queued)
	return sn.before(k.rcv.nxt) ||
		sn.within(head, head+seq(len(k.rcv.ring.slots))) && k.rcv.ring.at(sn).held
}

// mayAssemble reports whether there is room for n bytes of a segment that comes
// in pieces. Nobody whose address is not proven has reason to send any.
func (k *KCP) mayAssemble(sn seq, n int) bool {
	if !sn.before(k.rcv.nxt+seq(k.cfg.rcvWnd)) || k.rcv.peerUnvalidated || k.rcv.pressure == pressureReserved || k.dropsForMemory(sn, n) {
		return false
	}
	return sn == k.rcv.nxt || k.rcv.assembly.bytes+n+piecesBytesHeld <= maxAssembly
}

// assemble begins to put a segment together.
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

// assemblyTime returns after which time without a further piece those of a
// segment are forgotten.
func (k *KCP) assemblyTime() seq { return max(assemblyTime, assemblyRTOs*seq(k.snd.rtt.rto)) }

// expirePieces forgets what has waited for too long. It looks once in that time.
func (k *KCP) expirePieces() {
	a := &k.rcv.assembly
	if a.held == nil || k.clock.now.before(a.expire) {
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

// releasePieces takes the segment sn, if it is being put together, out of the
// assembly.
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

// dropPieces forgets what has come of the segment sn.
func (k *KCP) dropPieces(sn seq) {
	if p := k.releasePieces(sn); p != nil && p.parts == nil {
		k.rcv.buffers.put(p.data)
	}
}

// needsPieces returns the size of the packets into which s has to be cut, and can be; 0:
// it is sent whole.
func (k *KCP) needsPieces(s *sendSegment) int {
	switch {
	case k.doubtful(s):
		return min(k.cfg.mtu, k.snd.blackHole.watchAbove)
	case s.size() > k.cfg.mtu && k.cfg.ext.SendPieces && k.divisible(s, k.cfg.mtu):
		return k.cfg.mtu
	case s.sn == 0 && k.cfg.ext.SendPieces && len(s.data) > 0 && k.divisible(s, k.cfg.mtu):
		// A PUSH would open a session where the peer has been restarted, and what
		// that says would be taken for the peer's.
		return k.cfg.mtu
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
		if len(k.out.packet)+n > size {
			k.emit() // though a larger packet might have room
		}
		b := k.reserve(n)
		h.encode(b)
		binary.LittleEndian.PutUint16(b[headerSize:], uint16(at))
		binary.LittleEndian.PutUint16(b[headerSize+2:], uint16(len(s.data)))
		copy(b[headerSize+pieceHeader:], data)
	}
	if size < k.cfg.mtu {
		k.emit()
	}
}
