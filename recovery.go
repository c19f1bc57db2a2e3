package kcp

import (
	"slices"
)

// Loss detection and recovery beyond the reference: what the acknowledgements
// tell is used as soon as they tell it, what they do not tell is asked for with
// one packet, and what was done for nothing is not done again.

const (
	// reorderShare is the part of a round trip by which a packet may be late
	// without being taken for lost, once a later one has been acknowledged. It
	// grows by the same, up to maxTolerance times (RFC 8985 §6.2).
	reorderShare = 4
	maxTolerance = 3
	// calmRounds is after how many round trips without a needless repair the
	// tolerance shrinks (RFC 8985 §6.2).
	calmRounds = 16
	// disorderLeast is by how many needless repairs must outnumber the needed
	// ones to show disorder, and disorderMost the most that is counted.
	disorderLeast = 6
	disorderMost  = 12
	// repairMemory is how many segments are remembered that una has taken out.
	repairMemory = 8
	// reviveFirst is how many segments are sent again at the first sign of life
	// after an outage, and reviveGrowth how many for each acknowledged one: a
	// slow start through what was in flight.
	reviveFirst  = 16
	reviveGrowth = 2
)

// repair is a segment that was sent again, and of which una alone has told that
// it has arrived.
type repair struct {
	sn, ts seq
	early  bool // not by a time-out
	second bool // the last transmission was the second one
	valid  bool
	tx     sendRecord // of the last transmission
}

// recovery is the state of Extensions.EarlyRetransmit and OutageProbe.
type recovery struct {
	// Reordering.
	tolerance uint32                // 0: none was seen lately; else what reorderShare grows by
	needless  int                   // grows with needless repairs, shrinks with needed ones
	raised    seq                   // when tolerance grew last
	calm      seq                   // when it shrinks
	repairs   *[repairMemory]repair // nil before the first
	next      int                   // place of the next one in repairs
	open      int                   // valid ones in repairs

	// Of segments that were taken for lost, since there was last none in flight.
	episode struct {
		resent, needless, needed int
		vague                    int // acknowledged by the present input, without telling which transmission
	}

	// Outages.
	heardAt seq  // when the last good packet came
	silent  bool // nothing comes although there is reason to
	probeAt seq  // when the next probe leaves, while silent
	revived seq  // [revived, lastSn) was in flight in an outage
	lastSn  seq  // and is not yet sent again
	budget  int  // how many of them may be

	credit resendCredit
}

// remember notes s, which una takes out, for an ACK that may come yet and tell
// which transmission has arrived.
func (k *KCP) remember(s *sendSegment) {
	r := &k.recovery
	if !k.ext.EarlyRetransmit {
		return
	}
	if s.xmit == 2 && k.micros-s.tx.at < k.rate.minRTT {
		r.episode.needless++ // it cannot have come and gone
	} else {
		r.episode.vague++
	}
	if r.repairs == nil {
		r.repairs = new([repairMemory]repair)
	}
	p := &r.repairs[r.next]
	if !p.valid {
		r.open++
	}
	*p = repair{s.sn, s.ts, s.repaired, s.xmit == 2, true, s.tx}
	r.next = (r.next + 1) % repairMemory
}

// recall takes the ACK of sn as sent at ts where una has taken sn out before.
func (k *KCP) recall(sn, ts seq) {
	r := &k.recovery
	if r.open == 0 {
		return
	}
	for i := range r.repairs {
		p := &r.repairs[i]
		if !p.valid || p.sn != sn {
			continue
		}
		p.valid = false
		r.open--
		switch {
		case ts == p.ts:
			r.clear(false)
			k.needed()
			k.rate.arrived(&p.tx, k.micros-p.tx.at)
		case ts.before(p.ts):
			r.clear(p.second)
			k.needless(p.early)
		}
	}
}

// needless notes that the last retransmission of a segment was for nothing,
// because an earlier transmission has arrived (the Eifel detection, RFC 3522;
// the ts of a PUSH comes back in its ACK). early says that it was not due to a
// time-out.
func (k *KCP) needless(early bool) {
	k.counters.SpuriousRetransmits++
	k.reordered(early)
}

// reordered notes that a segment was taken for lost, or sent again, and had
// arrived.
func (k *KCP) reordered(early bool) {
	r := &k.recovery
	r.needless = min(r.needless+1, disorderMost)
	if !k.ext.EarlyRetransmit || !early {
		return
	}
	if srtt := seq(k.rtt.srtt); r.tolerance == 0 || !k.now.before(r.raised+srtt) {
		r.tolerance = min(r.tolerance+1, maxTolerance)
		r.raised = k.now
	}
	r.calm = k.now + seq(calmRounds*k.rtt.srtt)
}

// needed notes that the last retransmission of a segment has been the one to
// arrive.
func (k *KCP) needed() {
	k.recovery.needless = max(k.recovery.needless-1, 0)
}

// disorder reports whether more repairs have been needless than needed: that
// packets overtake each other rather than that acknowledgements are lost.
func (r *recovery) disorder() bool { return r.needless >= disorderLeast }

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

