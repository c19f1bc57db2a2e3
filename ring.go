package kcp

import (
	"github.com/arqnet/kcp/internal/bufpool"
	"github.com/arqnet/kcp/internal/deliveryrate"
	"github.com/arqnet/kcp/internal/ring"
	"github.com/arqnet/kcp/internal/streams"
)

// The containers of the state machine, with the four that the reference has. What waits
// to be sent is a list (snd_queue), and what waits to be read a queue (rcv_queue). What
// is in flight (snd_buf), and what has arrived early (rcv_buf), is in a ring indexed by
// sequence number, so that finding, adding and removing a segment costs the same at
// every window size.

// sendSegment is a segment to be sent or in flight.
type sendSegment struct {
	buf          []byte // headroom, then data
	data         []byte // payload
	sn           seq    // once it is in flight
	ts           seq    // last transmission
	resendTS     seq    // when the retransmission time-out expires
	rto          uint32 // milliseconds, with this segment's own back-off
	xmit         uint32 // transmissions so far
	fastack      uint32 // acknowledgements of segments sent after its last transmission
	frg          uint8
	fastDue      bool      // its next transmission is a fast retransmission (RFC 5681 §3.2)
	early        bool      // resendTS is the time of a fast retransmission, not a time-out
	repaired     bool      // its last retransmission was before its time-out
	beingWritten bool      // outputInPlace has buf
	orphaned     bool      // and the segment is of no more use; see releaseSegment
	cause        LossCause // of the last loss, or of the one that early announces
	repeats      uint8     // redundant copies since the last transmission; see redundancy.go
	repeated     seq       // when the last of them was sent
	closed       bool      // takes no more data
	streamed     bool      // travels as a STREAM segment
	numbered     bool      // and is of the session itself, with an SSN
	chosen       bool      // waits, and the host has nothing that leaves before it

	tx     deliveryrate.Record // of the last transmission
	lostAt int64               // when the one before it left, in microseconds; 0: not lost
	tag    *streams.Tag        // of a stream segment, or a message that may be given up; nil: neither
	packet int32               // bytes of the largest packet of its last transmission, so far
	least  int32               // the least that packet was at a transmission before; 0: none

	group *timeoutGroup // of equal resendTS, see rto.go; nil: no timer runs
	timer link          // in group
	order link          // in list
	list  *segmentList  // sender.queue, one of lossDetector's, or nil
}

// size returns the bytes of s on the wire.
func (s *sendSegment) size() int { return headerSize + len(s.data) }

// link chains a segment into an intrusive list.
type link struct{ prev, next *sendSegment }

// segmentList is a list of segments chained by their order link.
type segmentList struct {
	head, tail *sendSegment
	n          int
}

// pushOrder appends s to l by its order link.
func (l *segmentList) pushOrder(s *sendSegment) {
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
func (l *segmentList) pushFront(s *sendSegment) {
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
func (s *sendSegment) unlinkOrder() {
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
type sendRing struct{ ring.Ring[*sendSegment] }

// at returns the segment sn, or nil if the ring does not hold it.
func (r *sendRing) at(sn seq) *sendSegment {
	if r.Len() == 0 {
		return nil
	}
	return *r.At(uint32(sn))
}

// buffers are the spare payload buffers and segments of one direction.
type buffers = bufpool.Pool[sendSegment]

// recycle takes back s and its buffer. If the buffer is still being written
// (hooks.outputInPlace), s is only marked, and releaseSegment recycles it.
func (o *packetBuilder) recycle(s *sendSegment) {
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
func (s *sendSegment) grains() uint32 { return uint32(cap(s.buf)+sendSegmentBytes) / memoryGrain }

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
	lastAcked seq // when it was last acknowledged; of early segments
	frg       uint8
	held      bool // the place of an early segment is taken
	abandoned bool // without its content; of early segments
	stream    bool // of a stream, and passed to the host; of early segments
}

// recvRing holds early segments: from rcv_nxt on, or by SSN.
type recvRing struct{ ring.Ring[recvSegment] }

func (r *recvRing) at(sn seq) *recvSegment { return r.At(uint32(sn)) }

// recvQueue holds the segments that have arrived in order and wait to be read.
type recvQueue struct {
	places ring.Ring[recvSegment]
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
