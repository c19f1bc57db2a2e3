package machine

import (
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// PIECE segments (WIRE.md §5.6). A segment cannot be divided once it has its sequence
// number. If the MTU has shrunk since, it travels as several PIECE segments. Each has
// the header of the whole segment, and says in front of its payload where that belongs.
// Except on the wire, a segment in pieces is one segment: it is retransmitted as a
// whole, and acknowledged once it is complete.

const (
	// maxAssembly bounds the memory held for segments being reassembled, in
	// bytes. The next segment in order is exempt.
	maxAssembly = 1 << 20
	// assemblyRTOs is the number of retransmission time-outs without a further piece
	// after which a segment's pieces are dropped. assemblyTime is the least such time,
	// in milliseconds. The sender retransmits all of them anyway.
	assemblyRTOs = 4
	assemblyTime = 2000
)

// inputPiece processes one piece. If it is the last missing one, the whole
// segment is processed as a PUSH.
func (k *KCP) inputPiece(h *wire.Header, payload []byte, recovered bool) error {
	p, ok := recovery.DecodePiece(payload)
	if !ok {
		return ErrPiece
	}
	if h.Cmd == wire.CmdStreamPiece {
		h.Cmd, h.Frg = wire.CmdStream, pieceOfStream
	}
	first := p.At == 0 // the piece that is counted, and acknowledged, for the segment
	if k.arrived(h.SN) {
		if first {
			k.inputWhole(h, p.Data, recovered)
		}
		return nil
	}
	k.expirePieces()
	if k.rcv.assembly == nil {
		k.rcv.assembly = new(recovery.PartialSegments)
	}
	a := k.rcv.assembly
	switch a.Compare(h.SN, h.Frg, &p) {
	case recovery.KnownPiece:
		return nil
	case recovery.ContradictingPiece: // there is no telling which of the two is forged
		a.Drop(h.SN, &k.rcv.buffers)
		return ErrPiece
	case recovery.FirstPiece:
		if !k.mayAssemble(h.SN, len(p.Data), p.Size) {
			if first {
				k.counters.SegmentsReceived++
				k.counters.OutOfWindow++
			}
			return nil
		}
	}
	if whole := a.Add(h.SN, h.Frg, &p, &k.rcv.buffers, k.clock.now, k.assemblyTime()); whole != nil {
		k.inputWhole(h, whole, recovered)
		k.rcv.buffers.Put(whole)
	}
	return nil
}

// arrived reports whether segment sn has already arrived.
func (k *KCP) arrived(sn Seq) bool {
	return sn.Before(k.rcv.nxt) ||
		sn.Within(k.rcv.nxt, k.rcv.nxt+Seq(k.rcv.ring.Len())) && k.rcv.ring.at(sn).held
}

// mayAssemble reports whether there is room for n bytes of segment sn, which
// arrives in pieces and is of size bytes. Of a peer whose address is not
// validated, or whose session was not offered to Accept, only the next segment
// is assembled, and only if all of it fits into what such a peer may have held:
// the first segment of a session travels in pieces, and may overtake CONFIRM.
func (k *KCP) mayAssemble(sn Seq, n, size int) bool {
	if !sn.Before(k.rcv.nxt+Seq(k.cfg.rcvWnd)) || k.dropsForMemory(sn, n) {
		return false
	}
	if k.rcv.peerUnvalidated || k.rcv.pressure == PressureReserved {
		return sn == k.rcv.nxt && k.Held()+recovery.PieceOverhead+2*size <= UnvalidatedBytes
	}
	return sn == k.rcv.nxt || k.rcv.assembly.Bytes()+n+recovery.PieceOverhead <= maxAssembly
}

// assemblyTime returns the milliseconds without a further piece after which the
// pieces of a segment are dropped.
func (k *KCP) assemblyTime() Seq { return max(assemblyTime, assemblyRTOs*Seq(k.snd.rtt.rto)) }

// expirePieces drops pieces that have waited for assemblyTime.
func (k *KCP) expirePieces() {
	if k.rcv.assembly != nil {
		k.rcv.assembly.Expire(k.clock.now, k.assemblyTime(), &k.rcv.buffers)
	}
}

// needsPieces reports whether s must, and can, be cut into pieces for packets of
// size bytes.
func (k *KCP) needsPieces(s *Segment, size int) bool {
	if !k.cfg.ext.SendPieces || len(s.data) == 0 || !k.divisible(s, size) {
		return false
	}
	// If the peer has been restarted, a PUSH with sn 0 would open a session
	// there, and the packets of that session would be taken for the peer's.
	return s.size() > size || s.sn == 0
}

// divisible reports whether pieces of s fit into packets of size bytes.
func (k *KCP) divisible(s *Segment, size int) bool {
	return recovery.PieceUnit(len(s.data)) <= size-wire.HeaderSize-recovery.PieceHeader
}

// putPieces puts s, in pieces, into packets of up to size bytes. h is the
// header of the whole segment.
func (k *KCP) putPieces(s *Segment, h *wire.Header, size int) {
	unit := recovery.PieceUnit(len(s.data))
	room := (size - wire.HeaderSize - recovery.PieceHeader) / unit * unit
	if h.Cmd = wire.CmdPiece; s.streamed {
		h.Cmd = wire.CmdStreamPiece
	}
	for at := 0; at < len(s.data); at += room {
		p := recovery.Piece{At: at, Size: len(s.data), Data: s.data[at:min(at+room, len(s.data))]}
		h.Len = uint32(recovery.PieceHeader + len(p.Data))
		b := k.reserve(wire.HeaderSize+int(h.Len), size)
		h.Encode(b)
		p.Encode(b[wire.HeaderSize:])
		k.packed(s)
	}
}

// Black hole detection (RFC 8899 §4.3): what internal/netpath finds is done.

// arrivedIn returns in how large a packet s has arrived at least, in bytes. Any
// of its transmissions may be the one acknowledged.
func (s *Segment) arrivedIn() int32 {
	if s.least > 0 && (s.packet == 0 || s.least < s.packet) {
		return s.least
	}
	return s.packet
}

// BlackHole returns the detector.
func (k *KCP) BlackHole() *netpath.BlackHole { return &k.snd.blackHole }

// maxPacket returns the size of the largest packet that may be sent now, in bytes.
// While large packets are suspect it is no more than nearly every path takes.
func (k *KCP) maxPacket() int {
	if w := &k.snd.blackHole; k.cfg.ext.SendPieces && w.Losing() {
		return int(w.Most(uint32(k.clock.now), k.snd.rtt.rto, int32(k.cfg.mtu)))
	}
	return k.cfg.mtu
}

// maxPacketOf returns the size of the largest packet that s may be in, in bytes.
func (k *KCP) maxPacketOf(s *Segment) int {
	size := k.maxPacket()
	if k.cfg.ext.SendPieces && k.snd.blackHole.SendsSmall(uint32(s.sn), uint32(k.clock.now)) {
		return int(k.snd.blackHole.Least(int32(size)))
	}
	if k.cfg.ext.SendPieces && (s.xmit > 1 || s.repeats > 0) {
		return int(k.snd.blackHole.MostAgain(int32(size), int32(k.cfg.mtu)))
	}
	return size
}

// blackHoleSuspected reports whether the path may be dropping large packets.
func (k *KCP) blackHoleSuspected() bool {
	return k.snd.blackHole.Suspected(uint32(k.clock.now), k.snd.rtt.rto)
}

// PacketsRefused has the segments retransmitted at once that were last in packets of
// size bytes or more: the system has refused these.
func (k *KCP) PacketsRefused(size int) {
	for _, l := range []*segmentList{&k.snd.loss.fresh, &k.snd.loss.resent} {
		for s := l.head; s != nil; s = s.order.next {
			if s.packet >= int32(size) {
				k.retransmitAt(s, k.clock.now, trace.LossRefused)
			}
		}
	}
}

// shrinkMTU sets a smaller MTU, because the path drops larger packets. A
// segment that is too large now leaves in pieces with its next transmission.
func (k *KCP) shrinkMTU(mtu int) error {
	whole := max(k.cfg.messageMSS, k.cfg.mss)
	if err := k.SetMTU(mtu); err != nil {
		return err
	}
	k.cfg.messageMSS = whole
	k.snd.blackHole.Shrunk(int32(mtu))
	return nil
}
