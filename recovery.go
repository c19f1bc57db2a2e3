package kcp

import (
	"slices"
)

// Loss detection and recovery beyond the reference: what the acknowledgements
// tell is used as soon as they tell it, what they do not tell is asked for with
// one packet, and what was done for nothing is not done again.

const (
	// reoWndFraction is the part of a round trip by which a packet may be late
	// without being taken for lost, once a later one has been acknowledged. It
	// grows by the same, up to maxReoWndMult times (RFC 8985 §6.2).
	reoWndFraction = 4
	maxReoWndMult  = 3
	// reoWndPersistRounds is after how many round trips without a needless repair the
	// tolerance shrinks (RFC 8985 §6.2).
	reoWndPersistRounds = 16
	// reorderingLeast is by how many needless repairs must outnumber the needed
	// ones to show disorder, and reorderingMost the most that is counted.
	reorderingLeast = 6
	reorderingMost  = 12
	// retransmitMemory is how many segments are remembered that una has taken out.
	retransmitMemory = 8
	// outageResendFirst is how many segments are sent again at the first sign of life
	// after an outage, and outageResendGrowth how many for each acknowledged one: a
	// slow start through what was in flight.
	outageResendFirst  = 16
	outageResendGrowth = 2
)

// retransmitRecord is a segment that was sent again, and of which una alone has told that
// it has arrived.
type retransmitRecord struct {
	sn, ts seq
	early  bool // not by a time-out
	second bool // the last transmission was the second one
	valid  bool
	tx     sendRecord // of the last transmission
}

// recovery is the state of Extensions.EarlyRetransmit and OutageProbe.
type recovery struct {
	// Reordering.
	reoWndMult         uint32                              // 0: none was seen lately; else what reoWndFraction grows by
	spurious           int                                 // grows with needless repairs, shrinks with needed ones
	reoWndRaisedAt     seq                                 // when tolerance grew last
	reoWndPersistUntil seq                                 // when it shrinks
	retransmits        *[retransmitMemory]retransmitRecord // nil before the first
	next               int                                 // place of the next one in repairs
	open               int                                 // valid ones in repairs

	// Of segments that were taken for lost, since there was last none in flight.
	episode struct {
		resent, needless, needed int
		vague                    int // acknowledged by the present input, without telling which transmission
	}

	// Outages.
	aliveAt      seq  // when the last good packet came
	inOutage     bool // nothing comes although there is reason to
	probeAt      seq  // when the next probe leaves, while silent
	resendFrom   seq  // [revived, resendEnd) was in flight in an outage
	resendEnd    seq  // and is not yet sent again
	resendBudget int  // how many of them may be

	credit resendCredit
}

// recordRetransmit notes s, which una takes out, for an ACK that may come yet and tell
// which transmission has arrived.
func (k *KCP) recordRetransmit(s *sendSegment) {
	r := &k.snd.recovery
	if !k.cfg.ext.EarlyRetransmit {
		return
	}
	if s.xmit == 2 && k.clock.micros-s.tx.at < k.snd.rate.minRTT {
		r.episode.needless++ // it cannot have come and gone
	} else {
		r.episode.vague++
	}
	if r.retransmits == nil {
		r.retransmits = new([retransmitMemory]retransmitRecord)
	}
	p := &r.retransmits[r.next]
	if !p.valid {
		r.open++
	}
	*p = retransmitRecord{s.sn, s.ts, s.repaired, s.xmit == 2, true, s.tx}
	r.next = (r.next + 1) % retransmitMemory
}

// matchLateAck takes the ACK of sn as sent at ts where una has taken sn out before.
func (k *KCP) matchLateAck(sn, ts seq) {
	r := &k.snd.recovery
	if r.open == 0 {
		return
	}
	for i := range r.retransmits {
		p := &r.retransmits[i]
		if !p.valid || p.sn != sn {
			continue
		}
		p.valid = false
		r.open--
		switch {
		case ts == p.ts:
			r.clear(false)
			k.onGenuine()
			k.snd.rate.arrived(&p.tx, k.clock.micros-p.tx.at)
		case ts.before(p.ts):
			r.clear(p.second)
			k.onSpurious(p.early)
		}
	}
}

