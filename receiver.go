package kcp

import (
	"io"
)

// Recv copies the next message to p and returns its size. The error is
// ErrNoData when nothing has arrived, ErrPartialMessage when the message is
// not yet whole, and io.ErrShortBuffer, with nothing taken, when it is larger
// than p: PeekSize tells its size.
func (k *KCP) Recv(p []byte) (int, error) {
	if k.rcvQueued == 0 {
		return 0, ErrNoData
	}
	size := k.PeekSize()
	if size < 0 {
		return 0, ErrPartialMessage
	}
	if size > len(p) {
		return 0, io.ErrShortBuffer
	}
	full := k.rcvQueued >= k.rcvLimit()
	n := 0
	for range k.nextMessage() {
		s := k.rcv.at(k.rcvNxt - seq(k.rcvQueued))
		n += copy(p[n:], s.data[s.read:])
		k.popReceived()
	}
	k.afterRecv(full)
	return n, nil
}

// PeekSize returns the size of the next whole message, or -1 if there is none.
func (k *KCP) PeekSize() int {
	n := k.nextMessage()
	if n == 0 {
		return -1
	}
	size := 0
	head := k.rcvNxt - seq(k.rcvQueued)
	for i := range n {
		s := k.rcv.at(head + seq(i))
		size += len(s.data) - s.read
	}
	return size
}

// nextMessage returns how many segments the next whole message has; 0 if there
// is none.
func (k *KCP) nextMessage() uint32 {
	if k.rcvQueued == k.rcvPartial {
		return 0
	}
	return uint32(k.rcv.at(k.rcvNxt-seq(k.rcvQueued)).frg) + 1
}

// recvBytes copies to p as many bytes of whole messages as there are, without
// regard to their boundaries. A segment that does not fit stays with its rest.
func (k *KCP) recvBytes(p []byte) int {
	full := k.rcvQueued >= k.rcvLimit()
	n := 0
	popped := false
	for k.rcvQueued > k.rcvPartial {
		s := k.rcv.at(k.rcvNxt - seq(k.rcvQueued))
		c := copy(p[n:], s.data[s.read:])
		n += c
		s.read += c
		if s.read < len(s.data) {
			break
		}
		k.popReceived()
		popped = true
	}
	if popped {
		k.afterRecv(full)
	}
	return n
}

// popReceived drops the segment at the head of the receive queue.
func (k *KCP) popReceived() {
	s := k.rcv.at(k.rcvNxt - seq(k.rcvQueued))
	k.rcvHeld -= cap(s.data)
	k.rcvBuffers.put(s.data)
	*s = recvSegment{}
	k.rcvQueued--
	k.dropVoid()
}

// afterRecv takes early segments into the room that a read has made. Where the
// window was shut, the peer is told that it is open again.
func (k *KCP) afterRecv(full bool) {
	k.deliver()
	if full && k.rcvQueued < k.rcvLimit() {
		k.probe |= sendWins
	}
}

// inputPush takes one data segment: acknowledges it where it lies below the
// end of the window, and keeps it where it is new.
func (k *KCP) inputPush(h *header, payload []byte, recovered bool) {
	k.counters.SegmentsReceived++
	k.trace.received(h.sn, len(payload))
	if !h.sn.before(k.rcvNxt+seq(k.rcvWnd)) || k.dropsForMemory(h.sn, len(payload)) && !k.arrived(h.sn) {
		k.counters.OutOfWindow++
		return
	}
	k.dropPieces(h.sn)
	ack := ackItem{h.sn, k.echo(h.ts, recovered)}
	next := h.sn == k.rcvNxt
	fresh := k.keep(h, payload, ack)
	if !fresh && k.ext.ThinAcks && k.ackedRecently(h.sn) {
		return
	}
	if k.peerUnvalidated && len(k.acks) >= unvalidatedAcks {
		return
	}
	k.acks = append(k.acks, ack)
	if k.ext.ThinAcks {
		k.receivedPush(ack, len(payload), fresh, next)
	}
}

