package kcp

// Address validation (RFC 9000 §8). Anyone can open a session with a forged
// source address. Until the peer has shown that it receives what is sent to its
// address, at most three times as many bytes are sent there as have arrived
// from it. All bytes count (anti-amplification limit, RFC 9000 §8.1).
//
// The peer shows it by echoing something that only the packets sent to it
// contain. For an extended peer that is a token or the argument of a PING.
// Every KCP peer echoes the ts of a segment in its ACK, which cannot be guessed
// if the clock begins at a random time. snd_una and sequence numbers prove
// nothing: they begin at 0.

const (
	// amplificationLimit is how many bytes may be sent to an address that is
	// not validated for each byte received from it (RFC 9000 §8.1).
	amplificationLimit = 3
	// maxSendCredit bounds the unused credit, in bytes.
	maxSendCredit = 1 << 20
	// firstShare limits the first segment to a sixth of the credit, so that it
	// can be retransmitted: until its ACK arrives nothing else can be sent.
	firstShare = 6
	// ackAfter is how many bytes a legacy peer must send before it is
	// acknowledged, while something is in flight to it. Until then it
	// retransmits, which earns credit for the segment that validates its
	// address, however often that is lost. A peer with nothing left to
	// retransmit would fall silent, and the session could be stuck without
	// credit. During the first ackHold milliseconds acknowledgements are
	// withheld even with nothing in flight: the application may be about to
	// reply.
	ackAfter = 200
	ackHold  = 250
	// echoMemory is how many transmissions of data segments are remembered. An
	// ACK of any of them validates the address.
	echoMemory = 8
	// answerPeriod is the time, in milliseconds, in which maxSignals requests of
	// the peer are answered.
	answerPeriod = 100
)

// addressValidation is the state of a peer whose address is not validated. A
// state machine without one has a validated peer.
type addressValidation struct {
	credit   int // bytes that may still be sent; negative: overdrawn
	overhead int // bytes that a packet has beside its segments
	unacked  int // bytes that must still arrive before the peer is acknowledged
	begun    seq // when the first packet arrived
	total    int // bytes that have arrived, up to legacyBytes

	sent  [echoMemory]transmissionTime // a ring of the latest transmissions
	count int                          // transmissions so far
	done  bool                         // an ACK has echoed one of them

	answers  int // requests taken since answered
	answered seq // when the present answerPeriod began
}

// transmissionTime identifies a transmission by what an ACK of it echoes.
type transmissionTime struct{ sn, ts seq }

// limitUnvalidated applies the anti-amplification limit to a peer whose address
// is not validated. Each packet to it has overhead bytes beside its segments.
// Acknowledgements to a legacy peer are withheld at first; see ackAfter.
func (k *KCP) limitUnvalidated(overhead int, legacy bool) {
	k.snd.validation = &addressValidation{overhead: overhead, begun: k.clock.now}
	if legacy {
		k.snd.validation.unacked = ackAfter
	}
}

// validation returns the state of a peer whose address is not validated; nil: it is.
func (k *KCP) validation() *addressValidation { return k.snd.validation }

// What follows may be called of nil, of which there is no limit.

// acknowledgeAtOnce stops withholding acknowledgements: the peer has turned out
// to be an extended one.
func (v *addressValidation) acknowledgeAtOnce() {
	if v != nil {
		v.unacked = 0
	}
}

// overdrawn reports whether more has been put into packets than may be sent.
func (v *addressValidation) overdrawn() bool { return v != nil && v.credit < 0 }

// echoed reports whether the peer has echoed a transmission, which validates
// its address, but validateAddress was not called yet.
func (v *addressValidation) echoed() bool { return v != nil && v.done }

// received adds the credit for a packet of n bytes from the peer's address. It reports
// whether there is a limit.
func (v *addressValidation) received(n int) bool {
	if v == nil {
		return false
	}
	v.credit = min(v.credit+amplificationLimit*n, maxSendCredit)
	v.unacked = max(v.unacked-n, 0)
	v.total = min(v.total+n, legacyBytes)
	return true
}

// take takes n bytes from the credit, for a packet that the machine does not build. It
// reports false, and takes nothing, if the credit is smaller.
func (v *addressValidation) take(n int) bool {
	if v == nil {
		return true
	}
	if v.credit < n {
		return false
	}
	v.credit -= n
	return true
}

