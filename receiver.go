package kcp

import (
	"github.com/arqnet/kcp/internal/reassembly"
	"github.com/arqnet/kcp/internal/streams"
	"io"
)

// receiver is the receiving side. [nxt-queued, nxt) is in order; beyond it,
// early segments wait for the missing ones before them.
type receiver struct {
	nxt     seq    // rcv_nxt
	queued  uint32 // segments in order
	partial uint32 // segments of the incomplete message at the queue's end
	void    uint32 // empty places in the queue, none of them at its head
	early   int    // segments beyond nxt
	held    int    // bytes of the buffers in ring
	bytes   int    // payload in them that was not read
	ring    recvRing
	buffers buffers

	assembly *reassembly.Segments // segments that arrive in pieces; nil: none have
	readInto []byte               // buffer of a blocked Read, filled directly; nil: none

	acks       []ackItem // to be sent with the next flush
	ackPolicy  ackPolicy
	ackRepeats ackRepeater
	tsRecent   seq   // ts of the newest PUSH that was not recovered by FEC
	hasRecent  bool  // there was one
	readDirect bool  // something was put into readInto
	rest       uint8 // fragments that are still to be skipped of a message that was abandoned

	share uint32 // the most that is advertised, in segments; 0: no limit
	shut  bool   // the window that is advertised is zero

	// Set by the session before each Input.
	pressure        memoryPressure
	peerUnvalidated bool // the peer's address is not validated
}

// Recv copies the next message to p and returns its size in bytes. The error is
// ErrNoData if nothing has arrived, ErrPartialMessage if the message is not complete,
// and io.ErrShortBuffer if it is larger than p; then nothing is taken (see PeekSize).
func (k *KCP) Recv(p []byte) (int, error) {
	if k.rcv.queued == 0 {
		return 0, ErrNoData
	}
	size := k.PeekSize()
	if size < 0 {
		return 0, ErrPartialMessage
	}
	if size > len(p) {
		return 0, io.ErrShortBuffer
	}
	full := k.receiveFull()
	n := 0
	for range k.nextMessage() {
		s := k.rcv.ring.at(k.rcv.nxt - seq(k.rcv.queued))
		n += copy(p[n:], s.data[s.read:])
		k.popReceived()
	}
	k.afterRecv(full)
	return n, nil
}

// PeekSize returns the size in bytes of the next complete message, or -1 if
// there is none.
func (k *KCP) PeekSize() int {
	n := k.nextMessage()
	if n == 0 {
		return -1
	}
	size := 0
	head := k.rcv.nxt - seq(k.rcv.queued)
	for i := range n {
		s := k.rcv.ring.at(head + seq(i))
		size += len(s.data) - s.read
	}
	return size
}

// nextMessage returns the number of segments of the next complete message; 0 if
// there is none.
func (k *KCP) nextMessage() uint32 {
	if k.rcv.queued == k.rcv.partial {
		return 0
	}
	return uint32(k.rcv.ring.at(k.rcv.nxt-seq(k.rcv.queued)).frg) + 1
}

