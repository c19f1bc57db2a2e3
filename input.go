package kcp

// probe bits: what the next flush tells the peer about windows.
const (
	probeAsk  = 1 // send WASK
	probeTell = 2 // send WINS
)

// ackItem is an acknowledgement to be sent.
type ackItem struct{ sn, ts seq }

// newestAck is the ACK of a packet that the loss detector counts: the one of
// the highest segment among the latest transmissions (FASTACK_CONSERVE of the
// reference).
type newestAck struct {
	sn, ts seq
	seen   bool
}

func (a *newestAck) add(sn, ts seq) {
	if !a.seen || (sn.after(a.sn) && ts.after(a.ts)) {
		*a = newestAck{sn: sn, ts: ts, seen: true}
	}
}

// Input takes one packet from the peer; it does not keep packet. An error says
// why the packet, or the rest of it, was dropped; nothing else is disturbed.
func (k *KCP) Input(packet []byte) error { return k.input(packet, false) }

// InputRecovered is Input for a packet that forward error correction has
// reconstructed. It comes late, so its ACKs are no round-trip samples, its
// window is not news, and what it carries is acknowledged in a way that gives
// the peer no sample either but that of the newest packet that came by itself.
func (k *KCP) InputRecovered(packet []byte) error { return k.input(packet, true) }

func (k *KCP) input(packet []byte, recovered bool) error {
	if len(packet) < headerSize {
		return ErrPacketShort
	}
	k.counters.PacketsReceived++
	una := k.sndUna
	k.congestionState()
	k.rate.begin()
	k.ackPolicy.gap = k.rcvEarly > 0
	flying, early := k.inFlight, uint32(0)
	var newest newestAck
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, err := k.checkSegment(&h, packet[headerSize:])
		if err != nil {
			return err
		}
		isSignal, outside := k.inputSignal(&h)
		if outside {
			packet = packet[headerSize:]
			continue
		}
		if h.una.after(k.sndNxt) {
			return ErrForgedUna
		}
		if !recovered {
			k.inputWindow(&h)
		}
		if k.validation == nil {
			k.ackBelow(h.una)
		}
		switch h.cmd {
		case cmdAck:
			k.inputAck(&h, una, recovered)
			newest.add(h.sn, h.ts)
			if h.sn.after(h.una) {
				early++
			}
		case cmdPush:
			k.inputPush(&h, payload, recovered)
		case cmdPiece:
			if err := k.inputPiece(&h, payload, recovered); err != nil {
				return err
			}
		case cmdWask:
			k.counters.ProbesReceived++
			if !isSignal {
				k.probe |= probeTell
			}
		case cmdWins:
			if !isSignal {
				k.counters.WindowUpdates++
			}
		}
		packet = packet[headerSize+len(payload):]
	}
	k.countAck(newest, early)
	if k.ext.ThinAcks {
		k.decideAck()
	}
	k.heardPeer(flying - k.inFlight)
	k.tellAcked(una)
	k.heard = transmission{}
	if s := k.oldest(); s != nil {
		k.heard = transmission{s.sn, s.xmit}
	}
	return nil
}

// checkSegment returns the payload of a segment, rest being what follows its
// header, or why the segment is bad.
func (k *KCP) checkSegment(h *header, rest []byte) ([]byte, error) {
	if h.conv != k.conv {
		return nil, ErrConv
	}
	payload, ok := h.payload(rest)
	if !ok {
		return nil, ErrSegmentLength
	}
	if !knownCmd(h.cmd) && !(h.cmd == cmdPiece && k.ext.TakePieces) {
		return nil, ErrCommand
	}
	return payload, nil
}

// inputSignal gives a signal to whoever wants signals. isSignal is false where
// nobody does: the segment is the probe then that it seems to be. outside is true
// where the segment counts for nothing else.
func (k *KCP) inputSignal(h *header) (isSignal, outside bool) {
	if k.onSignal == nil {
		return false, false
	}
	s, isSignal := h.signal()
	return isSignal, isSignal && k.onSignal(s)
}

// tellAcked tells the congestion controller what an input has acknowledged,
// before which snd_una was una.
func (k *KCP) tellAcked(una seq) {
	if k.rate.sample.Acked == 0 {
		return
	}
	grain := int64(1000)
	if k.fineClock {
		grain = 1
	}
	k.rate.finish(grain)
	s := k.congestionState()
	s.UnaMoved, s.Sample = k.sndUna.after(una), k.rate.sample
	k.tellRecovered(s)
	k.cc.OnAck(s)
}

// transmission names one sending of a segment.
type transmission struct {
	sn   seq
	xmit uint32
}