// mayAnswer reports whether a request that arrives now is answered, and counts it.
func (v *addressValidation) mayAnswer(now seq) bool {
	if v.answers == 0 || now-v.answered >= answerPeriod {
		v.answers, v.answered = 0, now
	}
	if v.answers >= maxSignals {
		return false
	}
	v.answers++
	return true
}

// holdsAcks reports whether acknowledgements to the peer are withheld for now.
func (k *KCP) holdsAcks() bool {
	v := k.snd.validation
	return v != nil && v.unacked > 0 && (k.snd.inFlight > 0 || k.clock.now-v.begun < ackHold)
}

// unaToSend returns the una of the segments sent now.
func (k *KCP) unaToSend() seq {
	if k.holdsAcks() {
		return 0
	}
	return k.rcv.nxt
}

// validateAddress lifts the limit. If acknowledgements were withheld, the next
// flush sends a window update, whose una catches up on them.
func (k *KCP) validateAddress() {
	if k.holdsAcks() {
		k.peer.probe |= sendWins
	}
	k.snd.validation = nil
}

// transmitted records a transmission of a data segment.
func (v *addressValidation) transmitted(sn, ts seq) {
	v.sent[v.count%echoMemory] = transmissionTime{sn, ts}
	v.count++
}

// acknowledged reports whether an ACK echoes one of the latest transmissions.
// Any other ACK, and any una, may be guessed. They count for nothing until the
// address is validated.
func (v *addressValidation) acknowledged(sn, ts seq) bool {
	for _, s := range v.sent[:min(v.count, echoMemory)] {
		if s == (transmissionTime{sn, ts}) {
			v.done = true
			return true
		}
	}
	return false
}

// maySend reports whether the credit allows n bytes more, at the end of the
// packet under construction or in a new one.
func (k *KCP) maySend(n int) bool {
	v := k.snd.validation
	return v == nil || v.credit >= k.cost(n, k.maxPacket())
}

// cost returns how many bytes on the wire n more bytes take. They include the
// overhead of a new packet if they do not fit into the present one, which may
// have size bytes.
func (k *KCP) cost(n, size int) int {
	if k.fits(n, size) {
		return n
	}
	return n + k.snd.validation.overhead
}

// charge takes from the credit n bytes that are about to be put into a packet.
// They are put into one of size bytes at most.
func (k *KCP) charge(n, size int) {
	k.snd.validation.credit -= k.cost(n, size)
}

// mayBegin reports whether the credit allows a new data segment. pending is the
// bytes of segments admitted before it that were not charged yet. Half of the
// credit is left for retransmissions, unless nothing is in flight.
func (k *KCP) mayBegin(s *sendSegment, pending int) bool {
	v := k.snd.validation
	need := pending + s.size() + v.overhead
	if k.snd.nxt != k.snd.una {
		need *= 2
	}
	return need <= v.credit
}

// withinCredit returns those of the expired segments that may be retransmitted
// now, and restarts the timers of the others. To an address that is not
// validated only the oldest is retransmitted: its ACK is the one needed.
func (k *KCP) withinCredit(expired []*sendSegment) []*sendSegment {
	sent := expired[:0]
	for _, s := range expired {
		if s.sn == k.snd.una && k.maySend(s.size()) {
			sent = append(sent, s)
			continue
		}
		s.resendTS = k.clock.now + seq(s.rto)
		k.snd.timeouts.add(s)
	}
	clear(expired[len(sent):])
	return sent
}

// firstSize returns the payload size of the first of the segments that n bytes
// are queued in. The first segment to an address that is not validated is cut
// short if need be, so that it can be sent several times: the others may have
// to wait for its ACK. While acknowledgements are withheld the peer keeps
// retransmitting, and earns credit, so credit for two transmissions is enough.
func (k *KCP) firstSize(n int) int {
	v := k.snd.validation
	if v == nil || k.snd.una != k.snd.nxt {
		return k.cfg.mss
	}
	header, size := v.overhead+headerSize, min(n, k.cfg.mss)
	if k.holdsAcks() && size <= v.credit/2-header {
		return size
	}
	return min(max(v.credit/firstShare-header, 1), size)
}