// tellRecovered tells the congestion controller, after an input, when nothing is
// in flight any more that was sent again.
func (k *KCP) tellRecovered(s *CongestionState) {
	e := &k.recovery.episode
	e.needed += e.vague
	e.vague = 0
	if e.resent == 0 || e.needless+e.needed < e.resent {
		return
	}
	spurious := e.needed == 0
	e.resent, e.needless, e.needed = 0, 0, 0
	if c, ok := k.cc.(RecoveryControl); ok {
		c.OnRecovered(s, spurious)
	}
}

// calmDown lowers the tolerance where there was nothing needless for a while.
func (k *KCP) calmDown() {
	r := &k.recovery
	if r.tolerance > 0 && k.now.after(r.calm) {
		r.tolerance /= 2
		r.calm = k.now + seq(calmRounds*k.rtt.srtt)
	}
}

// reorderWait returns by how much a packet may be late.
func (k *KCP) reorderWait() seq {
	return seq(min((1+k.recovery.tolerance)*uint32(k.rtt.srtt)/reorderShare, uint32(k.rtt.srtt)))
}

// holdBack takes those out of the expired segments that are not to be sent
// again yet. A first time-out may just mean that an acknowledgement was lost,
// or is late: one packet, with the newest of them, is enough to learn what is
// missing (RFC 8985 §7). That does not hold for what acknowledgements of later
// segments count against.
func (k *KCP) holdBack(expired []*sendSegment) []*sendSegment {
	if k.recovery.silent || k.suspicious() {
		return k.holdSilent(expired)
	}
	if len(expired) < 2 || k.fastResend == 0 {
		return expired
	}
	slices.SortFunc(expired, func(a, b *sendSegment) int { return int(b.sn.diff(a.sn)) })
	sent, room := expired[:0], k.mtu
	for _, s := range expired {
		if !s.early && s.xmit == 1 && s.fastack == 0 {
			if s.size() > room && room < k.mtu {
				s.resendTS = k.now + seq(k.rtt.rto)
				k.timeouts.add(s)
				continue
			}
			room -= s.size()
		}
		sent = append(sent, s)
	}
	clear(expired[len(sent):])
	return sent
}

// holdSilent is holdBack in an outage: the oldest segment is enough, beside the
// probes. A thousand senders that overwhelm a receiver would never let it come
// to rest if each repeated its window with every time-out. The same goes for
// what may be too large for the path, until that is known, if it cannot be sent in
// pieces.
func (k *KCP) holdSilent(expired []*sendSegment) []*sendSegment {
	sent := expired[:0]
	for _, s := range expired {
		if s.early || s.sn == k.sndUna || !k.recovery.silent && (int(s.packet) <= k.sizes.above || k.doubtful(s)) {
			sent = append(sent, s)
			continue
		}
		s.resendTS = k.now + seq(max(s.rto, k.ext.OutageProbe))
		k.timeouts.add(s)
	}
	clear(expired[len(sent):])
	return sent
}

// watchSilence begins to probe when a segment has timed out again and nothing
// at all has come: an outage. Time-outs back off, and might let the end of it
// go by unnoticed for seconds.
func (k *KCP) watchSilence() {
	r := &k.recovery
	if k.ext.OutageProbe == 0 || r.silent {
		return
	}
	if uint32(k.now-r.heardAt) >= max(2*k.rtt.rto, k.ext.OutageProbe) {
		r.silent = true
		r.probeAt = k.now + seq(k.ext.OutageProbe)
	}
}

// flushOutageProbe repeats the oldest segment in flight from time to time in silence.
func (k *KCP) flushOutageProbe(h *header) {
	r := &k.recovery
	if !r.silent || k.now.before(r.probeAt) {
		return
	}
	s := k.oldest()
	if s == nil {
		r.silent = false
		return
	}
	r.probeAt = k.now + seq(k.ext.OutageProbe)
	if s.ts != k.now && !k.loss.suspect(s) && k.validation == nil {
		k.repeat(s, h)
	}
}

// heardPeer notes a good packet, which has acknowledged so many segments. After
// an outage it has the segments that were in flight then sent again, in
// growing numbers, and not when their time-outs come.
func (k *KCP) heardPeer(acked int) {
	r := &k.recovery
	r.heardAt = k.now
	r.credit.earn(acked)
	if r.silent {
		r.silent = false
		r.revived, r.lastSn, r.budget = k.sndUna, k.sndNxt, reviveFirst
	}
	if r.revived == r.lastSn {
		return
	}
	r.budget += reviveGrowth * acked
	if r.revived.before(k.sndUna) {
		r.revived = k.sndUna
	}
	for r.budget > 0 && r.revived.before(r.lastSn) {
		s := k.snd.at(r.revived)
		r.revived++
		if s == nil || k.now.diff(s.ts) < k.rtt.srtt {
			continue // has arrived, or may be on its way
		}
		s.rto = k.rtt.rto
		k.repairAt(s, k.now)
		r.budget--
	}
	if !r.revived.before(r.lastSn) {
		r.revived = r.lastSn
	}
}
