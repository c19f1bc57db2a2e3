package machine

import (
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
)

// Sender is the sending side: what is in flight, in [una, nxt), and what waits.
type Sender struct {
	una      Seq         // snd_una
	nxt      Seq         // snd_nxt
	inFlight int         // segments in [una, nxt) that are not acknowledged
	bytes    int         // payload held in ring and queue
	ring     sendRing    // what is in flight
	queue    segmentList // what waits to be sent for the first time

	flightBytes int64 // of inFlight, headers included
	rtt         rttEstimator
	timeouts    timeouts
	loss        lossDetector
	recovery    recovery.State
	rate        recovery.RateSampler
	pace        recovery.Pacer
	cc          congestion.Control
	ccState     *congestion.State // nil until first needed
	redundancy  recovery.CopyPolicy
	blackHole   netpath.BlackHole
	lastAlive   transmission // oldest in flight at the last good packet

	validation *netpath.AmplificationLimit // nil: the peer's address is validated
}

// Sender returns the sending side.
func (k *KCP) Sender() *Sender { return &k.snd }

// RTO returns the retransmission time-out in milliseconds.
func (d *Sender) RTO() uint32 { return d.rtt.rto }

// SeedRTT takes a round-trip time in milliseconds that no data has shown, if it is the
// first. Only with Extensions.StrictRTT samples are weighed.
func (k *KCP) SeedRTT(rtt uint32) {
	if e := &k.snd.rtt; e.srtt == 0 && k.cfg.ext.StrictRTT {
		e.sampleWeighed(int32(min(rtt, MaxRTO)), 0, 0, 0, k.cfg.interval)
	}
}

// HoldTimeouts sets whether time-outs that have come wait, and NextFlush leaves them
// out.
func (d *Sender) HoldTimeouts(on bool) { d.loss.held = on }

// oldest returns the first segment in flight; nil if there is none.
func (d *Sender) oldest() *Segment {
	if d.una == d.nxt {
		return nil
	}
	return d.ring.at(d.una)
}

// Flying returns the bytes in flight, headers included.
func (d *Sender) Flying() int { return int(d.flightBytes) }

// SilentTransmissions returns how often the oldest segment in flight was sent
// since the last good packet from the peer.
func (d *Sender) SilentTransmissions() int {
	s := d.oldest()
	if s == nil {
		return 0
	}
	if s.sn == d.lastAlive.sn {
		return int(s.xmit - d.lastAlive.xmit)
	}
	return int(s.xmit)
}

// Send queues a copy of p and returns how many bytes of it were taken. In message mode p
// is one message, which may be empty and is split into at most 127 fragments; a longer
// one is refused whole with ErrMessageTooLarge. In stream mode, p first fills up the last
// waiting segment. If the rest needs more than 127 segments, none of it is taken:
// n < len(p) and err is nil, or ErrMessageTooLarge if there was nothing to fill up. A
// program that sends a longer stream passes pieces (docs/recipes.md).
func (k *KCP) Send(p []byte) (n int, err error) {
	if k.cfg.stream {
		if k.snd.queue.n > 0 {
			n = k.extendTail(p)
		}
		if p = p[n:]; len(p) == 0 {
			return n, nil
		}
	}
	mss, head := k.cfg.mss, 0
	if k.cfg.messageMSS > mss {
		mss = k.segmentSize(len(p))
	}
	if k.rare != nil && k.numbers() {
		head = streams.OwnHeader
		mss -= head
	}
	count := max(1, (len(p)+mss-1)/mss)
	first := mss
	if k.snd.validation != nil && k.WaitSend() == 0 && count < k.fragmentLimit() {
		first = min(mss, k.firstSize(len(p)))
		count = 1 + (max(len(p)-first, 0)+mss-1)/mss
	}
	if count > 1 && k.tooMany(count, len(p), mss, head) {
		if n > 0 {
			return n, nil // as the reference does
		}
		return 0, ErrMessageTooLarge
	}
	k.limit.Refused = false
	for i := range count {
		size := min(len(p), mss)
		if i == 0 {
			size = min(size, first)
		}
		room := size
		if k.cfg.stream && count > 1 {
			room = mss // more is likely to follow
		}
		frg := uint8(0)
		if !k.cfg.stream {
			frg = uint8(count - i - 1)
		}
		k.limit.Refused = false
		s := k.out.buffers.New()
		s.buf = k.out.buffers.Get(int(k.hooks.Headroom) + head + room)
		s.data = s.buf[k.hooks.Headroom:][:head+size]
		if s.frg = frg; head > 0 {
			s.streamed, s.numbered = true, true
			streams.PutOwnHeader(s.data, frg)
		}
		copy(s.data[head:], p[:size])
		k.out.held += s.grains()
		k.snd.queue.pushOrder(s)
		k.snd.bytes += len(s.data)
		p = p[size:]
		n += size
	}
	return n, nil
}