// onSpurious notes that the last retransmission of a segment was for nothing,
// because an earlier transmission has arrived (the Eifel detection, RFC 3522;
// the ts of a PUSH comes back in its ACK). early says that it was not due to a
// time-out.
func (k *KCP) onSpurious(early bool) {
	k.counters.SpuriousRetransmits++
	k.reordered(early)
}

// reordered notes that a segment was taken for lost, or sent again, and had
// arrived.
func (k *KCP) reordered(early bool) {
	r := &k.snd.recovery
	r.spurious = min(r.spurious+1, reorderingMost)
	if !k.cfg.ext.EarlyRetransmit || !early {
		return
	}
	if srtt := seq(k.snd.rtt.srtt); r.reoWndMult == 0 || !k.clock.now.before(r.reoWndRaisedAt+srtt) {
		r.reoWndMult = min(r.reoWndMult+1, maxReoWndMult)
		r.reoWndRaisedAt = k.clock.now
	}
	r.reoWndPersistUntil = k.clock.now + seq(reoWndPersistRounds*k.snd.rtt.srtt)
}

// onGenuine notes that the last retransmission of a segment has been the one to
// arrive.
func (k *KCP) onGenuine() {
	k.snd.recovery.spurious = max(k.snd.recovery.spurious-1, 0)
}

// reorderingDominates reports whether more repairs have been needless than needed: that
// packets overtake each other rather than that acknowledgements are lost.
func (r *recovery) reorderingDominates() bool { return r.spurious >= reorderingLeast }

// clear files a segment that the present input has acknowledged vaguely.
func (r *recovery) clear(needless bool) {
	e := &r.episode
	if e.vague == 0 {
		return // an input before this one
	}
	e.vague--
	r.count(needless)
}

// count files a segment that was sent again and is acknowledged now.
func (r *recovery) count(needless bool) {
	if needless {
		r.episode.needless++
	} else {
		r.episode.needed++
	}
}

// notifyRecovered tells the congestion controller, after an input, when nothing is
// in flight any more that was sent again.
func (k *KCP) notifyRecovered(s *CongestionState) {
	e := &k.snd.recovery.episode
	e.needed += e.vague
	e.vague = 0
	if e.resent == 0 || e.needless+e.needed < e.resent {
		return
	}
	spurious := e.needed == 0
	e.resent, e.needless, e.needed = 0, 0, 0
	if c, ok := k.snd.cc.(RecoveryControl); ok {
		c.OnRecovered(s, spurious)
	}
}

// decayReoWnd lowers the tolerance where there was nothing needless for a while.
func (k *KCP) decayReoWnd() {
	r := &k.snd.recovery
	if r.reoWndMult > 0 && k.clock.now.after(r.reoWndPersistUntil) {
		r.reoWndMult /= 2
		r.reoWndPersistUntil = k.clock.now + seq(reoWndPersistRounds*k.snd.rtt.srtt)
	}
}

// reoWnd returns by how much a packet may be late.
func (k *KCP) reoWnd() seq {
	return seq(min((1+k.snd.recovery.reoWndMult)*uint32(k.snd.rtt.srtt)/reoWndFraction, uint32(k.snd.rtt.srtt)))
}

