package kcp

import "github.com/arqnet/kcp/internal/amplification"

// Address validation (RFC 9000 §8): what internal/amplification decides is done. A state
// machine without a limit has a peer whose address is validated.

// limitUnvalidated applies the anti-amplification limit to a peer whose address
// is not validated. Each packet to it has overhead bytes beside its segments.
// Acknowledgements to a legacy peer are withheld at first.
func (k *KCP) limitUnvalidated(overhead int, legacy bool) {
	k.snd.validation = amplification.New(overhead, legacy, k.clock.now)
}

// validation returns the limit; nil: there is none.
func (k *KCP) validation() *amplification.Limit { return k.snd.validation }

// holdsAcks reports whether acknowledgements to the peer are withheld for now.
func (k *KCP) holdsAcks() bool {
	v := k.snd.validation
	return v != nil && v.Withholds(k.snd.inFlight > 0, k.clock.now)
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

// maySend reports whether the credit allows n bytes more, at the end of the
// packet under construction or in a new one.
func (k *KCP) maySend(n int) bool {
	v := k.snd.validation
	return v == nil || v.Allows(k.cost(n, k.maxPacket()))
}

// cost returns how many bytes on the wire n more bytes take. They include the
// overhead of a new packet if they do not fit into the present one, which may
// have size bytes.
func (k *KCP) cost(n, size int) int {
	if k.fits(n, size) {
		return n
	}
	return n + k.snd.validation.Overhead()
}

// charge takes from the credit n bytes that are about to be put into a packet.
// They are put into one of size bytes at most.
func (k *KCP) charge(n, size int) {
	k.snd.validation.Charge(k.cost(n, size))
}

// mayBegin reports whether the credit allows a new data segment. pending is the
// bytes of segments admitted before it that were not charged yet.
func (k *KCP) mayBegin(s *sendSegment, pending int) bool {
	return k.snd.validation.MayBegin(pending+s.size(), k.snd.nxt != k.snd.una)
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
// are queued in. One to an address that is not validated may be cut short.
func (k *KCP) firstSize(n int) int {
	v := k.snd.validation
	if v == nil || k.snd.una != k.snd.nxt {
		return k.cfg.mss
	}
	return v.FirstSize(min(n, k.cfg.mss), headerSize, k.holdsAcks())
}
