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
	first := k.snd.end
	if _, err := k.Send(p); err != nil {
		return err
	}
	t.OfSession = true
	for sn := first; sn != k.snd.end; sn++ {
		k.snd.ring.at(k.place(sn)).tag = t
		t.InFlight++
	}
	return nil
}

// messages calls f with the tag of each segment of Send that is waiting or in
// flight and has one.
func (k *KCP) messages(f func(t *streams.Tag)) {
	for sn := k.snd.una; sn != k.snd.end; sn++ {
		at := sn
		if !sn.Within(k.snd.una, k.snd.nxt) {
			at = k.place(sn)
		}
		if s := k.snd.ring.at(at); s != nil && s.tag != nil && s.tag.OfSession {
			f(s.tag)
		}
	}
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
	if k.snd.nxt == k.snd.end {
		return false
	}
	head := k.snd.ring.at(k.place(k.snd.nxt))
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
	first := k.snd.nxt
	if t.Begun {
		first++
		k.snd.bytes -= len(head.data)
		head.frg, head.data = 0, head.data[:0]
	}
	n := k.takeOut(first, t)
	if t.Begun && n > 0 {
		at := k.place(k.snd.nxt)
		k.snd.ring.set(at-n, nil)
		k.snd.ring.set(at, head)
	}
	k.closeGap()
	return n > 0
}

// takeOut takes the segments of t out of the queue that stand there from first on,
// and returns their number. What waits before first is left where it is.
func (k *KCP) takeOut(first seq, t *streams.Tag) (n seq) {
	for sn := first; sn != k.snd.end; sn++ {
		at := k.place(sn)
		s := k.snd.ring.at(at)
		if s.tag != t {
			break
		}
		k.snd.ring.set(at, nil)
		k.snd.bytes -= len(s.data)
		s.tag = nil
		t.InFlight--
		k.out.recycle(s)
		n++
	}
	k.rareMachine().gap += n
	k.snd.end -= n
	return n
}

// closeGap moves what waits to its place once the gap in front of it is much
// longer than it. So the ring remains as long as what it holds, and the work is
// constant on average.
func (k *KCP) closeGap() {
	waiting := k.snd.end - k.snd.nxt
	if k.rare == nil || k.rare.gap < 2*max(waiting, minGap) && waiting > 0 {
		return
	}
	for sn := k.snd.nxt; sn != k.snd.end; sn++ {
		k.snd.ring.set(sn, k.snd.ring.at(k.place(sn)))
		k.snd.ring.set(k.place(sn), nil)
	}
	k.dropGap()
}

// skipAbandoned drops s, the early segment rcv_nxt, if it was abandoned, or if it
// continues a message of which such a segment was the last to arrive in order. With
// the first it drops what has arrived of the message before. It reports false if s
// is neither.
func (k *KCP) skipAbandoned(s *recvSegment) bool {
	if !s.void && (k.rcv.rest == 0 || s.frg != k.rcv.rest-1) {
		k.rcv.rest = 0
		return false
	}
	k.rcv.rest = s.frg
	k.dropIncomplete()
	k.rcv.held -= cap(s.data)
	k.rcv.bytes -= len(s.data) - s.read
	k.rcv.buffers.Put(s.data)
	k.skipStream()
	return true
}