// recvBytes copies the bytes of complete messages to p, regardless of message
// boundaries, and returns how many it copied. If a segment does not fit, its
// rest stays.
func (k *KCP) recvBytes(p []byte) int {
	full := k.receiveFull()
	n := 0
	popped := false
	for k.rcv.queued > k.rcv.partial {
		s := k.rcv.ring.at(k.rcv.nxt - seq(k.rcv.queued))
		c := copy(p[n:], s.data[s.read:])
		n += c
		s.read += c
		k.rcv.bytes -= c
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
	s := k.rcv.ring.at(k.rcv.nxt - seq(k.rcv.queued))
	k.rcv.held -= cap(s.data)
	k.rcv.bytes -= len(s.data) - s.read
	k.rcv.buffers.Put(s.data)
	*s = recvSegment{}
	k.rcv.queued--
	k.dropVoid()
}

// afterRecv moves early segments into the room that a read has made. full says
// that the window was closed before; the peer is then sent a window update.
func (k *KCP) afterRecv(full bool) {
	k.deliver()
	if full && !k.receiveFull() {
		k.peer.probe |= sendWins
	}
}

// inputPush processes one data segment. It acknowledges the segment if it lies
// below the end of the window, and keeps it if it is new.
func (k *KCP) inputPush(h *header, payload []byte, recovered bool) {
	k.counters.SegmentsReceived++
	if k.cfg.trace != nil {
		k.cfg.trace.received(h, payload)
	}
	if !h.sn.Before(k.rcv.nxt+seq(k.cfg.rcvWnd)) || k.dropsForMemory(h.sn, len(payload)) && !k.arrived(h.sn) {
		k.counters.OutOfWindow++
		return
	}
	if k.rcv.assembly != nil {
		k.rcv.assembly.Drop(h.sn, &k.rcv.buffers)
	}
	ack := ackItem{h.sn, k.echo(h.ts, recovered)}
	next := h.sn == k.rcv.nxt
	fresh := k.keep(h, payload, ack)
	if !fresh && k.cfg.ext.ThinAcks && k.ackedRecently(h.sn) {
		return
	}
	if k.rcv.peerUnvalidated && len(k.rcv.acks) >= unvalidatedAcks {
		return
	}
	k.rcv.acks = append(k.rcv.acks, ack)
	if k.cfg.ext.ThinAcks {
		k.receivedPush(ack, len(payload), fresh, next)
	}
}

// keep stores the payload of a PUSH below the end of the window, and reports
// whether the segment is new. ack is its acknowledgement.
func (k *KCP) keep(h *header, payload []byte, ack ackItem) bool {
	if h.sn.Before(k.rcv.nxt) {
		k.duplicate()
		return false
	}
	void := false
	if h.cmd == cmdStream {
		if void = streams.AbandonsSegment(payload); !void {
			return k.keepStream(h, payload, ack)
		}
		payload = nil
	}
	if h.sn == k.rcv.nxt && k.deliverDirect(h, payload) {
		return true
	}
	head := k.rcv.nxt - seq(k.rcv.queued)
	k.rcv.ring.Reserve(uint32(head), int(h.sn-head)+1)
	s := k.rcv.ring.at(h.sn)
	if s.held {
		k.duplicate()
		return false
	}
	if k.cfg.ext.RepeatAcks && h.sn != k.rcv.nxt {
		k.rcv.ackRepeats.note(ack, k.clock.now)
	}
	s.data = k.rcv.buffers.Get(len(payload))
	copy(s.data, payload)
	s.frg, s.held, s.void, s.lastAcked = h.frg, true, void, k.clock.now
	k.rcv.early++
	k.rcv.held += cap(s.data)
	k.rcv.bytes += len(payload)
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// duplicate counts a segment that had already arrived.
func (k *KCP) duplicate() {
	k.counters.Duplicates++
	k.rcv.ackRepeats.duplicate()
}

// deliverDirect copies the segment at rcv_nxt past the receive queue into the
// buffer of a blocked Read, and reports whether it did. The segment must be a
// whole message, of which none was abandoned, and nothing may be queued before it.
func (k *KCP) deliverDirect(h *header, payload []byte) bool {
	if len(payload) > len(k.rcv.readInto) || len(payload) == 0 || k.rcv.queued > 0 || h.frg|k.rcv.rest != 0 {
		return false
	}
	k.rcv.readInto = k.rcv.readInto[copy(k.rcv.readInto, payload):]
	k.rcv.readDirect = true
	k.rcv.nxt++
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// echo returns the ts to acknowledge a segment with. For a recovered segment
// that is the ts of the newest packet that arrived by itself. So the peer
// measures the path, not the time that recovery took.
func (k *KCP) echo(ts seq, recovered bool) seq {
	if !recovered {
		if !k.rcv.hasRecent || ts.After(k.rcv.tsRecent) {
			k.rcv.tsRecent, k.rcv.hasRecent = ts, true
		}
		return ts
	}
	if k.rcv.hasRecent && k.rcv.tsRecent.After(ts) {
		return k.rcv.tsRecent
	}
	return ts
}

// deliver moves early segments that are next in order to the receive queue, as
// far as it has room.
func (k *KCP) deliver() {
	for k.rcv.early > 0 && !k.receiveFull() {
		s := k.rcv.ring.at(k.rcv.nxt)
		if !s.held {
			return
		}
		if s.stream {
			k.skipStream()
			continue
		}
		if (s.void || k.rcv.rest > 0) && k.skipAbandoned(s) {
			continue
		}
		k.joinMessage(s.frg)
		k.rcv.early--
		k.rcv.nxt++
		k.rcv.queued++
	}
}

// joinMessage tracks the message that the segment at rcv_nxt belongs to.
// Fragments count down to 0. A fragment that does not continue the count makes
// the message before it impossible to complete. The reference would wait for
// the rest forever, or deliver a mixture.
func (k *KCP) joinMessage(frg uint8) {
	if k.rcv.partial > 0 {
		last := k.rcv.ring.at(k.rcv.nxt - 1).frg
		if frg != last-1 {
			k.dropPartial()
		}
	}
	if frg == 0 {
		k.rcv.partial = 0
	} else {
		k.rcv.partial++
	}
}

// dropPartial discards, and counts, a message that cannot be completed.
func (k *KCP) dropPartial() {
	k.dropIncomplete()
	k.counters.BrokenMessages++
	k.dropVoid()
	k.closeVoid()
}

// dropIncomplete discards the incomplete message at the end of the receive queue.
// While complete messages stand before them, its segments leave empty places:
// closing the gap would cost as much as the queue is long.
func (k *KCP) dropIncomplete() {
	for sn := k.rcv.nxt - seq(k.rcv.partial); sn != k.rcv.nxt; sn++ {
		s := k.rcv.ring.at(sn)
		k.rcv.held -= cap(s.data)
		k.rcv.bytes -= len(s.data) - s.read
		k.rcv.buffers.Put(s.data)
		*s = recvSegment{void: true}
	}
	k.rcv.void += k.rcv.partial
	k.rcv.partial = 0
}

// dropVoid removes the empty places at the head of the receive queue.
func (k *KCP) dropVoid() {
	for k.rcv.void > 0 {
		s := k.rcv.ring.at(k.rcv.nxt - seq(k.rcv.queued))
		if !s.void {
			return
		}
		*s = recvSegment{}
		k.rcv.queued--
		k.rcv.void--
	}
}

// rcvLimit returns how many segments the receive queue may hold. That is the
// receive window, or the number of fragments of a longer message that stands
// alone in the queue. Only peers that exceed the reference's limit of 127
// fragments send such a message, kcp-go among them.
func (k *KCP) rcvLimit() uint32 {
	if k.rcv.partial > 0 && k.rcv.partial == k.rcv.queued && k.rcv.queued >= k.cfg.rcvWnd {
		return max(k.cfg.rcvWnd, uint32(k.rcv.ring.at(k.rcv.nxt-seq(k.rcv.queued)).frg)+1)
	}
	return k.cfg.rcvWnd
}

// receiveFull reports whether the receive queue holds as much as it may.
func (k *KCP) receiveFull() bool {
	if k.rcv.partial > 0 || k.rcv.void > 0 {
		return k.inQueue() >= k.rcvLimit()
	}
	return k.rcv.queued >= k.cfg.rcvWnd
}

// wndUnused returns the window to advertise, in segments. It is at most the
// share of the session, which bounds what is on the way from the peer: segments
// in the receive queue do not count against it, and what exceeds it is taken
// all the same.
func (k *KCP) wndUnused() uint16 {
	queued, limit := k.rcv.queued, k.cfg.rcvWnd
	if k.rcv.partial > 0 || k.rcv.void > 0 {
		queued, limit = k.inQueue(), k.rcvLimit()
	}
	if queued >= limit || k.rcv.shut {
		return 0
	}
	free := min(limit-queued, maxWindow)
	if k.rcv.share > 0 {
		free = min(free, k.rcv.share)
	}
	return uint16(free)
}

// closeReceive drops what has arrived and takes no more. Segments that were
// acknowledged are acknowledged again when the peer retransmits them.
func (k *KCP) closeReceive() {
	k.rcv.ring, k.rcv.assembly, k.rcv.buffers = recvRing{}, nil, buffers{}
	k.rcv.ackRepeats.items = nil
	k.rcv.queued, k.rcv.partial, k.rcv.void, k.rcv.early, k.cfg.rcvWnd, k.rcv.held, k.rcv.rest = 0, 0, 0, 0, 0, 0, 0
	k.rcv.bytes = 0
}
