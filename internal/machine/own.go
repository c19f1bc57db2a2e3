package machine

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
)

// Segments of the session itself beside streams (WIRE.md §5.9). PUSH is in order among
// all sequence numbers, so it waits for lost segments of streams. Between two ends that
// have streams, Send queues DATA of stream 0 in place of PUSH. It has a stream sequence
// number (SSN, RFC 9260 §3.3.1), which counts the segments of the session itself. PUSH
// counts too, so the first SSN shows how many PUSH precede it.

// ownFlow is the order of the segments of the session itself.
type ownFlow struct {
	numbers bool     // Send queues segments with an SSN
	next    Seq      // SSN of the next segment that enters the window
	arrived Seq      // of the next that enters the receive queue
	ring    recvRing // early ones, by SSN
	early   uint32   // their number
}

// numbers reports whether Send queues segments with an SSN. A peer whose address is not
// validated gets none. k.rare is not nil.
func (k *KCP) numbers() bool { return k.rare.own.numbers && k.snd.validation == nil }

// enterOwn counts s, a segment of the session itself that enters the window.
func (k *KCP) enterOwn(s *Segment) {
	o := &k.rare.own
	if s.numbered {
		binary.LittleEndian.PutUint32(s.data[5:], uint32(o.next))
	}
	o.next++
}

// refusesOwn reports whether a new segment with an SSN lies beyond the receive window,
// in which the peer can have only as many that wait for others.
func (k *KCP) refusesOwn(h *wire.Header, payload []byte) bool {
	o, ok := streams.DecodeOwn(payload)
	return ok && !k.arrived(h.SN) && !o.SSN.Within(k.rare.own.arrived, k.rare.own.arrived+Seq(k.cfg.rcvWnd))
}

// keepOwn is keep for a segment with an SSN, which refusesOwn lets pass. Its sn waits for
// nothing; its data waits for the segments of the session itself before it.
func (k *KCP) keepOwn(h *wire.Header, o *streams.Own, ack recovery.Ack) bool {
	if !k.takePlace(h.SN, ack) {
		return false
	}
	f := &k.rare.own
	k.counters.BytesReceived += uint64(len(o.Data))
	if o.SSN == f.arrived && f.early == 0 && !o.Abandoned && k.rcv.rest == 0 && !k.receiveFull() {
		if !k.deliverDirect(o.Frg, o.Data) {
			k.enqueue(o.Frg).data = k.copyOf(o.Data)
		}
		f.arrived++
		k.deliver()
		return true
	}
	f.ring.Reserve(uint32(f.arrived), int(o.SSN-f.arrived)+1)
	s := f.ring.at(o.SSN)
	if s.held { // the peer has given two segments one number
		k.counters.BrokenMessages++
	} else {
		*s = recvSegment{data: k.copyOf(o.Data), frg: o.Frg, held: true, abandoned: o.Abandoned}
		f.early++
	}
	k.deliver()
	return true
}

// deliverOwn moves early segments with an SSN that are next to the receive queue, as far
// as it has room.
func (k *KCP) deliverOwn(f *ownFlow) {
	for f.early > 0 && !k.receiveFull() {
		s := f.ring.at(f.arrived)
		if !s.held {
			return
		}
		k.takeOwn(s)
		*s = recvSegment{}
		f.early--
	}
}

// takeOwn moves s, the next segment of the session itself, to the receive queue, unless
// it was abandoned.
func (k *KCP) takeOwn(s *recvSegment) {
	if !(s.abandoned || k.rcv.rest > 0) || !k.skipAbandoned(s) {
		*k.enqueue(s.frg) = *s
	}
	if k.rare != nil {
		k.rare.own.arrived++
	}
}

// Messages of the session itself that may be given up (partial reliability, RFC
// 3758; WIRE.md §5.9). Their segments are PUSH, and keep their order. One that
// was given up after its segment had left is sent again without content, as the
// ABANDON of stream 0, with the same sn and frg. What was not sent is taken out
// of the queue.
//
// All this is off without a host. The bare state machine does not know of it.

// ofStream reports whether s is a segment of a stream.
func (s *Segment) ofStream() bool { return s.tag != nil && !s.tag.OfSession }

// SendMessage is Send for a message, all segments of which get the tag t. The
// machine is in message mode.
func (k *KCP) SendMessage(p []byte, t *streams.Tag) error {
	waited := k.snd.queue.n
	if _, err := k.Send(p); err != nil {
		return err
	}
	t.OfSession = true
	s := k.snd.queue.tail
	for range k.snd.queue.n - waited {
		s.tag = t
		t.InFlight++
		s = s.order.prev
	}
	return nil
}

// SegmentsGivenUp returns how many segments of Send are waiting or in flight of which the
// message is given up.
func (k *KCP) SegmentsGivenUp() (n int) {
	count := func(s *Segment) {
		if s != nil && s.tag != nil && s.tag.OfSession && k.givenUp(s.tag) {
			n++
		}
	}
	for sn := k.snd.una; sn != k.snd.nxt; sn++ {
		count(k.snd.ring.at(sn))
	}
	for s := k.snd.queue.head; s != nil; s = s.order.next {
		count(s)
	}
	return n
}

// givenUp reports whether the message of t, which is one of Send, is given up, or
// would be as soon as one of its segments could leave.
func (k *KCP) givenUp(t *streams.Tag) bool {
	if t.Abandoned || !t.Spent(k.clock.micros, 0) {
		return t.Abandoned
	}
	drop, abandon := k.hooks.Host.GivingUp()
	return abandon || drop && !t.Begun
}

// DropSpent gives up the message that waits first, if its lifetime is over, and
// takes what of it was not sent out of the queue. If something of it was sent, one
// segment stays, without content and as the last of the message: the receiver
// would take what follows for the rest of it. DropSpent reports whether it has
// taken something out.
func (k *KCP) DropSpent() bool {
	head := k.snd.queue.head
	if head == nil {
		return false
	}
	t := head.tag
	if t == nil || !t.OfSession || !k.givenUp(t) {
		return false
	}
	if !t.Abandoned {
		t.Abandoned = true
		k.hooks.Host.AbandonedMessage(t)
	}
	if drop, _ := k.hooks.Host.GivingUp(); !drop {
		return false // its segments leave without content
	}
	first := head
	if t.Begun {
		first = head.order.next
		left := 0
		if head.numbered {
			left = streams.OwnHeader
			streams.PutOwnHeader(head.data, 0)
		}
		k.snd.bytes -= len(head.data) - left
		head.frg, head.data = 0, head.data[:left]
	}
	dropped := false
	for s := first; s != nil && s.tag == t; dropped = true {
		next := s.order.next
		s.tag = nil
		t.InFlight--
		k.dropWaiting(s)
		s = next
	}
	return dropped
}

// skipAbandoned drops s, the next segment, if it was abandoned, or if it
// continues a message of which such a segment was the last to arrive in order. With
// the first it drops what has arrived of the message before. It reports false if s
// is neither.
func (k *KCP) skipAbandoned(s *recvSegment) bool {
	if !s.abandoned && (k.rcv.rest == 0 || s.frg != k.rcv.rest-1) {
		k.rcv.rest = 0
		return false
	}
	k.rcv.rest = s.frg
	k.dropIncomplete()
	k.release(s)
	return true
}
