package machine

import (
	"slices"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// Loss detection and recovery beyond the reference, after RACK-TLP (RFC 8985):
// fast retransmit that tolerates reordering, as soon as acknowledgements show a
// loss; a tail loss probe, one packet, if they show nothing; and undo of
// spurious retransmissions (RFC 3522, RFC 4015).

// recordRetransmit records s, which was retransmitted and which una
// acknowledges. An ACK may follow that shows which transmission has arrived.
func (k *KCP) recordRetransmit(s *Segment) {
	r := &k.snd.recovery
	if !k.cfg.ext.EarlyRetransmit {
		return
	}
	if s.xmit == 2 && k.clock.micros-s.tx.At < k.snd.rate.MinRTT {
		r.Episode.Spurious++ // too soon to be the reply to the retransmission
	} else {
		r.Episode.Ambiguous++
	}
	r.Retransmissions.Remember(recovery.Retransmission{SN: s.sn, TS: s.ts, Early: s.repaired, Second: s.xmit == 2, Tx: s.tx})
}

// onSpurious records a spurious retransmission: an earlier transmission of the
// segment had arrived (Eifel detection, RFC 3522; the ACK of a PUSH echoes its
// ts). early says that the retransmission was not due to a time-out.
func (k *KCP) onSpurious(early bool) {
	k.counters.SpuriousRetransmits++
	k.reordered(early)
}

// reordered records that a segment was declared lost, or was retransmitted, and
// had arrived. early says that this was not because of a time-out.
func (k *KCP) reordered(early bool) {
	k.snd.recovery.Reordering.Found(early && k.cfg.ext.EarlyRetransmit, k.clock.now, Seq(k.snd.rtt.srtt))
}

// notifyRecovered tells the congestion controller, after an input, when no
// segment that was retransmitted is left in flight.
func (k *KCP) notifyRecovered(s *congestion.State) {
	spurious, over := k.snd.recovery.Episode.End()
	if !over {
		return
	}
	if c, ok := k.snd.cc.(congestion.Undoer); ok {
		c.OnRecovered(s, spurious)
	}
}

// reoWnd returns the reordering window in milliseconds, a round trip at most.
func (k *KCP) reoWnd() Seq {
	return k.snd.recovery.Reordering.Window(uint32(k.snd.rtt.srtt))
}

// tailLossProbe is the tail loss probe (RFC 8985 §7.3). It returns the
// expired segments that are retransmitted now, and gives the others another
// RTO. A first time-out may just mean that an acknowledgement was lost or is
// late. One packet with the newest of the segments is enough to learn what is
// missing. A segment against which acknowledgements of later ones count is sent
// anyway.
func (k *KCP) tailLossProbe(expired []*Segment) []*Segment {
	if k.snd.recovery.Outage.On || k.blackHoleSuspected() {
		return k.outageFilter(expired)
	}
	if len(expired) < 2 || k.cfg.fastResend == 0 {
		return expired
	}
	slices.SortFunc(expired, func(a, b *Segment) int { return int(b.sn.Diff(a.sn)) })
	sent, room := expired[:0], k.cfg.mtu
	for _, s := range expired {
		if !s.early && s.xmit == 1 && s.fastack == 0 {
			if s.size() > room && room < k.cfg.mtu {
				s.resendTS = k.clock.now + Seq(k.snd.rtt.rto)
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

// noteCovered notes when data of the peer has left, and how old what its una covers is.
func (k *KCP) noteCovered(h *wire.Header) {
	if h.Cmd != wire.CmdPush && h.Cmd != wire.CmdStream {
		return
	}
	o := &k.rare.overdue
	o.Arrived(k.clock.now, h.TS)
	if s := k.snd.oldest(); s == nil || s.xmit > 1 || !h.Una.After(s.sn) {
		return // what has waited behind a gap shows no time
	}
	if s := k.snd.ring.at(h.Una - 1); s != nil && s.xmit == 1 {
		o.Covered(s.ts)
	}
}

// resendOverdue retransmits segments that data of the peer does not acknowledge, although
// they must have arrived before it left. ACKs of later segments show that too (RFC 8985
// §6.2), but behind the tail of what this end sends there are none.
func (k *KCP) resendOverdue() {
	if k.snd.inFlight > recovery.MostOverdue || !k.cfg.ext.TailProbe || k.cfg.fastResend == 0 ||
		k.snd.validation != nil || k.snd.recovery.Reordering.Dominates() {
		return
	}
	before, ok := k.rare.overdue.Before(k.clock.now, int32(k.snd.rate.MinRTT/1000))
	if !ok || !k.snd.oldest().ts.Before(before) {
		return
	}
	for sn := k.snd.una; sn.Within(k.snd.una, k.snd.una+recovery.OverdueReach) && sn.Before(k.snd.nxt); sn++ {
		s := k.snd.ring.at(sn)
		if s != nil && s.ts.Before(before) && s.xmit <= recovery.OverdueSends && !k.snd.loss.suspect(s) {
			k.retransmitAt(s, k.clock.now, trace.LossReordering)
		}
	}
}

// outageFilter takes the place of tailLossProbe in an outage: beside the
// probes, only the oldest segment is retransmitted. A thousand senders that
// overwhelm a receiver would never let it recover if each retransmitted its
// window with every time-out. It also holds back segments that may be too large
// for the path, until that is known, unless they fit into small packets, whole or
// in pieces.
func (k *KCP) outageFilter(expired []*Segment) []*Segment {
	sent := expired[:0]
	for _, s := range expired {
		if s.early || s.sn == k.snd.una || !k.snd.recovery.Outage.On && (s.size() <= k.maxPacketOf(s) || k.needsPieces(s, k.maxPacketOf(s))) {
			sent = append(sent, s)
			continue
		}
		s.resendTS = k.atProbe(s.rto)
		k.snd.timeouts.add(s)
	}
	clear(expired[len(sent):])
	return sent
}

// atProbe returns when to look again at a segment that is held back, after its time-out
// in milliseconds at least. In an outage that is with a probe: the segments have left
// one by one, and each would wake the session for nothing.
func (k *KCP) atProbe(rto uint32) Seq {
	o, every := &k.snd.recovery.Outage, k.cfg.ext.OutageProbe
	at := k.clock.now + Seq(max(rto, every))
	if wait := at.Diff(o.ProbeAt); o.On && every > 0 && wait > 0 {
		at = o.ProbeAt + Seq((uint32(wait)+every-1)/every*every)
	}
	return at
}

// ProbePath takes what is in flight for lost, as in an outage: the path is another
// one, or is there again. A copy of the oldest segment leaves with the next flush.
func (k *KCP) ProbePath() {
	if k.cfg.ext.OutageProbe != 0 && k.snd.inFlight > 0 {
		k.snd.recovery.Outage.Begin(k.clock.now)
	}
}

// flushOutageProbe sends a copy of the oldest segment in flight every
// OutageProbe milliseconds during an outage.
func (k *KCP) flushOutageProbe(h *wire.Header) {
	o := &k.snd.recovery.Outage
	if !o.On || k.clock.now.Before(o.ProbeAt) {
		return
	}
	s := k.snd.oldest()
	if s == nil {
		o.On = false
		return
	}
	o.ProbeAt = k.clock.now + Seq(k.cfg.ext.OutageProbe)
	if s.ts != k.clock.now && !k.snd.loss.suspect(s) && k.snd.validation == nil && !k.capHolds(s.size()) {
		k.repeat(s, h, nil)
	}
}

// resendAfterOutage retransmits the segments that were in flight in an outage, in growing
// numbers, without waiting for their time-outs.
func (k *KCP) resendAfterOutage() {
	o := &k.snd.recovery.Outage
	for sn, ok := o.Next(); ok; sn, ok = o.Next() {
		s := k.snd.ring.at(sn)
		if s == nil || k.clock.now.Diff(s.ts) < k.snd.rtt.srtt {
			continue // it has arrived, or may be on its way
		}
		s.rto = k.snd.rtt.rto
		k.retransmitAt(s, k.clock.now, trace.LossOutage)
		o.Resent()
	}
}