// keep stores the payload of a PUSH below the end of the window, and reports
// whether it is new. ack is its acknowledgement.
func (k *KCP) keep(h *header, payload []byte, ack ackItem) bool {
	if h.sn.before(k.rcvNxt) {
		k.duplicate()
		return false
	}
	if h.sn == k.rcvNxt && k.deliverDirect(h, payload) {
		return true
	}
	head := k.rcvNxt - seq(k.rcvQueued)
	k.rcv.reserve(head, int(h.sn-head)+1)
	s := k.rcv.at(h.sn)
	if s.held {
		k.duplicate()
		return false
	}
	if k.ext.RepeatAcks && h.sn != k.rcvNxt {
		k.ackRepeats.note(ack, k.now)
	}
	s.data = k.rcvBuffers.get(len(payload))
	copy(s.data, payload)
	s.frg, s.held, s.lastAcked = h.frg, true, k.now
	k.rcvEarly++
	k.rcvHeld += cap(s.data)
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// duplicate notes a segment that had arrived before.
func (k *KCP) duplicate() {
	k.counters.Duplicates++
	k.ackRepeats.duplicate()
}

// deliverDirect takes the segment at rcv_nxt past the receive queue, if there is a sink
// for it. It has to be a message of its own with nothing queued before it.
func (k *KCP) deliverDirect(h *header, payload []byte) bool {
	if len(payload) > len(k.readInto) || len(payload) == 0 || k.rcvQueued > 0 || h.frg != 0 {
		return false
	}
	k.readInto = k.readInto[copy(k.readInto, payload):]
	k.readDirect = true
	k.rcvNxt++
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// echo returns the ts to acknowledge a segment with. For a recovered segment
// that is the ts of the newest packet that came by itself: the peer then
// measures the path, not the time that recovery took.
func (k *KCP) echo(ts seq, recovered bool) seq {
	if !recovered {
		if !k.hasRecent || ts.after(k.tsRecent) {
			k.tsRecent, k.hasRecent = ts, true
		}
		return ts
	}
	if k.hasRecent && k.tsRecent.after(ts) {
		return k.tsRecent
	}
	return ts
}

// deliver moves early segments that have become next in order to the receive
// queue, as far as it has room.
func (k *KCP) deliver() {
	for k.rcvEarly > 0 && k.rcvQueued < k.rcvLimit() {
		s := k.rcv.at(k.rcvNxt)
		if !s.held {
			return
		}
		k.joinMessage(s.frg)
		k.rcvEarly--
		k.rcvNxt++
		k.rcvQueued++
	}
}

// joinMessage keeps track of the message that the segment at rcv_nxt belongs
// to. Fragments count down to 0; one that does not go on where the one before
// it stopped makes the message before it impossible to complete. The reference
// would wait for the rest for ever, or hand up a mixture.
func (k *KCP) joinMessage(frg uint8) {
	if k.rcvPartial > 0 {
		last := k.rcv.at(k.rcvNxt - 1).frg
		if frg != last-1 {
			k.dropPartial()
		}
	}
	if frg == 0 {
		k.rcvPartial = 0
	} else {
		k.rcvPartial++
	}
}

// dropPartial discards the incomplete message at the end of the receive queue.
// Its segments keep their places, empty, while whole messages stand before
// them: to close the gap would cost as much as the queue is long.
func (k *KCP) dropPartial() {
	for sn := k.rcvNxt - seq(k.rcvPartial); sn != k.rcvNxt; sn++ {
		s := k.rcv.at(sn)
		k.rcvHeld -= cap(s.data)
		k.rcvBuffers.put(s.data)
		*s = recvSegment{void: true}
	}
	k.rcvVoid += k.rcvPartial
	k.rcvPartial = 0
	k.counters.BrokenMessages++
	k.dropVoid()
}

// dropVoid takes the empty places at the head of the receive queue out of it.
func (k *KCP) dropVoid() {
	for k.rcvVoid > 0 {
		s := k.rcv.at(k.rcvNxt - seq(k.rcvQueued))
		if !s.void {
			return
		}
		*s = recvSegment{}
		k.rcvQueued--
		k.rcvVoid--
	}
}

// rcvLimit returns how many segments the receive queue may hold: the receive
// window, and where a message with more fragments than that stands alone in
// the queue, as many as it has. Only peers that break the reference's limit of
// 127 fragments send such a message, kcp-go among them.
func (k *KCP) rcvLimit() uint32 {
	if k.rcvPartial > 0 && k.rcvPartial == k.rcvQueued && k.rcvQueued >= k.rcvWnd {
		return max(k.rcvWnd, uint32(k.rcv.at(k.rcvNxt-seq(k.rcvQueued)).frg)+1)
	}
	return k.rcvWnd
}

// wndUnused returns the window to advertise.
func (k *KCP) wndUnused() uint16 {
	limit := k.rcvLimit()
	if k.rcvQueued >= limit {
		return 0
	}
	return uint16(min(limit-k.rcvQueued, maxWindow))
}

// closeReceive drops what has arrived and takes no more; what has been
// acknowledged so far is acknowledged again when it is repeated.
func (k *KCP) closeReceive() {
	k.rcv, k.assembly, k.rcvBuffers = recvRing{}, assembly{}, buffers{}
	k.ackRepeats.items = nil
	k.rcvQueued, k.rcvPartial, k.rcvVoid, k.rcvEarly, k.rcvWnd, k.rcvHeld = 0, 0, 0, 0, 0, 0
}
