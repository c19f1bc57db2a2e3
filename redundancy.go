package kcp

import "math"

// Redundancy for thin streams: packets that leave anyway carry recent segments
// that are not acknowledged once more. To any receiver these are duplicates,
// which it drops. The next packet then makes up for a loss, instead of a
// retransmission a round trip later. What follows the lost segment, and would
// have to wait for it, is not delayed either.

const (
	// repeatSize is the largest payload that is copied, in bytes. A larger
	// one leaves little room in its packets, and gains less for its bytes.
	repeatSize = 256
	// repeatReach is how many segments are examined from the newest in flight
	// backwards, and retransmitsReach from the oldest forwards. That bounds the
	// cost of a flush.
	repeatReach      = 16
	retransmitsReach = 4
	// packetOverhead is what IPv4 and UDP add to a packet, in bytes.
	packetOverhead = 28
)

// flushRedundant puts redundant copies into the packet under construction, if
// there is one. The segments from first on have just been sent for the first
// time.
func (k *KCP) flushRedundant(h *header, first seq) {
	if len(k.out.packet) == 0 || !k.cfg.ext.EarlyRepair && k.cfg.ext.Redundancy == 0 || k.snd.validation != nil {
		return
	}
	if k.out.last == nil && k.rateWait() > 0 {
		return // ACKs do not wait for the cap, but what would fill their packet does
	}
	r := &k.snd.redundancy
	r.Add(int(k.cfg.ext.Redundancy) * (len(k.out.packet) + packetOverhead) / 100)
	if k.cfg.ext.EarlyRepair {
		k.repeatRetransmits(h, first)
	}
	if k.cfg.ext.Redundancy == 0 && !r.LossyRecently(k.snd.nxt) || k.waiting() {
		return // nothing is being lost, or the stream is not thin
	}
	for i, sn := 0, first-1; i < repeatReach && !sn.Before(k.snd.una); i, sn = i+1, sn-1 {
		s := k.snd.ring.at(sn)
		if !k.mayRepeat(s) || k.cfg.ext.Redundancy == 0 && s.repeats > 0 {
			continue
		}
		if r.Credit < s.size() {
			return
		}
		r.Credit -= s.size()
		k.repeat(s, h)
	}
}

// repeatRetransmits sends one redundant copy of each segment that was
// retransmitted because it was lost. Losses come together, and all later data
// waits for these segments. They are few, so they may overdraw the credit.
func (k *KCP) repeatRetransmits(h *header, first seq) {
	for i, sn := 0, k.snd.una; i < retransmitsReach && sn.Before(first); i, sn = i+1, sn+1 {
		if s := k.snd.ring.at(sn); k.mayRepeat(s) && s.xmit > 1 && s.repeats == 0 {
			k.snd.redundancy.Credit -= s.size()
			k.repeat(s, h)
		}
	}
}

// mayRepeat reports whether a redundant copy of s, which may be nil, can be put
// into the packet under construction.
func (k *KCP) mayRepeat(s *sendSegment) bool {
	return s != nil && s.ts != k.clock.now && s.repeated != k.clock.now && !k.snd.loss.suspect(s) &&
		len(s.data) <= repeatSize && k.fits(s.size(), k.cfg.mtu)
}

// repeat puts a redundant copy of s into the packet under construction.
// Time-outs and loss detection take no notice of it: the last transmission is
// still the one before.
func (k *KCP) repeat(s *sendSegment, h *header) {
	s.repeated = k.clock.now
	s.repeats = uint8(min(int(s.repeats)+1, math.MaxUint8))
	k.putSegment(s, h)
	k.counters.Repeats++
	k.cfg.trace.repeated(s)
}
