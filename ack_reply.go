package kcp

// Delayed ACKs that wait for the application's next data,
// Extensions.AwaitReplies. An application that writes at its own rhythm, such as
// 20 times a second, or that takes some milliseconds to answer, sends a packet
// that carries the acknowledgement (RFC 1122 §4.2.3.2). The delayed ACK of
// Extensions.ThinAcks would leave before it, in a packet of its own. So the ACK
// waits as long as that has lately taken.
//
// frg of an ACK announces how long ACKs may wait (max_ack_delay, RFC 9000 §18.2).
// The peer adds it to its retransmission time-out (RFC 9002 §6.2.1), and takes
// no round-trip sample from an ACK that has waited, so the samples stay those of
// the path. Every other packet of the receiver shows una. One that does not cover
// what has long arrived shows a loss, for which the peer then does not wait.

const (
	// maxAckHold bounds how long an ACK waits for data, in milliseconds. The
	// announcement has 7 bits.
	maxAckHold = 100
	// firstReplies is after how many replies in a row, each in time and with
	// nothing lost meanwhile, ACKs wait for the next. After a loss it takes
	// replyStreak, so that losses of a few in a thousand keep ACKs from waiting.
	firstReplies = 16
	replyStreak  = 250
	// holdSampled is of how many ACKs one does not wait, for a round-trip sample.
	holdSampled = 32
)

// Parts of frg of an ACK. 0 means that ACKs do not wait.
const (
	ackHoldMask = 0x7f // for how many milliseconds ACKs may wait
	ackWaited   = 0x80 // this one may have waited
)

// replyRhythm is how soon the application writes after data has arrived. Its
// zero value is ready.
type replyRhythm struct {
	since  seq   // when the first data arrived that no new data has followed; valid if open
	from   seq   // when the peer has learned of hold; valid if hold > 0
	took   uint8 // milliseconds that replies take: the most, which decays
	hold   uint8 // milliseconds that ACKs may wait, as announced; 0: no longer than usual
	streak uint8 // replies in a row, replyStreak at most
	acks   uint8 // ACKs since hold was set, modulo 256
	open   bool  // data has arrived since the last reply
	waits  bool  // the present ACK waits for hold
	lossy  bool  // something was lost since replyStreak was last reached
	left   bool  // the present flush has put out an ACK that was to wait
}

// arrived takes note of new data.
func (r *replyRhythm) arrived(now seq) {
	if !r.open {
		r.open, r.since = true, now
	}
}

// replied takes note of data that is sent for the first time.
func (r *replyRhythm) replied(now seq) {
	if !r.open {
		return
	}
	r.open = false
	took := now.diff(r.since)
	if took < 0 || took > maxAckHold {
		r.paused()
		return
	}
	r.took = max(uint8(took), r.took-(r.took+15)/16)
	if r.streak < replyStreak {
		r.streak++
	} else {
		r.lossy = false
	}
}

// paused makes ACKs wait no longer than usual: no reply has come in time.
func (r *replyRhythm) paused() { r.streak, r.took, r.hold, r.waits = 0, 0, 0, false }

// disturbed is paused, for longer: something was lost.
func (r *replyRhythm) disturbed() {
	r.paused()
	r.lossy = true
}

// regular reports whether there were enough replies in a row.
func (r *replyRhythm) regular() bool {
	return r.streak >= firstReplies && !r.lossy || r.streak >= replyStreak
}

// delay returns for how many milliseconds the ACK of what has just arrived may
// wait. usual is that time without replies, and srtt the round trip.
func (r *replyRhythm) delay(now seq, usual, srtt uint32) uint32 {
	r.waits = false
	took := uint32(r.took)
	if !r.regular() || took <= usual {
		r.hold = 0
		return usual
	}
	// A reply that takes by an eighth longer, and a tick of the clock, is in time.
	switch want, hold := min(took+took/8+2, maxAckHold), uint32(r.hold); {
	case hold < want:
		r.hold, r.acks = uint8(min(took*3/2+2, maxAckHold)), 0
		r.from = now + seq(usual+2*srtt) // the peer's time-out comes first
	case hold > 2*want:
		r.hold = uint8(want)
	}
	r.acks++
	r.waits = !now.before(r.from) && r.acks%holdSampled != 0 && uint32(r.hold) > usual
	if r.waits {
		return uint32(r.hold)
	}
	return usual
}

// announcement returns frg of an ACK that una covers.
func (r *replyRhythm) announcement() uint8 {
	if r.waits {
		return r.hold | ackWaited
	}
	return r.hold
}

// alone takes note that an ACK leaves without new data.
func (r *replyRhythm) alone(now seq) {
	if r.waits && r.open && now.diff(r.since) >= int32(r.hold) {
		r.paused()
	}
}

// ackDelay returns for how many milliseconds the ACK of what has just arrived may
// wait.
func (k *KCP) ackDelay() uint32 {
	srtt := uint32(k.snd.rtt.srtt)
	delay := min(maxAckDelay, max(minAckDelay, srtt/ackDelayShare))
	if k.cfg.ext.AwaitReplies {
		return k.rcv.ackPolicy.replies.delay(k.clock.now, delay, srtt)
	}
	return delay
}

// putReplyAck puts out the ACK a, which una covers, with the announcement.
func (k *KCP) putReplyAck(h *header, a ackItem) {
	p := &k.rcv.ackPolicy
	p.sampled, p.started, p.filled = k.clock.now, true, false
	p.replies.left = p.replies.hold > 0
	k.putAck(h, a, p.replies.announcement())
}

// noteReplies takes note of what a flush has sent: segments from first on for
// the first time, or again if resent.
func (k *KCP) noteReplies(first seq, resent bool) {
	r := &k.rcv.ackPolicy.replies
	switch {
	case resent:
		r.disturbed()
	case k.snd.nxt != first:
		r.replied(k.clock.now)
	case r.left:
		r.alone(k.clock.now)
	}
	r.left = false
}

// noteAckHold takes the peer's announcement from a segment, before its una. What
// una acknowledges shows no round trip if the ACK may have waited.
func (k *KCP) noteAckHold(h *header, recovered bool) {
	if !k.cfg.ext.AwaitReplies {
		return
	}
	k.snd.rate.Waited = k.peer.ackHold > 0
	if h.cmd == cmdAck && !recovered {
		k.peer.ackHold = h.frg & ackHoldMask
		k.snd.rate.Waited = h.frg&ackWaited != 0
	}
}

// waitNoLonger takes the wait for a delayed ACK out of the time-out of the oldest
// segment if what the peer sends does not acknowledge it, although it left more
// than a round trip ago: the peer does not have it.
func (k *KCP) waitNoLonger() {
	if k.peer.ackHold == 0 {
		return
	}
	s, e := k.oldest(), &k.snd.rtt
	if s == nil || s.xmit != 1 || s.group == nil {
		return
	}
	if k.clock.now.diff(s.ts) <= e.srtt+max(e.srtt/4, 4*e.rttvar, minAckDelay) {
		return
	}
	if at := s.ts + k.firstTimeout(s.rto); at.before(s.resendTS) {
		k.snd.timeouts.remove(s)
		s.resendTS = at
		if at.before(k.clock.now) {
			s.resendTS = k.clock.now
		}
		k.snd.timeouts.add(s)
	}
}