// extendTail fills up the last waiting segment and returns how many bytes it
// took.
func (k *KCP) extendTail(p []byte) int {
	s := k.snd.queue.tail
	if s.tag != nil {
		return 0
	}
	old, limit := len(s.data), k.cfg.mss
	if k.WaitSend() == 1 {
		limit = k.firstSize(old + len(p))
	}
	if old >= limit || s.closed {
		return 0
	}
	n := min(len(p), limit-old)
	k.out.held -= s.grains()
	s.buf = k.out.buffers.Grow(s.buf, int(k.hooks.Headroom)+old+n)
	k.out.held += s.grains()
	s.data = s.buf[k.hooks.Headroom:][:old+n]
	copy(s.data[old:], p[:n])
	if s.frg = 0; s.numbered {
		s.data[streams.OwnHeader-1] = 0
	}
	k.snd.bytes += n
	return n
}

// tooMany reports whether n bytes in count segments of mss bytes are more than a message
// may have. With head bytes more in each, the longest message is as long as without, and
// has more segments.
func (k *KCP) tooMany(count, n, mss, head int) bool {
	limit := k.fragmentLimit()
	if head > 0 {
		return n > limit*(mss+head) || count > streams.MostOwn
	}
	return count > limit
}

// fragmentLimit returns how many segments one Send may queue.
func (k *KCP) fragmentLimit() int {
	if k.cfg.ext.LimitToPeerWindow && !k.cfg.stream && k.peer.wndMax > 0 {
		return int(min(MaxFragments, k.peer.wndMax))
	}
	return MaxFragments
}

// MessageLimit returns the most bytes, and segments, that Send takes as one message.
func (k *KCP) MessageLimit() (bytes, segments int) {
	segments = k.fragmentLimit()
	return segments * max(k.cfg.mss, k.cfg.messageMSS), segments
}

// WaitSend returns the number of segments that wait or are in flight: Send sets no limit.
func (k *KCP) WaitSend() int { return k.snd.inFlight + k.snd.queue.n }

// ackBelow takes every segment below una as acknowledged.
func (k *KCP) ackBelow(una Seq) {
	for k.snd.una.Before(una) {
		if s := k.snd.ring.at(k.snd.una); s != nil {
			if s.xmit > 1 {
				k.recordRetransmit(s)
			}
			k.dropAcked(s, false)
		}
		k.snd.una++
	}
	k.advanceUna()
}

// advanceUna moves snd_una to the first segment that is not acknowledged.
func (k *KCP) advanceUna() {
	for k.snd.una != k.snd.nxt && k.snd.ring.at(k.snd.una) == nil {
		k.snd.una++
	}
}