// oldest returns the first segment in flight; nil if there is none.
func (k *KCP) oldest() *sendSegment {
	if k.sndUna == k.sndNxt {
		return nil
	}
	return k.snd.at(k.sndUna)
}

// silentTransmissions returns how often the oldest segment in flight was sent
// since the last good packet from the peer.
func (k *KCP) silentTransmissions() int {
	s := k.oldest()
	if s == nil {
		return 0
	}
	if s.sn == k.heard.sn {
		return int(s.xmit - k.heard.xmit)
	}
	return int(s.xmit)
}

// closeReceive drops what has arrived and takes no more; what has been
// acknowledged so far is acknowledged again when it is repeated.
func (k *KCP) closeReceive() {
	k.rcv, k.assembly = recvRing{}, assembly{}
	k.rcvQueued, k.rcvPartial, k.rcvVoid, k.rcvEarly, k.rcvWnd, k.rcvBytes = 0, 0, 0, 0, 0, 0
}

// sparing is how new data is turned away, for want of memory.
type sparing uint8

const (
	sparesNothing sparing = iota
	sparesMemory          // take only what can be read, or makes something so
	sparesAlways          // the same, and never more than spareBytes: nobody reads it yet
)

// spareBytes is how much payload is taken while memory is short.
const spareBytes = 16 << 10

// spares reports whether the new segment sn is turned away because memory is
// short. The next one in order is not as long as there is nothing to read, for
// want of it or of the rest of a message, or what there is is little and being
// read, so the conversation goes on.
func (k *KCP) spares(sn seq) bool {
	if k.sparing == sparesNothing {
		return false
	}
	readable := k.rcvQueued > k.rcvPartial || k.sparing == sparesAlways
	return sn != k.rcvNxt || readable && k.rcvBytes >= spareBytes
}

// discardSend drops everything that waits to be sent or acknowledged, for a
// peer that does not want it any more.
func (k *KCP) discardSend() {
	k.ackBelow(k.sndNxt)
	for sn := k.sndNxt; sn != k.sndEnd; sn++ {
		s := k.snd.at(sn)
		k.sndBytes -= len(s.data)
		k.buffers.putSegment(s)
		k.snd.set(sn, nil)
	}
	k.sndEnd = k.sndNxt
}

// inputWindow takes the peer's advertisement. The una of a peer never goes
// back, so a segment with less than the highest seen is older than that one.
func (k *KCP) inputWindow(h *header) {
	k.unaBack = k.rmtWndMax > 0 && h.una.before(k.rmtUna)
	if k.ext.FreshWindow && k.rmtWndMax > 0 && h.una.before(k.rmtUna) {
		return
	}
	k.rmtUna = h.una
	k.rmtWnd = uint32(h.wnd)
	k.rmtWndMax = max(k.rmtWndMax, k.rmtWnd)
}

// ackBelow takes every segment below una as acknowledged.
func (k *KCP) ackBelow(una seq) {
	for k.sndUna.before(una) {
		if s := k.snd.at(k.sndUna); s != nil {
			if s.xmit > 1 {
				k.remember(s)
			}
			k.dropAcked(s, false)
		}
		k.sndUna++
	}
	k.advanceUna()
}

// advanceUna moves snd_una to the first segment that is not acknowledged.
func (k *KCP) advanceUna() {
	for k.sndUna != k.sndNxt && k.snd.at(k.sndUna) == nil {
		k.sndUna++
	}
}

// dropAcked releases the acknowledged segment s. last says that its last
// transmission is known to have arrived.
func (k *KCP) dropAcked(s *sendSegment, last bool) {
	k.rate.acked(s, k.micros, last)
	k.sizes.arrived(int(s.packet))
	k.cc.OnPacketAcked(k.lastState(), s.info())
	k.timeouts.remove(s)
	if s.list == &k.loss.due {
		k.notLost(s)
	}
	s.unlinkOrder()
	k.snd.set(s.sn, nil)
	k.inFlight--
	k.flightBytes -= int64(s.size())
	k.sndBytes -= len(s.data)
	k.buffers.putSegment(s)
}

func (s *sendSegment) info() SegmentInfo {
	return SegmentInfo{
		SN:            uint32(s.sn),
		Size:          s.size(),
		Sent:          uint32(s.ts),
		SentMicros:    s.tx.at,
		Transmissions: int(s.xmit),
	}
}

