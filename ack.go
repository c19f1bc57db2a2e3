package kcp

// Delayed ACK (RFC 1122 §4.2.3.2), Extensions.ThinAcks. The reference answers
// every PUSH with an ACK of its own, at once. Most of these ACKs say nothing
// beyond the una of the same packet, and the packet around them costs more than
// they do. Usually another packet is about to leave anyway.

const (
	// maxAckDelay bounds how long an acknowledgement waits, in milliseconds, as
	// max_ack_delay does in QUIC (RFC 9000 §18.2). On short paths the bound is
	// the part 1/ackDelayShare of a round trip, since time-outs are short too.
	maxAckDelay   = 25
	ackDelayShare = 4
	// minAckDelay is the shortest wait in milliseconds, so that it lasts a full
	// tick of the clock. Even on the shortest paths a reply may come in that
	// time and carry the acknowledgement.
	minAckDelay = 2
	// ackSoon, in milliseconds, and ackSoonShare take the place of maxAckDelay
	// and ackDelayShare once ackSegments segments or ackBytes bytes wait. A
	// spurious retransmission of that much would be expensive. There is still
	// time for the rest of a message to arrive, and for a reply to leave.
	ackSoon      = 5
	ackSoonShare = 16
	ackSegments  = 4
	ackBytes     = 256
	// ackFull is how many full segments are acknowledged at once: the sender of
	// a long transfer opens its window by acknowledgements.
	ackFull = 4
	// gapAcks is how many packets behind a new gap are acknowledged at once.
	// Many senders wait for two such acknowledgements (RFC 5681 §3.2 has
	// three), and one may be lost.
	gapAcks = 3
)

// ackPolicy is the state of Extensions.ThinAcks. Its zero value is ready.
type ackPolicy struct {
	due        seq     // when the waiting acknowledgements must leave
	end        seq     // one more than the highest sn received
	sampled    seq     // when the last ACK of a segment below una left
	started    bool    // sampled is valid
	urgent     bool    // the waiting acknowledgements must leave at once
	gap        bool    // there was a gap before the current packet
	early      bool    // the current packet brought a segment behind a gap
	filled     bool    // filler has filled a gap since the last flush
	urgentAcks uint8   // packets behind the gap still to be acknowledged at once
	filler     ackItem // valid if filled
	segments   int32   // new segments since the last flush
	bytes      int32   // their payload
	replies    replyRhythm
}

// receivedPush records a PUSH with n bytes of payload, of which a is the
// acknowledgement. fresh reports whether the segment is new, next whether it
// was the next one in order.
func (k *KCP) receivedPush(a ackItem, n int, fresh, next bool) {
	p := &k.rcv.ackPolicy
	if fresh {
		p.replies.arrived(k.clock.now)
	} else {
		p.replies.disturbed()
	}
	if len(k.rcv.acks) == 1 {
		p.due = k.clock.now + seq(k.ackDelay())
	}
	if !fresh {
		return
	}
	p.segments++
	p.bytes += int32(n)
	if a.sn.after(p.end) {
		p.urgentAcks = gapAcks
	}
	if !a.sn.before(p.end) {
		p.end = a.sn + 1
	}
	if a.sn.after(k.rcv.nxt) {
		p.early = true
		p.replies.disturbed()
	}
	if next && p.gap {
		p.filled, p.filler, p.urgentAcks = true, a, gapAcks
		p.gap = k.rcv.early > 0
	}
}

// ackedRecently reports whether sn, which the peer has retransmitted, was
// acknowledged less than half a round trip ago. If not, it records that it is
// acknowledged now. A segment below una needs no ACK of its own, and is not
// looked up.
func (k *KCP) ackedRecently(sn seq) bool {
	if sn.before(k.rcv.nxt) {
		return false
	}
	s := k.rcv.ring.at(sn)
	if k.clock.now.diff(s.lastAcked) < k.snd.rtt.srtt/2 {
		return true
	}
	s.lastAcked = k.clock.now
	return false
}

// decideAck decides, after an input, how long the acknowledgements may wait.
// The news of a missing segment leaves at once, because the peer acts on it.
func (k *KCP) decideAck() {
	p := &k.rcv.ackPolicy
	if p.early && k.rcv.early > 0 && p.urgentAcks > 0 {
		p.urgentAcks--
		p.urgent = true
	}
	p.early = false
	switch {
	case int(p.bytes) >= ackFull*k.cfg.mss, k.rcv.share > 0 && 2*uint32(p.segments) >= k.rcv.share:
		p.urgent = true // in the second case the peer can send little more before it
	case p.segments >= ackSegments || p.bytes >= ackBytes:
		soon := k.clock.now + seq(min(ackSoon, max(minAckDelay, uint32(k.snd.rtt.srtt)/ackSoonShare)))
		if soon.before(p.due) {
			p.due = soon
		}
	}
}

// ackTime returns when the waiting acknowledgements must leave.
func (k *KCP) ackTime() seq {
	if k.cfg.ext.ThinAcks && !k.rcv.ackPolicy.urgent {
		return k.rcv.ackPolicy.due
	}
	return k.clock.now
}

// flushEarlyAcks puts out an ACK for every segment that una does not cover. Of
// the other ACKs, if there are any, it leaves the one with the oldest ts
// (RFC 7323 §4.3) to flushCoveredAck.
func (k *KCP) flushEarlyAcks(h *header) {
	p := &k.rcv.ackPolicy
	covered := k.rcv.acks[:0]
	for _, a := range k.rcv.acks {
		switch {
		case !a.sn.before(k.rcv.nxt):
			k.putAck(h, a, 0)
			p.segments--
		case len(covered) == 0:
			covered = append(covered, a)
		case a.ts.before(covered[0].ts):
			covered[0] = a
		}
	}
	k.rcv.acks = covered
	k.snd.redundancy.earn(int(p.segments))
	p.urgent = false
	p.segments, p.bytes = 0, 0
	if p.replies.hold > 0 && len(covered) > 0 && !k.sampledRecently() {
		k.rcv.acks = covered[:0]
		k.putReplyAck(h, covered[0]) // in front, so that the peer reads it before any una
	}
}

// flushCoveredAck puts out the one ACK that is left of the segments below una.
// It says no more than una does, except the time. It leaves in three cases:
//   - No other segment carries una: bare says that this flush has put out
//     nothing but signals.
//   - The peer should take a round-trip sample again. One for each round trip
//     is enough (RFC 6298 §3).
//   - A gap was filled, and the peer may want to know by which transmission.
func (k *KCP) flushCoveredAck(h *header, bare bool) {
	p := &k.rcv.ackPolicy
	if p.filled {
		k.rcv.acks = append(k.rcv.acks[:0], p.filler)
	}
	if len(k.rcv.acks) == 0 {
		return
	}
	a := k.rcv.acks[0]
	k.rcv.acks = k.rcv.acks[:0]
	if k.sampledRecently() && !bare && !p.filled {
		return
	}
	k.putReplyAck(h, a)
}

// sampledRecently reports whether an ACK of a segment below una has left within
// a round trip.
func (k *KCP) sampledRecently() bool {
	p := &k.rcv.ackPolicy
	return p.started && k.clock.now.within(p.sampled, p.sampled+seq(k.snd.rtt.srtt))
}
