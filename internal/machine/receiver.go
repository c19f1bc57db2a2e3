package machine

import (
	"io"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// Receiver is the receiving side: what has arrived in order, and early segments, which
// wait for the missing ones before them or for room.
type Receiver struct {
	nxt     Seq       // rcv_nxt
	partial uint32    // segments of the incomplete message at the queue's end
	queue   recvQueue // segments in order
	ring    recvRing  // early segments
	held    int       // bytes of the buffers in queue and ring
	bytes   int       // payload in them that was not read
	buffers Buffers

	assembly *recovery.PartialSegments // segments that arrive in pieces; nil: none have
	readInto []byte                    // buffer of a blocked Read, filled directly; nil: none

	acks       []recovery.Ack // to be sent with the next flush
	ackPolicy  recovery.DelayedAck
	share      uint32             // the most that is advertised, in segments; 0: no limit
	ackRepeats *recovery.Repeater // nil: no duplicate has come lately
	early      uint32             // segments in ring
	tsRecent   Seq                // ts of the newest PUSH that was not recovered by FEC
	hasRecent  bool               // there was one
	readDirect bool               // something was put into readInto
	rest       uint8              // fragments that are still to be skipped of a message that was abandoned

	shut   bool // the window that is advertised is zero
	copies bool // segments may carry copies

	// Set by feed.
	pressure        Pressure
	peerUnvalidated bool // the peer's address is not validated
}

// Receiver returns the receiving side.
func (k *KCP) Receiver() *Receiver { return &k.rcv }

// Readable reports whether a read would return something.
func (r *Receiver) Readable() bool { return r.queue.n > r.partial || r.readDirect }

// Queued reports whether anything is waiting to be read, even if only part of a
// message.
func (r *Receiver) Queued() bool { return r.queue.n > 0 }

// LendBuffer lets in-order data be copied straight into b; see deliverDirect.
func (r *Receiver) LendBuffer(b []byte) { r.readInto = b }

// TakeBuffer ends that, and returns how many bytes of b are free.
func (r *Receiver) TakeBuffer() (free int) {
	free = len(r.readInto)
	r.readInto, r.readDirect = nil, false
	return free
}

// Gapped reports whether something has arrived behind what is missing.
func (r *Receiver) Gapped() bool { return r.early > 0 }

// AcksPending reports whether acknowledgements are waiting for the next flush.
func (r *Receiver) AcksPending() bool { return len(r.acks) > 0 }

// AwaitCall lets acknowledgements that are due wait for a call that was woken.
func (r *Receiver) AwaitCall(now Seq, s *Sender) { r.ackPolicy.AwaitCall(now, uint32(s.rtt.srtt)) }

// DropAcks drops the acknowledgements that wait.
func (r *Receiver) DropAcks() { r.acks = nil }

// AckAgain has the next flush acknowledge what has arrived of streams behind a gap. It
// reports whether there is any.
func (r *Receiver) AckAgain() bool {
	if r.early > 0 {
		r.acks = recovery.RepeatedAcks(r.acks, r.nxt, r.ring.Len(), r.tsRecent, func(sn Seq) bool { return r.ring.at(sn).stream })
	}
	return r.early > 0
}

// Recv copies the next message to p and returns its size in bytes. The error is
// ErrNoData if nothing has arrived, ErrPartialMessage if the message is not complete,
// and io.ErrShortBuffer if it is larger than p; then nothing is taken (see PeekSize).
func (k *KCP) Recv(p []byte) (int, error) {
	if k.rcv.queue.n == 0 {
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
		s := k.rcv.queue.at(0)
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
	for i := range n {
		s := k.rcv.queue.at(i)
		size += len(s.data) - s.read
	}
	return size
}

// nextMessage returns the number of segments of the next complete message; 0 if
// there is none.
func (k *KCP) nextMessage() uint32 {
	if k.rcv.queue.n == k.rcv.partial {
		return 0
	}
	return uint32(k.rcv.queue.at(0).frg) + 1
}

// RecvBytes copies the bytes of complete messages to p, regardless of message
// boundaries, and returns how many it copied. If a segment does not fit, its
// rest stays.
func (k *KCP) RecvBytes(p []byte) int {
	full := k.receiveFull()
	n := 0
	popped := false
	for k.rcv.queue.n > k.rcv.partial {
		s := k.rcv.queue.at(0)
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
	q := &k.rcv.queue
	s := q.at(0)
	k.release(s)
	*s = recvSegment{}
	q.first++
	q.n--
}

// release takes back the buffer of s.
func (k *KCP) release(s *recvSegment) {
	k.rcv.held -= cap(s.data)
	k.rcv.bytes -= len(s.data) - s.read
	k.rcv.buffers.Put(s.data)
}

// afterRecv moves early segments into the room that a read has made. full says
// that the window was closed before; the peer is then sent a window update.
func (k *KCP) afterRecv(full bool) {
	k.deliver()
	if full && !k.receiveFull() {
		k.peer.probe |= sendWins
	}
	if k.limit.By == stats.LimitReader {
		k.noteLimit(k.sendWindow())
	}
}

// inputCopies processes the copies that a segment carries (WIRE.md §5.11), and returns
// the rest of its payload. What has arrived before needs no ACK.
func (k *KCP) inputCopies(h *wire.Header, payload []byte, recovered bool) ([]byte, error) {
	data, s, ok := recovery.SplitCopies(h.Cmd == wire.CmdAck, payload, h.SN, h.TS)
	if !ok {
		return nil, ErrSegmentLength
	}
	for c, more := s.Next(); more; c, more = s.Next() {
		one := wire.Header{Conv: k.conv, Cmd: c.Cmd(), Frg: c.Frg, Wnd: h.Wnd, TS: s.TS, SN: c.SN, Una: h.Una, Len: uint32(len(c.Data))}
		if _, err := k.checkSegment(&one, c.Data); err != nil {
			return nil, err
		}
		if k.arrived(c.SN) {
			k.counters.SegmentsReceived++
			k.counters.Duplicates++
			k.cfg.trace.received(&one, c.Data)
		} else {
			k.inputWhole(&one, c.Data, recovered)
		}
	}
	if h.Cmd != wire.CmdAck {
		h.Frg &^= recovery.CopiesFlag
	}
	return data, nil
}

// inputPush processes one data segment. It acknowledges the segment if it lies
// below the end of the window, and keeps it if it is new.
func (k *KCP) inputPush(h *wire.Header, payload []byte, recovered bool) {
	k.counters.SegmentsReceived++
	if k.cfg.trace != nil {
		k.cfg.trace.received(h, payload)
	}
	if !h.SN.Before(k.rcv.nxt+Seq(k.cfg.rcvWnd)) || k.dropsForMemory(h.SN, len(payload)) && !k.arrived(h.SN) ||
		h.Cmd == wire.CmdStream && k.refusesOwn(h, payload) {
		k.counters.OutOfWindow++
		return
	}
	if k.rcv.assembly != nil {
		k.rcv.assembly.Drop(h.SN, &k.rcv.buffers)
	}
	ack := recovery.Ack{SN: h.SN, TS: k.echo(h.TS, recovered)}
	next := h.SN == k.rcv.nxt
	fresh := k.keep(h, payload, ack)
	if !fresh && k.cfg.ext.ThinAcks && k.ackedRecently(h.SN) {
		return
	}
	if k.rcv.peerUnvalidated && len(k.rcv.acks) >= unvalidatedAcks {
		return
	}
	k.rcv.acks = append(k.rcv.acks, ack)
	if k.cfg.ext.ThinAcks {
		k.rcv.ackPolicy.Received(recovery.Arrival{
			Ack: ack, Bytes: len(payload), Fresh: fresh, Next: next,
			Alone: len(k.rcv.acks) == 1, Gap: k.rcv.early > 0,
		}, recovery.AckPath{Now: k.clock.now, Next: k.rcv.nxt, SRTT: uint32(k.snd.rtt.srtt), Wait: k.cfg.ext.AwaitReplies})
	}
}

// keep stores the payload of a PUSH below the end of the window, and reports
// whether the segment is new. ack is its acknowledgement.
func (k *KCP) keep(h *wire.Header, payload []byte, ack recovery.Ack) bool {
	if h.SN.Before(k.rcv.nxt) {
		k.duplicate()
		return false
	}
	abandoned := false
	if h.Cmd == wire.CmdStream {
		if o, ok := streams.DecodeOwn(payload); ok {
			return k.keepOwn(h, &o, ack)
		}
		if abandoned = streams.AbandonsSegment(payload); !abandoned {
			return k.keepStream(h, payload, ack)
		}
		payload = nil
	}
	next := h.SN == k.rcv.nxt && k.rcv.rest == 0 && !abandoned && (k.rcv.early == 0 || !k.rcv.ring.at(h.SN).held)
	if next && !k.receiveFull() {
		if !k.deliverDirect(h.Frg, payload) {
			k.enqueue(h.Frg).data = k.copyOf(payload)
		}
		k.rcv.nxt++
		if k.rare != nil {
			k.rare.own.arrived++
		}
		k.counters.BytesReceived += uint64(len(payload))
		k.deliver()
		return true
	}
	s := k.earlyPlace(h.SN, ack)
	if s == nil {
		k.deliver() // the window may have grown since
		return false
	}
	s.data, s.frg, s.abandoned = k.copyOf(payload), h.Frg, abandoned
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// copyOf returns a copy of the payload of a segment that is kept.
func (k *KCP) copyOf(payload []byte) []byte {
	b := k.rcv.buffers.Get(len(payload))
	copy(b, payload)
	k.rcv.held += cap(b)
	k.rcv.bytes += len(payload)
	return b
}

// earlyPlace takes the place of segment sn, and returns it for the caller to fill in;
// nil if the segment has arrived before. ack is its acknowledgement.
func (k *KCP) earlyPlace(sn Seq, ack recovery.Ack) *recvSegment {
	k.rcv.ring.Reserve(uint32(k.rcv.nxt), int(sn-k.rcv.nxt)+1)
	s := k.rcv.ring.at(sn)
	if s.held {
		k.duplicate()
		return nil
	}
	if k.cfg.ext.RepeatAcks && sn != k.rcv.nxt {
		k.rcv.ackRepeats.Note(ack, k.clock.now)
	}
	s.held, s.lastAcked = true, k.clock.now
	k.rcv.early++
	return s
}

// takePlace takes the place of segment sn, whose data does not wait for the segments
// before it, and reports whether it is new.
func (k *KCP) takePlace(sn Seq, ack recovery.Ack) bool {
	if sn == k.rcv.nxt && (k.rcv.early == 0 || !k.rcv.ring.at(sn).held) {
		k.rcv.nxt++
		return true
	}
	s := k.earlyPlace(sn, ack)
	if s != nil {
		s.stream = true
	}
	return s != nil
}

// duplicate counts a segment that had already arrived.
func (k *KCP) duplicate() {
	k.counters.Duplicates++
	if k.rcv.ackRepeats == nil {
		k.rcv.ackRepeats = new(recovery.Repeater)
	}
	k.rcv.ackRepeats.Duplicate()
}

// deliverDirect copies the segment that is next past the receive queue into the
// buffer of a blocked Read, and reports whether it did. The segment must be a
// whole message, and nothing may be queued before it.
func (k *KCP) deliverDirect(frg uint8, payload []byte) bool {
	if len(payload) > len(k.rcv.readInto) || len(payload) == 0 || k.rcv.queue.n > 0 || frg != 0 {
		return false
	}
	k.rcv.readInto = k.rcv.readInto[copy(k.rcv.readInto, payload):]
	k.rcv.readDirect = true
	return true
}

// echo returns the ts to acknowledge a segment with. For a recovered segment
// that is the ts of the newest packet that arrived by itself. So the peer
// measures the path, not the time that recovery took.
func (k *KCP) echo(ts Seq, recovered bool) Seq {
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
	for k.rcv.early > 0 {
		s := k.rcv.ring.at(k.rcv.nxt)
		if !s.held || !s.stream && k.receiveFull() {
			break
		}
		if !s.stream {
			k.takeOwn(s)
		}
		*s = recvSegment{}
		k.rcv.early--
		k.rcv.nxt++
	}
	if k.rare != nil {
		k.deliverOwn(&k.rare.own)
	}
}

// enqueue appends a segment to the receive queue, which is next in order, and returns
// it for the caller to fill in the data. Fragments of a message count down to 0. A
// fragment that does not continue the count makes the message before it impossible to
// complete. The reference would wait for the rest forever, or deliver a mixture.
func (k *KCP) enqueue(frg uint8) *recvSegment {
	if k.rcv.partial > 0 && frg != k.rcv.queue.at(k.rcv.queue.n-1).frg-1 {
		k.dropIncomplete()
		k.counters.BrokenMessages++
	}
	if frg == 0 {
		k.rcv.partial = 0
	} else {
		k.rcv.partial++
	}
	q := &k.rcv.queue
	if int(q.n) == q.places.Len() {
		q.places.Reserve(q.first, int(q.n)+1)
	}
	q.n++
	s := q.at(q.n - 1)
	s.frg = frg
	return s
}

// dropIncomplete discards the incomplete message at the end of the receive queue.
func (k *KCP) dropIncomplete() {
	for range k.rcv.partial {
		k.release(k.rcv.queue.at(k.rcv.queue.n - 1))
		k.rcv.queue.popLast()
	}
	k.rcv.partial = 0
}

// rcvLimit returns how many segments the receive queue may hold. That is the
// receive window, or the number of fragments of a longer message that stands
// alone in the queue. Only peers that exceed the reference's limit of 127
// fragments send such a message, kcp-go among them.
func (k *KCP) rcvLimit() uint32 {
	if k.rcv.partial > 0 && k.rcv.partial == k.rcv.queue.n && k.rcv.queue.n >= k.cfg.rcvWnd {
		return max(k.cfg.rcvWnd, uint32(k.rcv.queue.at(0).frg)+1)
	}
	return k.cfg.rcvWnd
}

// receiveFull reports whether the receive queue holds as much as it may.
func (k *KCP) receiveFull() bool {
	return k.rcv.queue.n >= k.cfg.rcvWnd && (k.rcv.partial == 0 || k.rcv.queue.n >= k.rcvLimit())
}

// wndUnused returns the window to advertise, in segments. It is at most the share of
// the session, which bounds what is on the way from the peer: segments in the receive
// queue do not count against it, and what exceeds it is taken all the same.
func (k *KCP) wndUnused() uint16 {
	queued, limit := k.rcv.queue.n, k.cfg.rcvWnd
	if k.rcv.partial > 0 {
		limit = k.rcvLimit()
	}
	if queued >= limit || k.rcv.shut {
		return 0
	}
	free := min(limit-queued, wire.MaxWindow)
	if k.rcv.share > 0 {
		free = min(free, k.rcv.share)
	}
	return uint16(free)
}

// MostWindow is how far a receive window grows by itself, in segments.
const MostWindow = 16384

// ReceiveWindow returns the size of the receive window, and how much of it holds segments
// or has a gap before one, in bytes of full segments; and whether it grows no more.
func (k *KCP) ReceiveWindow() (size, used int, largest bool) {
	used = int(k.rcv.queue.n) + int(max(k.rcv.ackPolicy.End.Diff(k.rcv.nxt), 0))
	return int(k.cfg.rcvWnd) * k.cfg.mss, used * k.cfg.mss, k.cfg.rcvWnd >= MostWindow
}

// DoubleWindow doubles the receive window. The peer learns it with the next segment.
func (k *KCP) DoubleWindow() { k.cfg.rcvWnd *= 2 }

// LimitWindow sets the most that is advertised as the receive window, in segments; 0: no
// limit. If shut is set, the window is zero. What the peer sends beyond it is taken as
// before. ACKs that wait leave with the next flush if the window shuts, or if it grows
// and they are of half of the old one: the peer may be waiting for that. With tell the
// next flush tells the peer the window in any case, with ACKs that wait or by itself.
func (k *KCP) LimitWindow(segments uint32, shut, tell bool) {
	old, was := k.rcv.share, k.rcv.shut
	if len(k.rcv.acks) > 0 && (tell || shut != was || old > 0 && old <= 2*uint32(k.rcv.ackPolicy.Segments) && (segments == 0 || segments > old)) {
		k.rcv.ackPolicy.Urgent = true
	} else if tell {
		k.peer.probe |= sendWins
	}
	k.rcv.share, k.rcv.shut = segments, shut
}

// CloseReceive drops what has arrived and takes no more. Segments that were
// acknowledged are acknowledged again when the peer retransmits them.
func (k *KCP) CloseReceive() {
	k.rcv.queue, k.rcv.ring, k.rcv.assembly, k.rcv.buffers = recvQueue{}, recvRing{}, nil, Buffers{}
	k.rcv.ackRepeats = nil
	k.rcv.partial, k.rcv.early, k.cfg.rcvWnd, k.rcv.held, k.rcv.rest = 0, 0, 0, 0, 0
	k.rcv.bytes = 0
	if k.rare != nil {
		k.rare.own.ring, k.rare.own.early = recvRing{}, 0
	}
}