// inputAck takes the acknowledgement of one segment, in a packet before which
// snd_una was una. The una of the packet itself may have covered the segment
// already, so it counts as news all the same.
func (k *KCP) inputAck(h *header, una seq, recovered bool) {
	k.counters.AcksReceived++
	if v := k.validation; v != nil && !v.acknowledged(h.sn, h.ts) {
		return
	}
	var s *sendSegment
	if h.sn.within(k.sndUna, k.sndNxt) {
		s = k.snd.at(h.sn)
	}
	news := s != nil || h.sn.within(una, k.sndUna)
	rtt := k.now.diff(h.ts)
	if rtt >= 0 && !recovered && (news || !k.ext.StrictRTT) {
		k.rtt.sample(rtt, k.interval)
		k.cc.OnRTT(k.lastState(), uint32(rtt))
		k.trace.rtt(uint32(rtt), uint32(k.rtt.srtt), k.rtt.rto)
	}
	if s == nil {
		k.recall(h.sn, h.ts)
		return
	}
	switch {
	case s.xmit == 1:
	case h.ts.before(s.ts):
		k.recovery.count(s.xmit == 2)
		k.needless(s.repaired)
	default:
		k.recovery.count(false)
		k.needed()
	}
	k.dropAcked(s, h.ts == s.ts)
	k.advanceUna()
}

// inputPush takes one data segment: acknowledges it where it lies below the
// end of the window, and keeps it where it is new.
func (k *KCP) inputPush(h *header, payload []byte, recovered bool) {
	k.counters.SegmentsReceived++
	k.trace.received(h.sn, len(payload))
	if !h.sn.before(k.rcvNxt+seq(k.rcvWnd)) || (k.spares(h.sn) && !h.sn.before(k.rcvNxt)) {
		k.counters.OutOfWindow++
		return
	}
	k.dropPieces(h.sn)
	ack := ackItem{h.sn, k.echo(h.ts, recovered)}
	next := h.sn == k.rcvNxt
	fresh := k.keep(h, payload, ack)
	if !fresh && k.ext.ThinAcks && k.told(h.sn) {
		return
	}
	k.acks = append(k.acks, ack)
	if k.ext.ThinAcks {
		k.receivedPush(ack, len(payload), fresh, next)
	}
}

