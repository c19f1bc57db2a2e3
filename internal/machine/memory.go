package machine

import (
	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// Accounting for the memory held because of the peer. What a peer sends is
// small compared with what must be kept for it: a place in the ring, a buffer
// of some size class, an acknowledgement to be sent. All of it is counted, in
// bytes as allocated, and limits are compared with that count.

const (
	// placeBytes is the size of a place of the receive queue, or of the ring.
	placeBytes = 40
	// ackBytesHeld and SignalBytesHeld are the sizes of a waiting acknowledgement, and of
	// a waiting signal.
	ackBytesHeld    = 8
	SignalBytesHeld = 12

	// UnvalidatedBytes bounds what is held for a peer whose address is not
	// validated (RFC 9000 §8). legacyBytes is the bound once the session has
	// been offered to Accept. It is larger because the application may never
	// send anything that validates the address, and must be able to read the
	// longest message of the reference.
	UnvalidatedBytes = reservedBytes
	legacyBytes      = 256 << 10
	// unvalidatedAcks bounds the acknowledgements that wait for such a peer.
	unvalidatedAcks = 256
	// unvalidatedReach is how far ahead of rcv_nxt, in segments, such a peer's
	// data is kept. Other peers of sessions may send sessionReach segments
	// ahead, or reachGrowth times the number held if that is more. The ring
	// needs a place for every segment that is missing before a kept one.
	unvalidatedReach = 64
	sessionReach     = 4096
	reachGrowth      = 16
)

// Held returns the bytes of memory held because of what the peer has sent: data not yet
// read, places of missing segments, pieces, waiting acknowledgements, and buffers kept
// for reuse, which Compact releases.
func (k *KCP) Held() int {
	n := k.rcv.held + k.rcv.buffers.Held()
	if k.rcv.assembly != nil {
		n += k.rcv.assembly.Bytes()
	}
	if r := k.rcv.ackRepeats; r != nil {
		n += r.Memory()
	}
	if k.rare != nil {
		n += k.rare.own.ring.Len() * placeBytes
	}
	return n + (k.rcv.queue.places.Len()+k.rcv.ring.Len())*placeBytes + cap(k.rcv.acks)*ackBytesHeld +
		cap(k.signals)*SignalBytesHeld
}

// costOf returns the bytes of memory needed, beyond what is allocated already,
// to hold n bytes as segment sn.
func (k *KCP) costOf(sn Seq, n int) int {
	cost := 0
	if n > 0 {
		cost = container.BufferSize(n)
	}
	places, have := int(sn-k.rcv.nxt)+1, k.rcv.ring.Len()
	if sn == k.rcv.nxt && !k.receiveFull() {
		places, have = int(k.rcv.queue.n)+1, k.rcv.queue.places.Len()
	}
	if places > have {
		cost += (container.RingSize(places) - have) * placeBytes
	}
	return cost
}

// Pressure says how strictly new data is dropped to save memory. Under
// any pressure only the next segment in order is taken.
type Pressure uint8

const (
	// PressureNone drops nothing.
	PressureNone Pressure = iota
	// PressureHigh takes that only while nothing can be read, or less than
	// reservedBytes is held.
	PressureHigh
	// PressureReserved takes that only while less than reservedBytes is held:
	// no application reads it yet.
	PressureReserved
)

// reservedBytes is how many bytes a session may hold under memory pressure.
const reservedBytes = 16 << 10

// dropsForMemory reports whether segment sn, of n bytes, is dropped if it is
// new. It is if it lies too far ahead, if the peer's address is not validated
// and the limits for that are reached, or under memory pressure. sn lies in the
// receive window or before it.
func (k *KCP) dropsForMemory(sn Seq, n int) bool {
	ahead := uint32(sn - k.rcv.nxt)
	if k.hooks.Frugal && ahead > max(sessionReach, reachGrowth*(k.rcv.queue.n+k.rcv.early)) {
		return true
	}
	if k.rcv.peerUnvalidated {
		limit, needed := UnvalidatedBytes, false
		if k.rcv.pressure != PressureReserved {
			// A message that cannot be completed would never be read.
			limit, needed = k.legacyLimit(), sn == k.rcv.nxt && k.rcv.queue.n == k.rcv.partial
		}
		if ahead > unvalidatedReach || !needed && k.Held()+k.costOf(sn, n) > limit {
			return true
		}
	}
	return k.shortOfMemory(sn)
}

// legacyLimit returns the bytes that may be held for a peer whose address is
// not validated once the session has been offered to Accept. The limit grows
// with what the peer sends.
func (k *KCP) legacyLimit() int {
	if k.snd.validation == nil {
		return legacyBytes
	}
	return min(legacyBytes, UnvalidatedBytes+2*k.snd.validation.Total())
}

// shortOfMemory reports whether segment sn is dropped because of memory
// pressure. The next in-order segment is still accepted while the application
// has nothing complete to read, or has little buffered, so the session cannot
// stall. Under PressureReserved only the latter counts.
func (k *KCP) shortOfMemory(sn Seq) bool {
	if k.rcv.pressure == PressureNone {
		return false
	}
	readable := k.rcv.queue.n > k.rcv.partial || k.rcv.pressure == PressureReserved
	held := k.rcv.held
	if k.rcv.assembly != nil {
		held += k.rcv.assembly.Bytes()
	}
	return sn != k.rcv.nxt || readable && held >= reservedBytes
}

// The containers of the state machine, with the four that the reference has. What waits
// to be sent is a list (snd_queue), and what waits to be read a queue (rcv_queue). What
// is in flight (snd_buf), and what has arrived early (rcv_buf), is in a ring indexed by
// sequence number, so that finding, adding and removing a segment costs the same at
// every window size.

// Segment is a segment to be sent or in flight.
type Segment struct {
	buf          []byte // headroom, then data
	data         []byte // payload
	sn           Seq    // once it is in flight
	ts           Seq    // last transmission
	resendTS     Seq    // when the retransmission time-out expires
	rto          uint32 // milliseconds, with this segment's own back-off
	xmit         uint32 // transmissions so far
	fastack      uint32 // acknowledgements of segments sent after its last transmission
	frg          uint8
	fastDue      bool            // its next transmission is a fast retransmission (RFC 5681 §3.2)
	early        bool            // resendTS is the time of a fast retransmission, not a time-out
	repaired     bool            // its last retransmission was before its time-out
	beingWritten bool            // OutputInPlace has buf
	orphaned     bool            // and the segment is of no more use; see ReleaseSegment
	cause        trace.LossCause // of the last loss, or of the one that early announces
	repeats      uint8           // redundant copies since the last transmission; see flushRedundant
	repeated     Seq             // when the last of them was sent
	closed       bool            // takes no more data
	streamed     bool            // travels as a STREAM segment
	numbered     bool            // and is of the session itself, with an SSN
	chosen       bool            // waits, and the host has nothing that leaves before it

	tx     recovery.Transmission // of the last transmission
	lostAt int64                 // when the one before it left, in microseconds; 0: not lost
	tag    *streams.Tag          // of a stream segment, or a message that may be given up; nil: neither
	packet int32                 // bytes of the largest packet of its last transmission, so far
	least  int32                 // the least that packet was at a transmission before; 0: none

	group *timeoutGroup // of equal resendTS, see rto.go; nil: no timer runs
	timer link          // in group
	order link          // in list
	list  *segmentList  // Sender.queue, one of lossDetector's, or nil
}

// size returns the bytes of s on the wire.
func (s *Segment) size() int { return wire.HeaderSize + len(s.data) }

// link chains a segment into an intrusive list.
type link struct{ prev, next *Segment }

// segmentList is a list of segments chained by their order link.
type segmentList struct {
	head, tail *Segment
	n          int
}

// pushOrder appends s to l by its order link.
func (l *segmentList) pushOrder(s *Segment) {
	l.n++
	s.list = l
	s.order = link{prev: l.tail}
	if l.tail == nil {
		l.head = s
	} else {
		l.tail.order.next = s
	}
	l.tail = s
}

// pushFront puts s at the head of l by its order link.
func (l *segmentList) pushFront(s *Segment) {
	l.n++
	s.list = l
	s.order = link{next: l.head}
	if l.head == nil {
		l.tail = s
	} else {
		l.head.order.prev = s
	}
	l.head = s
}

// unlinkOrder takes s out of the list its order link chains it into, if any.
func (s *Segment) unlinkOrder() {
	l := s.list
	if l == nil {
		return
	}
	l.n--
	if s.order.prev == nil {
		l.head = s.order.next
	} else {
		s.order.prev.order.next = s.order.next
	}
	if s.order.next == nil {
		l.tail = s.order.prev
	} else {
		s.order.next.order.prev = s.order.prev
	}
	s.order, s.list = link{}, nil
}

// sendRing holds the segments in flight, from snd_una on. The slot of an acknowledged
// segment is nil.
type sendRing struct{ container.Ring[*Segment] }

// at returns the segment sn, or nil if the ring does not hold it.
func (r *sendRing) at(sn Seq) *Segment {
	if r.Len() == 0 {
		return nil
	}
	return *r.At(uint32(sn))
}

// Buffers are the spare payload buffers and segments of one direction.
type Buffers = container.Pool[Segment]

// recycle takes back s and its buffer. If the buffer is still being written
// (Hooks.OutputInPlace), s is only marked, and ReleaseSegment recycles it.
func (o *packetBuilder) recycle(s *Segment) {
	if s.beingWritten {
		s.orphaned = true
		return
	}
	o.held -= s.grains()
	o.buffers.Put(s.buf)
	o.buffers.Free(s)
}

// sendSegmentBytes is what a segment of the send side takes in memory beside its buffer,
// with its time-out. memoryGrain is the unit of the account: of that are all buffers.
const (
	sendSegmentBytes = 2 * memoryGrain
	memoryGrain      = 128
)

// grains returns the memory of s and its buffer, in grains.
func (s *Segment) grains() uint32 { return uint32(cap(s.buf)+sendSegmentBytes) / memoryGrain }

const (
	// sendPlaceBytes is the size of a place of the send ring.
	sendPlaceBytes = 8
	// trimAfter is after how many milliseconds spare buffers are released that were not
	// needed meanwhile.
	trimAfter = 1000
)

// recvSegment is a segment that has arrived and was not yet read.
type recvSegment struct {
	data      []byte
	read      int // bytes at the front that were read
	lastAcked Seq // when it was last acknowledged; of early segments
	frg       uint8
	held      bool // the place of an early segment is taken
	abandoned bool // without its content; of early segments
	stream    bool // of a stream, and passed to the host; of early segments
}

// recvRing holds early segments: from rcv_nxt on, or by SSN.
type recvRing struct{ container.Ring[recvSegment] }

func (r *recvRing) at(sn Seq) *recvSegment { return r.At(uint32(sn)) }

// recvQueue holds the segments that have arrived in order and wait to be read.
type recvQueue struct {
	places container.Ring[recvSegment]
	first  uint32 // place of the first
	n      uint32
}

// at returns the segment that i others precede.
func (q *recvQueue) at(i uint32) *recvSegment { return q.places.At(q.first + i) }

// popLast removes the last segment.
func (q *recvQueue) popLast() {
	q.n--
	*q.at(q.n) = recvSegment{}
}
