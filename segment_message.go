package kcp

import "github.com/arqnet/kcp/internal/streams"

// Messages of the session itself that may be given up (partial reliability, RFC
// 3758; WIRE.md §5.9). Their segments are PUSH, and keep their order. One that
// was given up after its segment had left is sent again without content, as the
// ABANDON of stream 0, with the same sn and frg. What was not sent is taken out
// of the queue.
//
// All this is off without a host. The bare state machine does not know of it.

// ofStream reports whether s is a segment of a stream.
func (s *sendSegment) ofStream() bool { return s.tag != nil && !s.tag.OfSession }

// sendMessage is Send for a message, all segments of which get the tag t. The
// machine is in message mode.
func (k *KCP) sendMessage(p []byte, t *streams.Tag) error {
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

// segmentsGivenUp returns how many segments of Send are waiting or in flight of which the
// message is given up.
func (k *KCP) segmentsGivenUp() (n int) {
	count := func(s *sendSegment) {
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
	drop, abandon := k.hooks.host.givingUp()
	return abandon || drop && !t.Begun
}

// dropSpent gives up the message that waits first, if its lifetime is over, and
// takes what of it was not sent out of the queue. If something of it was sent, one
// segment stays, without content and as the last of the message: the receiver
// would take what follows for the rest of it. dropSpent reports whether it has
// taken something out.
func (k *KCP) dropSpent() bool {
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
		k.hooks.host.abandonedMessage(t)
	}
	if drop, _ := k.hooks.host.givingUp(); !drop {
		return false // its segments leave without content
	}
	first := head
	if t.Begun {
		first = head.order.next
		left := 0
		if head.numbered {
			left = ownHeader
			putOwnHeader(head.data, 0)
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