// keep stores the payload of a PUSH below the end of the window, and reports
// whether it is new. ack is its acknowledgement.
func (k *KCP) keep(h *header, payload []byte, ack ackItem) bool {
	if h.sn.before(k.rcvNxt) {
		k.duplicate()
		return false
	}
	if h.sn == k.rcvNxt && k.toSink(h, payload) {
		return true
	}
	head := k.rcvNxt - seq(k.rcvQueued)
	k.rcv.reserve(head, int(h.sn-head)+1)
	s := k.rcv.at(h.sn)
	if s.held {
		k.duplicate()
		return false
	}
	if k.ext.RepeatAcks && h.sn != k.rcvNxt {
		k.ackRepeats.note(ack, k.now)
	}
	s.data = k.buffers.get(len(payload))
	copy(s.data, payload)
	s.frg, s.held, s.told = h.frg, true, k.now
	k.rcvEarly++
	k.rcvBytes += len(payload)
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// duplicate notes a segment that had arrived before.
func (k *KCP) duplicate() {
	k.counters.Duplicates++
	k.ackRepeats.duplicate()
}

// toSink takes the segment at rcv_nxt past the receive queue, if there is a sink
// for it. It has to be a message of its own with nothing queued before it.
func (k *KCP) toSink(h *header, payload []byte) bool {
	if len(payload) > len(k.sink) || len(payload) == 0 || k.rcvQueued > 0 || h.frg != 0 {
		return false
	}
	k.sink = k.sink[copy(k.sink, payload):]
	k.sunk = true
	k.rcvNxt++
	k.counters.BytesReceived += uint64(len(payload))
	k.deliver()
	return true
}

// echo returns the ts to acknowledge a segment with. For a recovered segment
// that is the ts of the newest packet that came by itself: the peer then
// measures the path, not the time that recovery took.
func (k *KCP) echo(ts seq, recovered bool) seq {
	if !recovered {
		if !k.hasRecent || ts.after(k.tsRecent) {
			k.tsRecent, k.hasRecent = ts, true
		}
		return ts
	}
	if k.hasRecent && k.tsRecent.after(ts) {
		return k.tsRecent
	}
	return ts
}

// deliver moves early segments that have become next in order to the receive
// queue, as far as it has room.
func (k *KCP) deliver() {
	for k.rcvEarly > 0 && k.rcvQueued < k.rcvLimit() {
		s := k.rcv.at(k.rcvNxt)
		if !s.held {
			return
		}
		k.joinMessage(s.frg)
		k.rcvEarly--
		k.rcvNxt++
		k.rcvQueued++
	}
}

// joinMessage keeps track of the message that the segment at rcv_nxt belongs
// to. Fragments count down to 0; one that does not go on where the one before
// it stopped makes the message before it impossible to complete. The reference
// would wait for the rest for ever, or hand up a mixture.
func (k *KCP) joinMessage(frg uint8) {
	if k.rcvPartial > 0 {
		last := k.rcv.at(k.rcvNxt - 1).frg
		if frg != last-1 {
			k.dropPartial()
		}
	}
	if frg == 0 {
		k.rcvPartial = 0
	} else {
		k.rcvPartial++
	}
}

// dropPartial discards the incomplete message at the end of the receive queue.
// Its segments keep their places, empty, while whole messages stand before
// them: to close the gap would cost as much as the queue is long.
func (k *KCP) dropPartial() {
	for sn := k.rcvNxt - seq(k.rcvPartial); sn != k.rcvNxt; sn++ {
		s := k.rcv.at(sn)
		k.rcvBytes -= len(s.data)
		k.buffers.put(s.data)
		*s = recvSegment{void: true}
	}
	k.rcvVoid += k.rcvPartial
	k.rcvPartial = 0
	k.counters.BrokenMessages++
	k.dropVoid()
}

// dropVoid takes the empty places at the head of the receive queue out of it.
func (k *KCP) dropVoid() {
	for k.rcvVoid > 0 {
		s := k.rcv.at(k.rcvNxt - seq(k.rcvQueued))
		if !s.void {
			return
		}
		*s = recvSegment{}
		k.rcvQueued--
		k.rcvVoid--
	}
}

// rcvLimit returns how many segments the receive queue may hold: the receive
// window, and where a message with more fragments than that stands alone in
// the queue, as many as it has. Only peers that break the reference's limit of
// 127 fragments send such a message, kcp-go among them.
func (k *KCP) rcvLimit() uint32 {
	if k.rcvPartial > 0 && k.rcvPartial == k.rcvQueued && k.rcvQueued >= k.rcvWnd {
		return max(k.rcvWnd, uint32(k.rcv.at(k.rcvNxt-seq(k.rcvQueued)).frg)+1)
	}
	return k.rcvWnd
}

// wndUnused returns the window to advertise.
func (k *KCP) wndUnused() uint16 {
	limit := k.rcvLimit()
	if k.rcvQueued >= limit {
		return 0
	}
	return uint16(min(limit-k.rcvQueued, maxWindow))
}

// lossDetector counts, for each segment in flight, the acknowledgements of
// later transmissions. A segment is in one of four lists: fresh and resent in
// the order of their last transmission, so that counting touches only segments
// that were sent before the acknowledged one, and suspects once it has been
// counted often enough; there it costs nothing until the next flush. In sessions
// that moves it to due, where it waits to be sent again.
type lossDetector struct {
	fresh    segmentList // transmitted once; in order of sn too
	resent   segmentList // transmitted more often
	suspects segmentList // counted fastResend times
	due      segmentList // taken for lost, and without a time-out until sent again

	collect bool           // have counted take
	counted []*sendSegment // those counted for the first time, but not often enough
}

// count takes n acknowledgements, the newest that of segment sn as of its
// transmission at ts.
func (d *lossDetector) count(sn, ts seq, n, limit uint32) {
	for s := d.fresh.head; s != nil && s.sn.before(sn) && !s.ts.after(ts); {
		next := s.order.next
		d.hit(s, n, limit)
		s = next
	}
	for s := d.resent.head; s != nil && !s.ts.after(ts); {
		next := s.order.next
		if s.sn.before(sn) {
			d.hit(s, n, limit)
		}
		s = next
	}
}

// countBefore takes an input with n acknowledgements that has acknowledged the
// transmission with a number, counted over all segments, and none after it.
func (d *lossDetector) countBefore(number uint64, n, limit uint32) {
	for _, l := range []*segmentList{&d.fresh, &d.resent} {
		for s := l.head; s != nil && s.tx.number < number; {
			next := s.order.next
			d.hit(s, n, limit)
			s = next
		}
	}
}

func (d *lossDetector) hit(s *sendSegment, n, limit uint32) {
	s.fastack += n
	if d.collect && s.fastack == n && n < limit {
		d.counted = append(d.counted, s)
	}
	if s.fastack >= limit {
		s.unlinkOrder()
		d.suspects.pushOrder(s)
	}
}

// suspect reports whether s is going to be sent again soon.
func (d *lossDetector) suspect(s *sendSegment) bool {
	return s.list == &d.suspects || s.list == &d.due
}

// sent files s after a transmission. A segment that is still suspect, because
// it timed out with its count, stays so.
func (d *lossDetector) sent(s *sendSegment) {
	if s.list == &d.suspects && s.fastack > 0 {
		return
	}
	s.unlinkOrder()
	if s.xmit == 1 {
		d.fresh.pushOrder(s)
	} else {
		d.resent.pushOrder(s)
	}
}