// dropAcked releases the acknowledged segment s. last says that its last
// transmission is known to have arrived.
func (k *KCP) dropAcked(s *Segment, last bool) {
	if k.cfg.trace != nil {
		k.cfg.trace.acked(s)
	}
	if k.snd.rate.RateSample == nil { // after Compact, without input since
		k.snd.rate.Begin()
	}
	k.snd.rate.Acked(&s.tx, s.size(), k.clock.micros, s.acknowledged(last))
	if w := &k.snd.blackHole; w.Losing() || s.packet > w.Recent || s.packet == 0 {
		w.Arrived(s.arrivedIn())
	}
	if k.snd.ccState == nil { // the same
		k.congestionState()
	}
	k.snd.cc.OnPacketAcked(k.snd.ccState, s.info())
	k.snd.timeouts.remove(s)
	if k.snd.loss.waits(s) {
		k.notLost(s)
	}
	if s.list != nil {
		s.unlinkOrder()
	}
	*k.snd.ring.At(uint32(s.sn)) = nil
	k.snd.inFlight--
	k.snd.flightBytes -= int64(s.size())
	k.snd.bytes -= len(s.data)
	k.counters.BytesAcked += uint64(len(s.data))
	if s.tag != nil {
		k.dropTag(s)
	}
	k.out.recycle(s)
}

// acknowledged returns what the acknowledgement of s shows of its transmissions.
func (s *Segment) acknowledged(last bool) recovery.Transmissions {
	switch {
	case s.xmit == 1 && s.repeats == 0:
		return recovery.Once
	case s.xmit == 1:
		return recovery.Repeated
	case last:
		return recovery.Last
	}
	return recovery.Ambiguous
}

func (s *Segment) info() congestion.Segment {
	return congestion.Segment{
		SN:            uint32(s.sn),
		Size:          s.size(),
		Sent:          uint32(s.ts),
		SentMicros:    s.tx.At,
		Transmissions: int(s.xmit),
	}
}

// notifyAcked tells the congestion controller what an input has acknowledged.
// una is snd_una before that input.
func (k *KCP) notifyAcked(una Seq) {
	if k.snd.rate.Sample.Acked == 0 {
		return
	}
	grain := int64(1000)
	if k.clock.fine {
		grain = 1
	}
	k.snd.rate.Finish(grain)
	s := k.congestionState()
	s.UnaMoved, s.Sample = k.snd.una.After(una), k.snd.rate.Sample
	if e := &k.snd.recovery.Episode; e.Lost != 0 || e.Ambiguous != 0 {
		k.notifyRecovered(s)
	}
	k.snd.cc.OnAck(s)
}

// transmission identifies one transmission of a segment.
type transmission struct {
	sn   Seq
	xmit uint32
}

// DiscardSend drops everything that is waiting or in flight, because the peer
// does not want it any more.
func (k *KCP) DiscardSend() {
	trace, acked := k.cfg.trace, k.counters.BytesAcked
	k.cfg.trace = nil // nothing of this is acknowledged
	k.ackBelow(k.snd.nxt)
	k.cfg.trace, k.counters.BytesAcked = trace, acked
	for k.snd.queue.n > 0 {
		k.dropWaiting(k.snd.queue.head)
	}
}

// dropWaiting releases s, which waits.
func (k *KCP) dropWaiting(s *Segment) {
	s.unlinkOrder()
	k.snd.bytes -= len(s.data)
	if s.tag != nil {
		k.dropTag(s)
	}
	k.out.recycle(s)
}

// Address validation (RFC 9000 §8): what internal/netpath decides is done. A state
// machine without a limit has a peer whose address is validated.

// LimitUnvalidated applies the anti-amplification limit to a peer whose address
// is not validated. Each packet to it has overhead bytes beside its segments.
// Acknowledgements to a legacy peer are withheld at first.
func (k *KCP) LimitUnvalidated(overhead int, legacy bool) {
	k.snd.validation = netpath.NewAmplificationLimit(overhead, legacy, k.clock.now)
}

// Validation returns the limit; nil: there is none.
func (k *KCP) Validation() *netpath.AmplificationLimit { return k.snd.validation }

// holdsAcks reports whether acknowledgements to the peer are withheld for now.
func (k *KCP) holdsAcks() bool {
	v := k.snd.validation
	return v != nil && v.Withholds(k.snd.inFlight > 0, k.clock.now)
}

