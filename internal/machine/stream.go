package machine

import (
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// Stream segments (WIRE.md §5.9). They share the sequence numbers of PUSH, and
// so acknowledgements, loss recovery, windows, pacing and FEC, but belong to
// streams of the session. The receiver passes them to the session when they
// arrive, whatever is missing before them, and not in the order of sn. The
// sender gets them from the session just before they leave, so that a message
// of high priority overtakes what waits.
//
// All this is off without a host. The bare state machine does not know of it.

// pieceOfStream is the frg under which the pieces of a stream segment are held. No PUSH
// has it: a message has fewer fragments.
const pieceOfStream = 255

// Host is the session as the machine sees it. What a method may call of
// the machine is said there; see Hooks for OnSignal.
type Host interface {
	// OnSignal takes a signal, and what its segment carries. True means that
	// nothing else in the segment counts.
	OnSignal(s wire.Signal, payload []byte) bool
	// SignalPayload returns the payload of a signal that is sent: it should fit
	// into packets of every size to come. nil: none. It must not change the
	// machine.
	SignalPayload(code wire.Code) []byte
	// OnStream takes the payload of a stream segment, once for each sn. The
	// payload is valid only during the call. It must not change the machine.
	OnStream(payload []byte)
	// TakesStreams reports whether the peer may send stream segments.
	TakesStreams() bool
	// Pull returns the segment that is sent next: its message, and its buffer, from
	// NewBuffer. ok is false if that is one of Send, of which plain says whether some
	// wait, or if there is none. It must not change the machine otherwise.
	Pull(plain bool) (t *streams.Tag, buf []byte, ok bool)
	// StreamsWait returns what waits on streams: Some says whether Pull has a segment.
	StreamsWait() streams.Waiting
	// GivingUp reports what may become of a message of Send that is given up:
	// whether what of it was not sent may be taken out of the queue, and whether
	// the peer takes abandoned segments. It must not change the machine.
	GivingUp() (drop, abandon bool)
	// SegmentAcked is called when a segment of t was acknowledged. It must not
	// change the machine.
	SegmentAcked(t *streams.Tag)
	// AbandonedMessage is called when the lifetime or the retransmissions of t
	// are used up. It must not change the machine.
	AbandonedMessage(t *streams.Tag)
	// AbandonedUpTo returns a message of the stream of t. All up to it are
	// delivered or given up; ok is false if some that precede t are not. It must
	// not change the machine.
	AbandonedUpTo(t *streams.Tag) (mid Seq, ok bool)
	// LimitedBy tells what limits the sending from now on. It changes nothing here.
	LimitedBy(l stats.Limit)
}

// streaming reports whether the host may queue stream segments now. A peer whose
// address is not validated gets none.
func (k *KCP) streaming() bool {
	return k.rare != nil && k.rare.streaming && k.snd.validation == nil
}

// waiting reports whether segments wait to be sent for the first time.
func (k *KCP) waiting() bool {
	return k.snd.queue.n > 0 || k.rare != nil && k.streaming() && k.hooks.Host.StreamsWait().Some
}

// pull puts the segment of the host that is sent next in front of what waits, unless
// that was decided before, and pacing did not let the segment leave.
func (k *KCP) pull() {
	if !k.streaming() {
		return
	}
	head := k.snd.queue.head
	if head != nil && (head.ofStream() || head.chosen) {
		return
	}
	t, buf, ok := k.hooks.Host.Pull(head != nil)
	switch {
	case ok:
		k.QueueStream(t, buf)
	case head != nil:
		head.chosen = true
	}
}

// NewBuffer returns the buffer of a stream segment with a payload of n bytes, which
// are its last, at most what fits into a packet of PacketSize.
func (k *KCP) NewBuffer(n int) []byte { return k.out.buffers.Get(int(k.hooks.Headroom) + n) }

// SegmentBuffers returns the pool of the buffers that NewBuffer returns.
func (k *KCP) SegmentBuffers() *Buffers { return &k.out.buffers }

// QueueStream queues a segment of t in front of all that wait. buf is from NewBuffer.
func (k *KCP) QueueStream(t *streams.Tag, buf []byte) {
	s := k.out.buffers.New()
	s.buf = buf
	s.data = buf[k.hooks.Headroom:]
	n := len(s.data)
	k.out.held += s.grains()
	s.tag, s.streamed = t, true
	t.InFlight++
	k.snd.queue.pushFront(s)
	k.snd.bytes += n
	k.rare.streamBytes += n
	k.rare.streamSegments++
}

// dropTag records that s, a segment with a tag, is released.
func (k *KCP) dropTag(s *Segment) {
	t := s.tag
	s.tag = nil
	t.InFlight--
	if !t.OfSession {
		k.rare.streamBytes -= len(s.data)
		k.rare.streamSegments--
	}
	k.hooks.Host.SegmentAcked(t)
}

// abandonIfSpent gives up the message of s, which is about to be transmitted for
// the xmit-th time, if its lifetime or its retransmissions are used up.
func (k *KCP) abandonIfSpent(s *Segment, xmit uint32) {
	t := s.tag
	if t.Abandoned || !t.Spent(k.clock.micros, xmit) {
		return
	}
	if t.OfSession {
		if _, abandon := k.hooks.Host.GivingUp(); !abandon {
			return
		}
	}
	t.Abandoned = true
	k.hooks.Host.AbandonedMessage(t)
}

// putAbandoned puts s into a packet without its content, so that neither its sn
// nor its message leaves a gap. It also tells up to which message all are given
// up that have not arrived (compare FORWARD TSN, RFC 3758 §3.2): the first such
// segment that arrives lets an ordered stream go on.
func (k *KCP) putAbandoned(s *Segment, h *wire.Header) {
	var room [streams.MaxHeader]byte
	payload := room[:0]
	switch {
	case s.numbered:
		h.Frg = 0
		payload = streams.AppendAbandonOwn(payload, s.data)
	case s.ofStream():
		last, ok := k.hooks.Host.AbandonedUpTo(s.tag)
		payload = streams.AppendAbandon(payload, s.data, last, ok)
	default:
		payload = (&streams.Header{Kind: streams.Abandon}).Append(payload) // of stream 0
	}
	b := k.reserve(wire.HeaderSize+len(payload), k.maxPacketOf(s))
	h.Cmd, h.Len = wire.CmdStream, uint32(len(payload))
	h.Encode(b)
	copy(b[wire.HeaderSize:], payload)
	k.packed(s)
}

// inputStream processes one stream segment.
func (k *KCP) inputStream(h *wire.Header, payload []byte, recovered bool) {
	if k.rcv.peerUnvalidated {
		k.counters.SegmentsReceived++
		k.counters.OutOfWindow++
		return
	}
	k.rareMachine() // counts the segments of the session itself from now on
	k.inputPush(h, payload, recovered)
}

// inputWhole processes a segment that has arrived in pieces.
func (k *KCP) inputWhole(h *wire.Header, payload []byte, recovered bool) {
	if h.Cmd == wire.CmdStream {
		k.inputStream(h, payload, recovered)
		return
	}
	k.inputPush(h, payload, recovered)
}

// keepStream passes the payload of a new stream segment to the host. Its place
// is kept until all before it has arrived.
func (k *KCP) keepStream(h *wire.Header, payload []byte, ack recovery.Ack) bool {
	if !k.takePlace(h.SN, ack) {
		return false
	}
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	k.hooks.Host.OnStream(payload)
	return true
}