// tailLossProbe takes those out of the expired segments that are not to be sent
// again yet. A first time-out may just mean that an acknowledgement was lost,
// or is late: one packet, with the newest of them, is enough to learn what is
// missing (RFC 8985 §7). That does not hold for what acknowledgements of later
// segments count against.
func (k *KCP) tailLossProbe(expired []*sendSegment) []*sendSegment {
	if k.snd.recovery.inOutage || k.blackHoleSuspected() {
		return k.outageFilter(expired)
	}
	if len(expired) < 2 || k.cfg.fastResend == 0 {
		return expired
	}
	slices.SortFunc(expired, func(a, b *sendSegment) int { return int(b.sn.diff(a.sn)) })
	sent, room := expired[:0], k.cfg.mtu
	for _, s := range expired {
		if !s.early && s.xmit == 1 && s.fastack == 0 {
			if s.size() > room && room < k.cfg.mtu {
				s.resendTS = k.clock.now + seq(k.snd.rtt.rto)
				k.snd.timeouts.add(s)
				continue
			}
			room -= s.size()
		}
		sent = append(sent, s)
	}
	clear(expired[len(sent):])
	return sent
}

// outageFilter is tailLossProbe in an outage: the oldest segment is enough, beside the
// probes. A thousand senders that overwhelm a receiver would never let it come
// to rest if each repeated its window with every time-out. The same goes for
// what may be too large for the path, until that is known, if it cannot be sent in
// pieces.
func (k *KCP) outageFilter(expired []*sendSegment) []*sendSegment {
	sent := expired[:0]
	for _, s := range expired {
		if s.early || s.sn == k.snd.una || !k.snd.recovery.inOutage && (int(s.packet) <= k.snd.blackHole.watchAbove || k.doubtful(s)) {
			sent = append(sent, s)
			continue
		}
		s.resendTS = k.clock.now + seq(max(s.rto, k.cfg.ext.OutageProbe))
		k.snd.timeouts.add(s)
	}
	clear(expired[len(sent):])
	return sent
}

// detectOutage begins to probe when a segment has timed out again and nothing
// at all has come: an outage. Time-outs back off, and might let the end of it
// go by unnoticed for seconds.
func (k *KCP) detectOutage() {
	r := &k.snd.recovery
	if k.cfg.ext.OutageProbe == 0 || r.inOutage {
		return
	}
	if uint32(k.clock.now-r.aliveAt) >= max(2*k.snd.rtt.rto, k.cfg.ext.OutageProbe) {
		r.inOutage = true
		r.probeAt = k.clock.now + seq(k.cfg.ext.OutageProbe)
	}
}

// flushOutageProbe repeats the oldest segment in flight from time to time in silence.
func (k *KCP) flushOutageProbe(h *header) {
	r := &k.snd.recovery
	if !r.inOutage || k.clock.now.before(r.probeAt) {
		return
	}
	s := k.oldest()
	if s == nil {
		r.inOutage = false
		return
	}
	r.probeAt = k.clock.now + seq(k.cfg.ext.OutageProbe)
	if s.ts != k.clock.now && !k.snd.loss.suspect(s) && k.snd.validation == nil {
		k.repeat(s, h)
	}
}

// peerAlive notes a good packet, which has acknowledged so many segments. After
// an outage it has the segments that were in flight then sent again, in
// growing numbers, and not when their time-outs come.
func (k *KCP) peerAlive(acked int) {
	r := &k.snd.recovery
	r.aliveAt = k.clock.now
	r.credit.earn(acked)
	if r.inOutage {
		r.inOutage = false
		r.resendFrom, r.resendEnd, r.resendBudget = k.snd.una, k.snd.nxt, outageResendFirst
	}
	if r.resendFrom == r.resendEnd {
		return
	}
	r.resendBudget += outageResendGrowth * acked
	if r.resendFrom.before(k.snd.una) {
		r.resendFrom = k.snd.una
	}
	for r.resendBudget > 0 && r.resendFrom.before(r.resendEnd) {
		s := k.snd.ring.at(r.resendFrom)
		r.resendFrom++
		if s == nil || k.clock.now.diff(s.ts) < k.snd.rtt.srtt {
			continue // has arrived, or may be on its way
		}
		s.rto = k.snd.rtt.rto
		k.repairAt(s, k.clock.now)
		r.resendBudget--
	}
	if !r.resendFrom.before(r.resendEnd) {
		r.resendFrom = r.resendEnd
	}
}
