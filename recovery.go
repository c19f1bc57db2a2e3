package kcp

import (
	"slices"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/deliveryrate"
)

// Loss detection and recovery beyond the reference, after RACK-TLP (RFC 8985):
// fast retransmit that tolerates reordering, as soon as acknowledgements show a
// loss; a tail loss probe, one packet, if they show nothing; and undo of
// spurious retransmissions (RFC 3522, RFC 4015).

const (
	// The reordering window (RFC 8985 §6.2) is how late a packet may be without
	// being declared lost, once a later one is acknowledged. It is the part
	// 1/reoWndFraction of a round trip, and grows by the same up to
	// maxReoWndMult times.
	reoWndFraction = 4
	maxReoWndMult  = 3
	// reoWndPersistRounds is after how many round trips without a spurious
	// retransmission the reordering window shrinks. RFC 8985 §6.2 counts as
	// many recoveries.
	reoWndPersistRounds = 16
	// reorderingLeast is by how many the spurious retransmissions must
	// outnumber the genuine ones to show reordering. reorderingMost is the most
	// counted.
	reorderingLeast = 6
	reorderingMost  = 12
	// retransmitMemory is how many segments are remembered after una passed
	// them.
	retransmitMemory = 8
	// outageResendFirst is how many segments are retransmitted at the first
	// packet after an outage. outageResendGrowth is how many more for each
	// segment then acknowledged: a slow start through what was in flight.
	outageResendFirst  = 16
	outageResendGrowth = 2
	// beyondPackets is how many packets of new data leave in a round trip of an
	// outage although the congestion window is full; see beyondWindow.
	beyondPackets = 2
)

// retransmitRecord is a segment that was retransmitted and that only una has
// acknowledged: which of its transmissions arrived is not known yet.
type retransmitRecord struct {
	sn, ts seq
	early  bool // it was not retransmitted by a time-out
	second bool // the last transmission was the second one
	valid  bool
	tx     deliveryrate.Record // of the last transmission
}

// recovery is the state of Extensions.EarlyRetransmit, TailProbe and
// OutageProbe, and of retransmission credit.
type recovery struct {
	// Reordering. The RFC's reo_wnd_mult is reoWndMult + 1; 0: no reordering
	// was seen lately. spurious grows with every spurious retransmission and
	// shrinks with every genuine one.
	reoWndMult         uint32
	spurious           int
	reoWndRaisedAt     seq // when reoWndMult last grew
	reoWndPersistUntil seq // when reoWndMult shrinks

	// Ring of retransmissions that may turn out to have been spurious.
	retransmits *[retransmitMemory]retransmitRecord // nil before the first
	next, open  uint8                               // index of the next record; valid records

	// The present loss episode. resent counts the segments declared lost, and
	// the others those of them that are acknowledged, until all are. Those that
	// the present input acknowledged without showing which transmission arrived
	// are ambiguous.
	episode struct {
		resent, spurious, genuine int
		ambiguous                 int
	}

	// Outages.
	aliveAt      seq  // when the last good packet arrived
	inOutage     bool // segments time out and no packet arrives
	probeAt      seq  // when the next probe leaves, while inOutage
	resendFrom   seq  // [resendFrom, resendEnd) was in flight in an outage
	resendEnd    seq  // and is not yet retransmitted
	beyondAt     seq  // when beyondWindow allows a packet again; set by detectOutage
	resendBudget int  // how many of these segments may be retransmitted

	credit resendCredit // see retransmit.go
}

// recordRetransmit records s, which was retransmitted and which una
// acknowledges. An ACK may follow that shows which transmission has arrived.
func (k *KCP) recordRetransmit(s *sendSegment) {
	r := &k.snd.recovery
	if !k.cfg.ext.EarlyRetransmit {
		return
	}
	if s.xmit == 2 && k.clock.micros-s.tx.At < k.snd.rate.MinRTT {
		r.episode.spurious++ // too soon to be the reply to the retransmission
	} else {
		r.episode.ambiguous++
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

// matchLateAck handles the ACK of sn as sent at ts, after una has passed sn.
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
			r.resolve(false)
			k.onGenuine()
			k.snd.rate.OnDelivered(&p.tx, k.clock.micros-p.tx.At)
		case ts.Before(p.ts):
			r.resolve(p.second)
			k.onSpurious(p.early)
			k.cfg.trace.spurious(sn)
		}
	}
}

