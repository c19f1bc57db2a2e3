package machine

import (
	"math"
	"slices"

	"github.com/arqnet/kcp/trace"
)

// lossDetector counts, for each segment in flight, the acknowledgements of
// later transmissions (fast retransmit, RFC 5681 §3.2). A segment is in at most
// one of five lists. fresh and resent are in the order of last transmission, so
// that counting touches only segments sent before the acknowledged one. A
// segment that was counted often enough moves to suspects until the next flush.
// With Extensions.PipeWindow the flush moves it to again or due, where it waits for its
// retransmission.
type lossDetector struct {
	fresh    segmentList // transmitted once; in order of sn too
	resent   segmentList // transmitted more than once
	suspects segmentList // counted fastResend times; at the front, countMost times
	again    segmentList // declared lost after a retransmission; no time-out until the next
	due      segmentList // declared lost the first time; likewise

	collect bool       // counted is being collected
	held    bool       // no time-out takes effect; see HoldTimeouts
	back    bool       // the clock has gone back: ts does not grow along the lists
	backEnd Seq        // it grows from this transmission on, by tx.Number
	counted []*Segment // counted for the first time, and not often enough
}

// countMost is how many acknowledgements are counted against a transmission, unless
// FastResend is more. It bounds what acknowledgements may cost.
const countMost = 255

// fastLimits are what a segment is fast-retransmitted by.
type fastLimits struct {
	acks          uint32 // counted against it that make it a suspect
	transmissions uint32 // up to which it may become one; 0: any number
}

// allow reports whether s is a suspect.
func (l fastLimits) allow(s *Segment) bool {
	return s.fastack >= l.acks && (l.transmissions == 0 || s.xmit <= l.transmissions)
}

// most returns up to how many acknowledgements are counted.
func (l fastLimits) most() uint32 {
	if l.acks == math.MaxUint32 {
		return countMost
	}
	return max(l.acks, countMost)
}

// count counts n acknowledgements, of which the newest is for segment sn as
// transmitted at ts. Like the reference, it counts them against suspects too.
func (d *lossDetector) count(sn, ts Seq, n uint32, l fastLimits) {
	back := d.back && d.inDisorder()
	for s := d.suspects.tail; s != nil && s.fastack < l.most(); {
		prev := s.order.prev
		if s.sn.Before(sn) && !s.ts.After(ts) {
			if s.fastack += n; s.fastack >= l.most() {
				s.unlinkOrder()
				d.suspects.pushFront(s)
			}
		}
		s = prev
	}
	for s := d.fresh.head; s != nil && s.sn.Before(sn) && (back || !s.ts.After(ts)); {
		next := s.order.next
		if !back || !s.ts.After(ts) {
			d.hit(s, n, l)
		}
		s = next
	}
	for s := d.resent.head; s != nil && (back || !s.ts.After(ts)); {
		next := s.order.next
		if s.sn.Before(sn) && (!back || !s.ts.After(ts)) {
			d.hit(s, n, l)
		}
		s = next
	}
}

// inDisorder reports whether a segment is in flight that left before the clock went back.
func (d *lossDetector) inDisorder() bool {
	before := func(s *Segment) bool { return s != nil && Seq(s.tx.Number).Before(d.backEnd) }
	d.back = before(d.fresh.head) || before(d.resent.head)
	return d.back
}

// countBefore counts n acknowledgements of one input. number is the newest
// transmission acknowledged, as counted over all segments.
func (d *lossDetector) countBefore(number uint64, n, limit uint32) {
	for _, l := range []*segmentList{&d.fresh, &d.resent} {
		for s := l.head; s != nil && s.tx.Number < number; {
			next := s.order.next
			d.hit(s, n, fastLimits{acks: limit})
			s = next
		}
	}
}

func (d *lossDetector) hit(s *Segment, n uint32, l fastLimits) {
	s.fastack += n
	if d.collect && s.fastack == n && n < l.acks {
		d.counted = append(d.counted, s)
	}
	if l.allow(s) {
		s.unlinkOrder()
		d.suspects.pushOrder(s)
	} else if s.fastack >= l.most() {
		s.unlinkOrder()
	}
}

// suspect reports whether s is about to be retransmitted.
func (d *lossDetector) suspect(s *Segment) bool {
	return s.list == &d.suspects || d.waits(s)
}

// sent files s after a transmission. If s is still suspect, because it timed
// out with its count, it stays so.
func (d *lossDetector) sent(s *Segment, l fastLimits) {
	if s.list == &d.suspects && s.fastack > 0 && l.allow(s) {
		return
	}
	if s.list != nil {
		s.unlinkOrder()
	}
	list := &d.resent
	if s.xmit == 1 {
		list = &d.fresh
	}
	if list.tail != nil && s.ts.Before(list.tail.ts) {
		d.back, d.backEnd = true, Seq(s.tx.Number)
	}
	list.pushOrder(s)
}

// fastLimits returns what the segments in flight are fast-retransmitted by. With
// Extensions.SendOrder only the acknowledgements count; see takeSuspects.
func (k *KCP) fastLimits() fastLimits {
	l := fastLimits{acks: k.cfg.fastResend, transmissions: k.cfg.fastLimit}
	if l.acks == 0 {
		l.acks = math.MaxUint32
	}
	if k.cfg.ext.SendOrder {
		l.transmissions = 0
	}
	return l
}

