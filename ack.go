package kcp

import "github.com/arqnet/kcp/internal/replyrhythm"

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
	announced  bool    // the present flush has put out an ACK that was to wait
	urgentAcks uint8   // packets behind the gap still to be acknowledged at once
	filler     ackItem // valid if filled
	segments   int32   // new segments since the last flush
	bytes      int32   // their payload
	replies    replyrhythm.Rhythm
}

// receivedPush records a PUSH with n bytes of payload, of which a is the
// acknowledgement. fresh reports whether the segment is new, next whether it
// was the next one in order.
func (k *KCP) receivedPush(a ackItem, n int, fresh, next bool) {
	p := &k.rcv.ackPolicy
	if fresh {
		p.replies.Arrived(uint32(k.clock.now))
	} else {
		p.replies.Disturbed()
	}
	if len(k.rcv.acks) == 1 {
		p.due = k.clock.now + seq(k.ackDelay())
	}
	if !fresh {
		return
	}
	p.segments++
	p.bytes += int32(n)
	if a.sn.After(p.end) {
		p.urgentAcks = gapAcks
	}
	if !a.sn.Before(p.end) {
		p.end = a.sn + 1
	}
	if a.sn.After(k.rcv.nxt) {
		p.early = true
		p.replies.Disturbed()
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
	if sn.Before(k.rcv.nxt) {
		return false
	}
	s := k.rcv.ring.at(sn)
	if k.clock.now.Diff(s.lastAcked) < k.snd.rtt.srtt/2 {
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
		if soon.Before(p.due) {
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
		case !a.sn.Before(k.rcv.nxt):
			k.putAck(h, a, 0)
			p.segments--
		case len(covered) == 0:
			covered = append(covered, a)
		case a.ts.Before(covered[0].ts):
			covered[0] = a
		}
	}
	k.rcv.acks = covered
	k.snd.redundancy.Earn(int(p.segments))
	p.urgent = false
	p.segments, p.bytes = 0, 0
	if p.replies.Hold > 0 && len(covered) > 0 && !k.sampledRecently() {
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
	return p.started && k.clock.now.Within(p.sampled, p.sampled+seq(k.snd.rtt.srtt))
}

// frg of an ACK announces how long ACKs may wait; see package replyrhythm. The peer
// adds it to its retransmission time-out (RFC 9002 §6.2.1), and takes no round-trip
// sample from an ACK that has waited, so the samples stay those of the path. Every
// other packet of the receiver shows una. One that does not cover what has long
// arrived shows a loss, for which the peer then does not wait.

// ackDelay returns for how many milliseconds the ACK of what has just arrived may
// wait.
func (k *KCP) ackDelay() uint32 {
	srtt := uint32(k.snd.rtt.srtt)
	delay := min(maxAckDelay, max(minAckDelay, srtt/ackDelayShare))
	if k.cfg.ext.AwaitReplies {
		return k.rcv.ackPolicy.replies.Delay(uint32(k.clock.now), delay, srtt)
	}
	return delay
}

// putReplyAck puts out the ACK a, which una covers, with the announcement.
func (k *KCP) putReplyAck(h *header, a ackItem) {
	p := &k.rcv.ackPolicy
	p.sampled, p.started, p.filled = k.clock.now, true, false
	p.announced = p.replies.Hold > 0
	k.putAck(h, a, p.replies.Announcement())
}

// noteReplies records what a flush has sent: segments from first on for
// the first time, or again if resent.
func (k *KCP) noteReplies(first seq, resent bool) {
	p := &k.rcv.ackPolicy
	switch {
	case resent:
		p.replies.Disturbed()
	case k.snd.nxt != first:
		p.replies.Replied(uint32(k.clock.now))
	case p.announced:
		p.replies.Alone(uint32(k.clock.now))
	}
	p.announced = false
}

// noteAckHold takes the peer's announcement from a segment, before its una. What
// una acknowledges shows no round trip if the ACK may have waited.
func (k *KCP) noteAckHold(h *header, recovered bool) {
	if !k.cfg.ext.AwaitReplies {
		return
	}
	k.snd.rate.Waited = k.peer.ackHold > 0
	if h.cmd == cmdAck && !recovered {
		k.peer.ackHold = h.frg & replyrhythm.HoldMask
		k.snd.rate.Waited = h.frg&replyrhythm.Waited != 0
	}
}

// waitNoLonger takes the wait for a delayed ACK out of the time-out of the oldest
// segment if what the peer sends does not acknowledge it, although it left more
// than a round trip ago: the peer does not have it.
func (k *KCP) waitNoLonger() {
	s, e := k.snd.oldest(), &k.snd.rtt
	if s == nil || s.xmit != 1 || s.group == nil {
		return
	}
	if k.clock.now.Diff(s.ts) <= e.srtt+max(e.srtt/4, 4*e.rttvar, minAckDelay) {
		return
	}
	if at := s.ts + k.firstTimeout(s.rto); at.Before(s.resendTS) {
		k.snd.timeouts.remove(s)
		s.resendTS = at
		if at.Before(k.clock.now) {
			s.resendTS = k.clock.now
		}
		k.snd.timeouts.add(s)
	}
}

// Repetition of ACKs, Extensions.RepeatAcks. The wire has no lists of
// acknowledged ranges (as SACK, RFC 2018): what has arrived beyond una is
// acknowledged segment by segment, and only once. If the packet with an ACK is
// lost, the peer retransmits a segment that has arrived. A duplicate ACK harms
// no peer. So while such spurious retransmissions come in, every ACK that una
// does not cover is sent once more, with the ACKs that follow. At 5 % loss each
// way on 100 Mbit/s and 50 ms, a sender then repeats 5.4 % instead of 9.6 %.

const (
	// ackRepeatLength is for how many ACKs one spurious retransmission by the
	// peer switches repetition on. Several add up to ackRepeatMost at most.
	ackRepeatLength = 400
	ackRepeatMost   = 4000
	// ackRepeatDelay bounds, in milliseconds, how long after its segment
	// arrived an ACK may be sent a second time. A peer that takes a round-trip
	// sample from every ACK measures the delay too.
	ackRepeatDelay = 10
)

// ackRepeater is the state of Extensions.RepeatAcks. Its zero value is ready.
type ackRepeater struct {
	left  int // ACKs for which repetition is still on
	items []repeatedAck
}

type repeatedAck struct {
	ackItem
	at   seq // when its segment arrived
	sent bool
}

// note records an ACK that is to be sent, if repetition is on. r may be nil.
func (r *ackRepeater) note(a ackItem, now seq) {
	if r != nil && r.left > 0 {
		r.left--
		r.items = append(r.items, repeatedAck{ackItem: a, at: now})
	}
}

// duplicate records that the peer has sent a segment that had arrived before.
func (r *ackRepeater) duplicate() {
	r.left = min(r.left+ackRepeatLength, ackRepeatMost)
}

// repeatAcks puts out once more the ACKs of packets before this one. They stand
// in front of the new ACKs, because kcp-go takes its round-trip sample from the
// last ACK of a packet.
func (k *KCP) repeatAcks(h *header) {
	if len(k.rcv.acks) == 0 || k.snd.validation != nil {
		return
	}
	keep := k.rcv.ackRepeats.items[:0]
	for _, a := range k.rcv.ackRepeats.items {
		switch {
		case a.sn.Before(k.rcv.nxt) || k.clock.now.Diff(a.at) > ackRepeatDelay:
		case !a.sent:
			a.sent = true
			keep = append(keep, a)
		default:
			k.putAck(h, a.ackItem, 0)
		}
	}
	k.rcv.ackRepeats.items = keep
}