// onSpurious records a spurious retransmission: an earlier transmission of the
// segment had arrived (Eifel detection, RFC 3522; the ACK of a PUSH echoes its
// ts). early says that the retransmission was not due to a time-out.
func (k *KCP) onSpurious(early bool) {
	k.counters.SpuriousRetransmits++
	k.reordered(early)
}

// reordered records that a segment was declared lost, or was retransmitted, and
// had arrived. If early, not because of a time-out, the reordering window
// grows, at most once a round trip.
func (k *KCP) reordered(early bool) {
	r := &k.snd.recovery
	r.spurious = min(r.spurious+1, reorderingMost)
	if !k.cfg.ext.EarlyRetransmit || !early {
		return
	}
	if srtt := seq(k.snd.rtt.srtt); r.reoWndMult == 0 || !k.clock.now.Before(r.reoWndRaisedAt+srtt) {
		r.reoWndMult = min(r.reoWndMult+1, maxReoWndMult)
		r.reoWndRaisedAt = k.clock.now
	}
	r.reoWndPersistUntil = k.clock.now + seq(reoWndPersistRounds*k.snd.rtt.srtt)
}

// onGenuine records a genuine retransmission: it is the one that has arrived.
func (k *KCP) onGenuine() {
	k.snd.recovery.spurious = max(k.snd.recovery.spurious-1, 0)
}

// reorderingDominates reports whether spurious retransmissions outnumber
// genuine ones: packets overtake each other, rather than that acknowledgements
// are lost.
func (r *recovery) reorderingDominates() bool { return r.spurious >= reorderingLeast }

// resolve counts a segment that the present input acknowledged ambiguously.
func (r *recovery) resolve(spurious bool) {
	e := &r.episode
	if e.ambiguous == 0 {
		return // it was an earlier input
	}
	e.ambiguous--
	r.count(spurious)
}

// count counts a segment that was retransmitted and is acknowledged now.
func (r *recovery) count(spurious bool) {
	if spurious {
		r.episode.spurious++
	} else {
		r.episode.genuine++
	}
}

// notifyRecovered tells the congestion controller, after an input, when no
// segment that was retransmitted is left in flight.
func (k *KCP) notifyRecovered(s *congestion.State) {
	e := &k.snd.recovery.episode
	e.genuine += e.ambiguous
	e.ambiguous = 0
	if e.resent == 0 || e.spurious+e.genuine < e.resent {
		return
	}
	spurious := e.genuine == 0
	e.resent, e.spurious, e.genuine = 0, 0, 0
	if c, ok := k.snd.cc.(congestion.Undoer); ok {
		c.OnRecovered(s, spurious)
	}
}

// decayReoWnd lowers reoWndMult if there was no spurious retransmission for a
// while.
func (k *KCP) decayReoWnd() {
	r := &k.snd.recovery
	if r.reoWndMult > 0 && k.clock.now.After(r.reoWndPersistUntil) {
		r.reoWndMult /= 2
		r.reoWndPersistUntil = k.clock.now + seq(reoWndPersistRounds*k.snd.rtt.srtt)
	}
}

// reoWnd returns the reordering window in milliseconds, a round trip at most.
func (k *KCP) reoWnd() seq {
	return seq(min((1+k.snd.recovery.reoWndMult)*uint32(k.snd.rtt.srtt)/reoWndFraction, uint32(k.snd.rtt.srtt)))
}

