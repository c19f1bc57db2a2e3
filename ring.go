package kcp

// The containers of the state machine. Both directions keep their segments in
// a power-of-two ring indexed by sequence number, so that finding, adding and
// removing a segment costs the same at every window size, and waiting and
// in-flight segments need no second queue: they are ranges of one ring.

// sendSegment is a segment on its way out: waiting for the window or in flight.
type sendSegment struct {
	buf          []byte // room for headers, then data
	data         []byte
	sn           seq
	ts           seq    // last transmission
	resendTS     seq    // retransmission time-out
	rto          uint32 // of this segment, with its own back-off
	xmit         uint32 // transmissions so far
	fastack      uint32 // later transmissions acknowledged since the last one
	frg          uint8
	fastDue      bool  // this flush fast-retransmits it
	early        bool  // resendTS is not a time-out but that of an early repair
	repaired     bool  // it was last sent again before its time-out
	beingWritten bool  // buf is in the hands of KCP.outputInPlace's function
	orphaned     bool  // and is of no more use here
	repeats      uint8 // since the last retransmission; see redundancy.go
	repeated     seq   // the last of them

	tx     sendRecord // of the last transmission
	lostAt int64      // when the one before had left, if it is taken for lost
	packet int32      // how far into its packet s reaches; see noteReach

	group *timeoutGroup // group of equal resendTS, see rto.go
	timer link          // in group
	order link          // in list, which is one of lossDetector's
	list  *segmentList
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

// sendRing holds the segments from snd_una on. A slot is nil where the segment
// has been acknowledged.
type sendRing struct {
	slots []*sendSegment
}

const minRing = 8

// at returns the segment sn, or nil if the ring does not hold it.
func (r *sendRing) at(sn seq) *sendSegment {
	if len(r.slots) == 0 {
		return nil
	}
	return r.slots[int(sn)&(len(r.slots)-1)]
}

func (r *sendRing) set(sn seq, s *sendSegment) { r.slots[int(sn)&(len(r.slots)-1)] = s }

// reserve makes room for n segments from first on, keeping the held ones.
func (r *sendRing) reserve(first seq, n int) {
	if n <= len(r.slots) {
		return
	}
	old := r.slots
	r.slots = make([]*sendSegment, ringSize(n))
	for i := range old {
		sn := first + seq(i)
		r.set(sn, old[int(sn)&(len(old)-1)])
	}
}

// recvSegment is a segment that has arrived and was not yet read.
type recvSegment struct {
	data      []byte
	read      int // bytes at the front that are consumed
	lastAcked seq // when it was acknowledged, where it came early
	frg       uint8
	held      bool
	void      bool // of a message that cannot become whole: only its place is left
}

// recvRing holds the segments that have arrived: those in order, waiting to be
// read, and beyond rcv_nxt those that came early.
type recvRing struct {
	slots []recvSegment
}

func (r *recvRing) at(sn seq) *recvSegment { return &r.slots[int(sn)&(len(r.slots)-1)] }

// reserve makes room for n segments from first on, keeping the held ones.
func (r *recvRing) reserve(first seq, n int) {
	if n <= len(r.slots) {
		return
	}
	old := r.slots
	r.slots = make([]recvSegment, ringSize(n))
	for i := range old {
		sn := first + seq(i)
		*r.at(sn) = old[int(sn)&(len(old)-1)]
	}
}

// ringSize returns the power of two that holds n slots.
func ringSize(n int) int {
	size := minRing
	for size < n {
		size *= 2
	}
	return size
}