// setFastLimits changes settings, and files what is in flight by the new ones: as in the
// reference, all that was counted before counts on.
func (k *KCP) setFastLimits(acks, transmissions uint32) {
	k.cfg.fastResend, k.cfg.fastLimit = acks, transmissions
	if k.cfg.ext.SendOrder || k.snd.inFlight == 0 {
		return
	}
	d, l := &k.snd.loss, k.fastLimits()
	all := k.out.scratch[:0]
	for sn := k.snd.una; sn != k.snd.nxt; sn++ {
		if s := k.snd.ring.at(sn); s != nil && !d.waits(s) {
			s.unlinkOrder()
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *Segment) int { return int(Seq(a.tx.Number).Diff(Seq(b.tx.Number))) })
	for _, s := range all {
		switch {
		case l.allow(s) && s.fastack >= l.most():
			d.suspects.pushFront(s)
		case l.allow(s):
			d.suspects.pushOrder(s)
		case s.fastack >= l.most():
		case s.xmit == 1:
			d.fresh.pushOrder(s)
		default:
			d.resent.pushOrder(s)
		}
	}
	clear(all)
	k.out.scratch = all[:0]
}

// countAck makes the loss detector count the acknowledgements of an input.
// newest is the newest of its ACKs, and early the number of those that una did
// not cover. With Extensions.EarlyRetransmit, what is counted for the first
// time is retransmitted after the reordering window (RFC 8985 §6.2).
func (k *KCP) countAck(newest newestAck, early uint32) {
	if k.snd.validation != nil {
		return // a peer that is not validated may acknowledge blindly
	}
	if k.cfg.fastResend == 0 && (k.cfg.ext.SendOrder || k.cfg.ext.EarlyRetransmit) {
		return
	}
	n, limit := uint32(1), k.fastLimits()
	reordered := k.snd.recovery.Reordering.Seen()
	if k.cfg.ext.EarlyRetransmit {
		n = max(early, 1)
		if reordered {
			limit.acks = math.MaxUint32 // counts prove nothing, only time does
		}
		k.snd.loss.collect, k.snd.loss.counted = true, k.out.scratch[:0]
	}
	switch {
	case !k.cfg.ext.SendOrder:
		if newest.seen && newest.sn.Within(k.snd.una, k.snd.nxt) {
			k.snd.loss.count(newest.sn, newest.ts, n, limit)
		}
	case k.snd.rate.Sampled:
		k.snd.loss.countBefore(k.snd.rate.Newest.Number, n, limit.acks)
	}
	if !k.cfg.ext.EarlyRetransmit {
		return
	}
	at := k.clock.now
	if len(k.snd.loss.counted) > 0 {
		at += max(k.reoWnd(), 1)
	}
	for _, s := range k.snd.loss.counted {
		if reordered {
			s.unlinkOrder() // counting on is pointless
		}
		if k.cfg.fastLimit > 0 && s.xmit > k.cfg.fastLimit {
			continue
		}
		if k.snd.recovery.Reordering.Dominates() && s.resendTS.Before(at) && !s.early {
			// Its time-out does not allow for reordering.
			k.snd.timeouts.remove(s)
			s.resendTS = at
			k.snd.timeouts.add(s)
		}
		k.retransmitAt(s, at, trace.LossReordering)
	}
	clear(k.snd.loss.counted)
	k.out.scratch, k.snd.loss.counted, k.snd.loss.collect = k.snd.loss.counted[:0], nil, false
}

// retransmitAt schedules s to be fast-retransmitted at a time, unless it times
// out before. cause is why.
func (k *KCP) retransmitAt(s *Segment, at Seq, cause trace.LossCause) {
	if s.early || k.snd.loss.waits(s) || !at.Before(s.resendTS) {
		return
	}
	k.snd.timeouts.remove(s)
	s.early, s.resendTS, s.cause = true, at, cause
	k.snd.timeouts.add(s)
}

// takeSuspects appends the segments to be fast-retransmitted. Suspects that
// have just timed out are sent anyway, and stay suspects. Those that were sent
// too often (SetFastResendLimit) are left to their time-outs.
func (k *KCP) takeSuspects(again []*Segment) []*Segment {
	for s := k.snd.loss.suspects.head; s != nil; {
		next := s.order.next
		switch {
		case s.group == nil: // timed out
		case k.cfg.fastLimit > 0 && s.xmit > k.cfg.fastLimit:
			s.unlinkOrder()
		default:
			k.snd.timeouts.remove(s)
			s.fastDue, s.cause = true, trace.LossFastRetransmit
			again = append(again, s)
		}
		s = next
	}
	return again
}

// postpone gives segments that have just timed out more time if the path has
// become slower meanwhile: as long as the newest acknowledgement took, plus the
// variance. It returns the other segments. The time-out of a segment is fixed
// when it leaves, and a queue can grow by more than that within a round trip.
func (k *KCP) postpone(expired []*Segment) []*Segment {
	if !k.cfg.ext.PostponeTimeouts {
		return expired
	}
	variance := max(k.cfg.interval, uint32(k.snd.rtt.variation()))
	if k.snd.recovery.Reordering.Dominates() {
		variance += uint32(k.reoWnd())
	}
	rest := expired[:0]
	rtt := uint32(k.snd.rate.NewestAckedRTT / 1000)
	for _, s := range expired {
		wait := min(rtt+variance, 2*s.rto)
		if s.xmit == 1 {
			wait = min(wait, k.probeTimeout(rtt))
		}
		at := s.ts + Seq(wait)
		if s.early || s.tx.Number < k.snd.rate.NewestAckedTx || !at.After(k.clock.now) {
			rest = append(rest, s)
			continue
		}
		s.resendTS = at
		k.snd.timeouts.add(s)
	}
	return rest
}