// tailLossProbe is the tail loss probe (RFC 8985 §7.3). It returns those of the
// expired segments that are retransmitted now, and gives the others another
// RTO. A first time-out may just mean that an acknowledgement was lost or is
// late. One packet with the newest of the segments is enough to learn what is
// missing. A segment against which acknowledgements of later ones count is sent
// anyway.
func (k *KCP) tailLossProbe(expired []*sendSegment) []*sendSegment {
	if k.snd.recovery.inOutage || k.blackHoleSuspected() {
		return k.outageFilter(expired)
	}
	if len(expired) < 2 || k.cfg.fastResend == 0 {
		return expired
	}
	slices.SortFunc(expired, func(a, b *sendSegment) int { return int(b.sn.Diff(a.sn)) })
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

// outageFilter takes the place of tailLossProbe in an outage: beside the
// probes, only the oldest segment is retransmitted. A thousand senders that
// overwhelm a receiver would never let it recover if each retransmitted its
// window with every time-out. It also holds back segments that may be too large
// for the path, until that is known, unless they fit into small packets, whole or
// in pieces.
func (k *KCP) outageFilter(expired []*sendSegment) []*sendSegment {
	sent := expired[:0]
	for _, s := range expired {
		if s.early || s.sn == k.snd.una || !k.snd.recovery.inOutage && (s.size() <= k.maxPacketOf(s) || k.needsPieces(s, k.maxPacketOf(s))) {
			sent = append(sent, s)
			continue
		}
		s.resendTS = k.clock.now + seq(max(s.rto, k.cfg.ext.OutageProbe))
		k.snd.timeouts.add(s)
	}
	clear(expired[len(sent):])
	return sent
}

// detectOutage begins to probe when a segment has timed out again and no packet
// at all has arrived. Time-outs back off, so the end of the outage might go
// unnoticed for seconds.
func (k *KCP) detectOutage() {
	r := &k.snd.recovery
	if k.cfg.ext.OutageProbe == 0 || r.inOutage {
		return
	}
	if uint32(k.clock.now-r.aliveAt) >= max(2*k.snd.rtt.rto, k.cfg.ext.OutageProbe) {
		r.inOutage = true
		r.probeAt = k.clock.now + seq(k.cfg.ext.OutageProbe)
		r.beyondAt = k.clock.now
	}
}

// probePath takes what is in flight for lost, as in an outage: the path is another
// one, or is there again. A copy of the oldest segment leaves with the next flush.
func (k *KCP) probePath() {
	if r := &k.snd.recovery; k.cfg.ext.OutageProbe != 0 && k.snd.inFlight > 0 {
		r.inOutage, r.probeAt, r.beyondAt = true, k.clock.now, k.clock.now
	}
}

// flushOutageProbe sends a copy of the oldest segment in flight every
// OutageProbe milliseconds during an outage.
func (k *KCP) flushOutageProbe(h *header) {
	r := &k.snd.recovery
	if !r.inOutage || k.clock.now.Before(r.probeAt) {
		return
	}
	s := k.snd.oldest()
	if s == nil {
		r.inOutage = false
		return
	}
	r.probeAt = k.clock.now + seq(k.cfg.ext.OutageProbe)
	if s.ts != k.clock.now && !k.snd.loss.suspect(s) && k.snd.validation == nil && !k.capHolds(s.size()) {
		k.repeat(s, h)
	}
}

// beyondWindow returns how many bytes of new segments may leave although the
// congestion window is full. In a session with streams that is beyondPackets in each
// round trip of an outage, and of the recovery from it: the smallest window of any
// congestion control. What was sent before fills the window, and is lost. A
// message with a lifetime would never leave, and not be there when the outage ends.
func (k *KCP) beyondWindow() int {
	if !k.mayExceedWindow() || k.clock.now.Before(k.snd.recovery.beyondAt) {
		return 0
	}
	return k.cfg.mtu
}

// mayExceedWindow reports whether beyondWindow allows a packet now and then.
func (k *KCP) mayExceedWindow() bool {
	r := &k.snd.recovery
	return (r.inOutage || r.resendFrom != r.resendEnd) && k.cfg.ext.PipeWindow && k.streaming()
}

// peerAlive records a good packet that has acknowledged acked segments. After
// an outage it retransmits the segments that were in flight, in growing
// numbers, without waiting for their time-outs.
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
	if r.resendFrom.Before(k.snd.una) {
		r.resendFrom = k.snd.una
	}
	for r.resendBudget > 0 && r.resendFrom.Before(r.resendEnd) {
		s := k.snd.ring.at(r.resendFrom)
		r.resendFrom++
		if s == nil || k.clock.now.Diff(s.ts) < k.snd.rtt.srtt {
			continue // it has arrived, or may be on its way
		}
		s.rto = k.snd.rtt.rto
		k.retransmitAt(s, k.clock.now, LossOutage)
		r.resendBudget--
	}
	if !r.resendFrom.Before(r.resendEnd) {
		r.resendFrom = r.resendEnd
	}
}
