package kcp

import "math"

// Redundancy for thin streams: recent segments that are not acknowledged are
// put once more into packets that leave anyway. To any receiver they are
// duplicates, which it drops. A loss is then repaired by the next packet
// instead of a round trip later, and what follows it, which would have to wait
// for it, is not delayed either.

const (
	// repeatSize is the largest payload that is repeated, in bytes. What is
	// larger leaves little room in its packets, and pays less for its bytes.
	repeatSize = 256
	// repeatReach is how many segments are looked at from either end of what is
	// in flight, so that the cost of a flush is bounded.
	repeatReach  = 16
	repairsReach = 4
	// repeatBurst is the most that may be saved up to repeat, in bytes.
	repeatBurst = 1024
	// repeatMemory is for how many segments a loss is remembered.
	repeatMemory = 48
	// repeatCredit is what each acknowledgement left out is worth to repeats,
	// in bytes: the 24 it would have taken, and a little of the packet that it
	// would sometimes have had for itself. So there is nothing to pay.
	repeatCredit = 28
	// packetOverhead is what IPv4 and UDP add to a packet.
	packetOverhead = 28
)

// redundancyBudget is the state of Extensions.Redundancy and EarlyRepair.
type redundancyBudget struct {
	credit int  // bytes that may be repeated
	until  seq  // losses count as recent before this sn is sent
	lossy  bool // there was a recent loss
}

// earn adds the worth of n acknowledgements that were left out.
func (r *redundancyBudget) earn(n int) { r.credit = min(r.credit+n*repeatCredit, repeatBurst) }

// lost notes that a segment was lost while next is the next one to be sent.
func (r *redundancyBudget) onLoss(next seq) { r.lossy, r.until = true, next+repeatMemory }

// lossyRecently reports whether there was a loss lately.
func (r *redundancyBudget) lossyRecently(next seq) bool {
	r.lossy = r.lossy && r.until.after(next)
	return r.lossy
}

// flushRedundant repeats segments in the packet under construction, if there is
// one. Those from first on have just been sent for the first time.
func (k *KCP) flushRedundant(h *header, first seq) {
	if len(k.out.packet) == 0 || !k.cfg.ext.EarlyRepair && k.cfg.ext.Redundancy == 0 || k.snd.validation != nil {
		return
	}
	r := &k.snd.redundancy
	r.credit = min(r.credit+int(k.cfg.ext.Redundancy)*(len(k.out.packet)+packetOverhead)/100, repeatBurst)
	if k.cfg.ext.EarlyRepair {
		k.repeatRepairs(h, first)
	}
	if k.cfg.ext.Redundancy == 0 && !r.lossyRecently(k.snd.nxt) || k.snd.nxt != k.snd.end {
		return // nothing is being lost, or this is not a thin stream
	}
	for i, sn := 0, first-1; i < repeatReach && !sn.before(k.snd.una); i, sn = i+1, sn-1 {
		s := k.snd.ring.at(sn)
		if !k.mayRepeat(s) || k.cfg.ext.Redundancy == 0 && s.repeats > 0 {
			continue
		}
		if r.credit < s.size() {
			return
		}
		r.credit -= s.size()
		k.repeat(s, h)
	}
}

// repeatRepairs repeats once what was sent again because it was lost. Losses
// come together, and everything waits for these segments. They are few, and
// are repeated on credit.
func (k *KCP) repeatRepairs(h *header, first seq) {
	for i, sn := 0, k.snd.una; i < repairsReach && sn.before(first); i, sn = i+1, sn+1 {
		if s := k.snd.ring.at(sn); k.mayRepeat(s) && s.xmit > 1 && s.repeats == 0 {
			k.snd.redundancy.credit -= s.size()
			k.repeat(s, h)
		}
	}
}

// mayRepeat reports whether s, which may be nil, can be repeated in the packet
// under construction.
func (k *KCP) mayRepeat(s *sendSegment) bool {
	return s != nil && s.ts != k.clock.now && s.repeated != k.clock.now && !k.snd.loss.suspect(s) &&
		len(s.data) <= repeatSize && len(k.out.packet)+s.size() <= k.cfg.mtu
}

// repeat puts s into the packet under construction once more. To time-outs and
// loss detection its last transmission is still the one before.
func (k *KCP) repeat(s *sendSegment, h *header) {
	s.repeated = k.clock.now
	s.repeats = uint8(min(int(s.repeats)+1, math.MaxUint8))
	k.putSegment(s, h)
	k.counters.Repeats++
}