// unaToSend returns the una of the segments sent now.
func (k *KCP) unaToSend() Seq {
	if k.holdsAcks() {
		return 0
	}
	return k.rcv.nxt
}

// ValidateAddress lifts the limit. If acknowledgements were withheld, the next
// flush sends a window update, whose una catches up on them.
func (k *KCP) ValidateAddress() {
	if k.holdsAcks() {
		k.peer.probe |= sendWins
	}
	k.snd.validation = nil
}

// maySend reports whether the credit allows n bytes more, at the end of the
// packet under construction or in a new one.
func (k *KCP) maySend(n int) bool {
	v := k.snd.validation
	return v == nil || v.Allows(n, !k.fits(n, k.maxPacket()))
}

// mayBegin reports whether the credit allows a new data segment. pending is the
// bytes of segments admitted before it that were not charged yet.
func (k *KCP) mayBegin(s *Segment, pending int) bool {
	return k.snd.validation.MayBegin(pending+s.size(), k.snd.nxt != k.snd.una)
}

// withinCredit returns the expired segments that may be retransmitted
// now, and restarts the timers of the others. To an address that is not
// validated only the oldest is retransmitted: its ACK is the one needed.
func (k *KCP) withinCredit(expired []*Segment) []*Segment {
	sent := expired[:0]
	for _, s := range expired {
		if s.sn == k.snd.una && k.maySend(s.size()) {
			sent = append(sent, s)
			continue
		}
		s.resendTS = k.clock.now + Seq(s.rto)
		k.snd.timeouts.add(s)
	}
	clear(expired[len(sent):])
	return sent
}

// firstSize returns the payload size of the first of the segments that n bytes
// are queued in. One to an address that is not validated may be cut short.
func (k *KCP) firstSize(n int) int {
	v := k.snd.validation
	if v == nil || k.snd.una != k.snd.nxt {
		return k.cfg.mss
	}
	return v.FirstSize(min(n, k.cfg.mss), k.holdsAcks())
}

// The cap of the rate at which a session sends, Config.MaxRate. It counts bytes of
// UDP payload. New segments and retransmissions wait for it, besides pacing by
// congestion control. So do datagrams and parity, which the session holds back. ACKs,
// signals and probes are counted, but do not wait: they borrow from what follows.

// CapRate caps the rate of all that is sent, in bytes a second; 0: no cap. Each packet
// has overhead bytes of UDP payload beside its segments.
func (k *KCP) CapRate(rate int64, overhead int) {
	if rate == 0 {
		if k.rare != nil {
			k.rare.capped = nil
		}
		return
	}
	r := k.rareMachine()
	if r.capped == nil {
		r.capped = recovery.NewShaper(overhead, k.cfg.mtu)
	}
	r.capped.SetRate(rate, k.clock.micros)
}

// RateCap returns the cap; nil: there is none.
func (k *KCP) RateCap() *recovery.Shaper {
	if k.rare == nil {
		return nil
	}
	return k.rare.capped
}

// unspent returns the bytes of the packet under construction that has waited for the
// cap, and is not counted yet. ACKs alone have not.
func (k *KCP) unspent(c *recovery.Shaper) int {
	if k.out.last == nil {
		return 0
	}
	return len(k.out.packet) + c.Overhead
}

// capHolds reports whether a segment of n bytes, which is sent now, has to wait for the
// cap. One that fits behind another does not.
func (k *KCP) capHolds(n int) bool {
	c := k.RateCap()
	if c == nil || k.out.last != nil && k.fits(n, k.cfg.mtu) {
		return false
	}
	return !c.Ready(k.clock.micros, k.unspent(c))
}

// capped reports whether something waits for the cap.
func (k *KCP) capped() bool {
	c := k.RateCap()
	return c != nil && c.Blocked()
}

// rateWait returns the microseconds until the cap lets a packet begin; 0: it does now,
// or there is no cap.
func (k *KCP) rateWait() int64 {
	if c := k.RateCap(); c != nil {
		return c.Wait(k.clock.micros)
	}
	return 0
}
