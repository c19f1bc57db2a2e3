package kcp

// Address validation (RFC 9000 §8). Anybody can open a session in the name of
// somebody else's address. Until the peer has shown that it gets what is sent
// to its address, at most three times as many bytes go there as have come from
// it (the anti-amplification limit, RFC 9000 §8.1), whatever they are.
//
// A peer shows it by an echo of something that only the packets sent to it tell.
// With the signals of this package that is a token or the argument of a PING.
// Every KCP peer echoes the ts of a segment in its ACK, which nobody can guess
// where the clock begins at a random time. snd_una and sequence numbers prove
// nothing: they begin at 0.

const (
	// amplificationLimit is how many bytes may go to an address that is not
	// validated for each byte that has come from it (RFC 9000 §8.1).
	amplificationLimit = 3
	// maxSendCredit bounds what may be saved up, in bytes.
	maxSendCredit = 1 << 20
	// firstShare is the part of the credit that the first segment may take, so
	// that it can be repeated: without its ACK nothing else can be sent.
	firstShare = 6
	// ackAfter is how many bytes a legacy peer has to send before it is
	// acknowledged, while there is something in flight to it. Until then it
	// repeats what it has sent, so that there is credit for the segment that
	// validates its address, however often that is lost. A peer with nothing left
	// to repeat would be silent, and the session could be stuck without credit.
	// For ackHold milliseconds that holds without anything in flight too: the
	// application may be about to answer.
	ackAfter = 200
	ackHold  = 250
	// echoMemory is how many transmissions of data segments are remembered, so
	// that an ACK of any of them validates the address.
	echoMemory = 8
)

// addressValidation is the state of a peer whose address is not validated. A
// state machine without one has a validated peer.
type addressValidation struct {
	credit   int // bytes that may still be sent
	overhead int // bytes that a packet has beside its segments
	unacked  int // bytes still to come before the peer is acknowledged
	begun    seq // when the first packet came
	total    int // bytes that have come, up to legacyBytes

	sent  [echoMemory]transmissionTime
	count int  // transmissions, of which sent has the last
	done  bool // one of them was echoed
}

// transmissionTime names a transmission by what an ACK of it has to echo.
type transmissionTime struct{ sn, ts seq }

// limitUnvalidated applies the limit to a peer whose address is not validated.
// Each packet to it has overhead bytes beside its segments. A legacy peer is
// acknowledged late.
func (k *KCP) limitUnvalidated(overhead int, legacy bool) {
	k.snd.validation = &addressValidation{overhead: overhead, begun: k.clock.now}
	if legacy {
		k.snd.validation.unacked = ackAfter
	}
}

// acknowledgeAtOnce ends the wait for acknowledgements: the peer has proved to
// be no legacy peer.
func (k *KCP) acknowledgeAtOnce() {
	if k.snd.validation != nil {
		k.snd.validation.unacked = 0
	}
}

// received notes a packet of n bytes from the peer. It reports whether the peer's
// address is not validated.
func (k *KCP) received(n int) bool {
	if k.snd.validation == nil {
		return false
	}
	k.snd.validation.received(n)
	return true
}

// spendCredit takes n bytes for a packet that the machine does not make. It
// reports false if they may not be sent.
func (k *KCP) spendCredit(n int) bool { return k.snd.validation == nil || k.snd.validation.take(n) }

// overdrawn reports whether more has been put out than may be sent.
func (k *KCP) overdrawn() bool { return k.snd.validation != nil && k.snd.validation.credit < 0 }

// echoed reports whether the peer has just shown that it gets what is sent to its
// address.
func (k *KCP) echoed() bool { return k.snd.validation != nil && k.snd.validation.done }

// received adds the credit for a packet of n bytes from the peer's address.
func (v *addressValidation) received(n int) {
	v.credit = min(v.credit+amplificationLimit*n, maxSendCredit)
	v.unacked = max(v.unacked-n, 0)
	v.total = min(v.total+n, legacyBytes)
}

// holdsAcks reports whether the peer is not to be acknowledged yet.
func (k *KCP) holdsAcks() bool {
	v := k.snd.validation
	return v != nil && v.unacked > 0 && (k.snd.inFlight > 0 || k.clock.now-v.begun < ackHold)
}

// unaToSend returns the una of what is sent.
func (k *KCP) unaToSend() seq {
	if k.holdsAcks() {
		return 0
	}
	return k.rcv.nxt
}

// validateAddress lifts the limit, and has the peer told of what it has not yet been
// acknowledged.
func (k *KCP) validateAddress() {
	if k.holdsAcks() {
		k.peer.probe |= sendWins
	}
	k.snd.validation = nil
}

// take takes n bytes from the credit. It reports false, and takes nothing, if
// that has less.
func (v *addressValidation) take(n int) bool {
	if v.credit < n {
		return false
	}
	v.credit -= n
	return true
}

// transmitted notes a transmission of a data segment.
func (v *addressValidation) transmitted(sn, ts seq) {
	v.sent[v.count%echoMemory] = transmissionTime{sn, ts}
	v.count++
}

// acknowledged reports whether an ACK echoes a transmission. Another one, and
// una, may be guessed, and count for nothing until the address is validated.
func (v *addressValidation) acknowledged(sn, ts seq) bool {
	for _, s := range v.sent[:min(v.count, echoMemory)] {
		if s == (transmissionTime{sn, ts}) {
			v.done = true
			return true
		}
	}
	return false
}

// maySend reports whether n bytes more may be sent, at the end of the packet
// under construction or in a new one.
func (k *KCP) maySend(n int) bool {
	v := k.snd.validation
	return v == nil || v.credit >= k.cost(n)
}

// cost returns how many bytes on the wire n bytes more take.
func (k *KCP) cost(n int) int {
	if len(k.out.packet) > 0 && len(k.out.packet)+n <= k.cfg.mtu {
		return n
	}
	return n + k.snd.validation.overhead
}

// charge takes n bytes, which are about to be put into a packet, from the credit.
func (k *KCP) charge(n int) {
	if v := k.snd.validation; v != nil {
		v.credit -= k.cost(n)
	}
}

// mayBegin reports whether a new data segment may be sent, behind others of
// pending bytes of which that is not yet known. Half of the credit is left for
// repetitions, unless this is the first segment.
func (k *KCP) mayBegin(s *sendSegment, pending int) bool {
	v := k.snd.validation
	if v == nil {
		return true
	}
	need := pending + s.size() + v.overhead
	if k.snd.nxt != k.snd.una {
		need *= 2
	}
	return need <= v.credit
}

// withinCredit takes those out of the expired segments that may not be sent again
// now. To an address that is not validated, only the oldest is: its ACK is what
// is needed.
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

// firstSize returns the payload of the first of the segments that n bytes are
// queued in. The first one to an address that is not validated is cut, if need
// be, so that it can be repeated several times: the others may have to wait for
// its ACK. While the peer goes on repeating, twice is enough.
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
