package machine

import (
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// Delayed ACK (RFC 1122 §4.2.3.2), Extensions.ThinAcks. The reference answers
// every PUSH with an ACK of its own, at once. Most of these ACKs say nothing
// beyond the una of the same packet, and the packet around them costs more than
// they do. Usually another packet is about to leave anyway.

// ackedRecently reports whether sn, which the peer has retransmitted, was
// acknowledged less than half a round trip ago. If not, it records that it is
// acknowledged now. A segment below una needs no ACK of its own, and is not
// looked up.
func (k *KCP) ackedRecently(sn Seq) bool {
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

// flushEarlyAcks puts out an ACK for every segment that una does not cover. Of
// the other ACKs, if there are any, it leaves the one with the oldest ts
// (RFC 7323 §4.3) to flushCoveredAck.
func (k *KCP) flushEarlyAcks(h *wire.Header) {
	p := &k.rcv.ackPolicy
	covered := k.rcv.acks[:0]
	for _, a := range k.rcv.acks {
		switch {
		case !a.SN.Before(k.rcv.nxt):
			k.putAck(h, a, 0)
			p.Segments--
		case len(covered) == 0:
			covered = append(covered, a)
		case a.TS.Before(covered[0].TS):
			covered[0] = a
		}
	}
	k.rcv.acks = covered
	k.snd.redundancy.Earn(int(p.Segments))
	p.Urgent = false
	p.Segments, p.Bytes = 0, 0
	if p.Replies.Hold > 0 && len(covered) > 0 && !p.SampledRecently(k.clock.now, Seq(k.snd.rtt.srtt)) {
		k.rcv.acks = covered[:0]
		k.putAck(h, covered[0], p.Announce(k.clock.now)) // in front, so that the peer reads it before any una
	}
}

// flushCoveredAck puts out the one ACK that is left of the segments below una.
// It says no more than una does, except the time. It leaves in three cases:
//   - No other segment carries una: bare says that this flush has put out
//     nothing but signals.
//   - The peer should take a round-trip sample again. One for each round trip
//     is enough (RFC 6298 §3).
//   - A gap was filled, and the peer may want to know by which transmission.
func (k *KCP) flushCoveredAck(h *wire.Header, bare bool) {
	p := &k.rcv.ackPolicy
	if p.Filled {
		k.rcv.acks = append(k.rcv.acks[:0], p.Filler)
	}
	if len(k.rcv.acks) == 0 {
		return
	}
	a := k.rcv.acks[0]
	k.rcv.acks = k.rcv.acks[:0]
	if p.SampledRecently(k.clock.now, Seq(k.snd.rtt.srtt)) && !bare && !p.Filled {
		return
	}
	k.putAck(h, a, p.Announce(k.clock.now))
}

// waitNoLonger takes the wait for a delayed ACK out of the time-out of the oldest
// segment if what the peer sends does not acknowledge it, although it left more
// than a round trip ago: the peer does not have it.
func (k *KCP) waitNoLonger() {
	s, e := k.snd.oldest(), &k.snd.rtt
	if s == nil || s.xmit != 1 || s.group == nil {
		return
	}
	if k.clock.now.Diff(s.ts) <= e.srtt+max(e.srtt/4, e.variation(), recovery.MinAckDelay) {
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

// repeatAcks puts out once more the ACKs of packets before this one. They stand
// in front of the new ACKs, because kcp-go takes its round-trip sample from the
// last ACK of a packet.
func (k *KCP) repeatAcks(h *wire.Header) {
	if len(k.rcv.acks) == 0 || k.snd.validation != nil {
		return
	}
	k.rcv.ackRepeats.Repeat(k.rcv.nxt, k.clock.now, func(a recovery.Ack) { k.putAck(h, a, 0) })
}
