package kcp

import (
	"math"
)

// lossDetector counts, for each segment in flight, the acknowledgements of
// later transmissions. A segment is in one of four lists: fresh and resent in
// the order of their last transmission, so that counting touches only segments
// that were sent before the acknowledged one, and suspects once it has been
// counted often enough; there it costs nothing until the next flush. In sessions
// that moves it to due, where it waits to be sent again.
type lossDetector struct {
	fresh    segmentList // transmitted once; in order of sn too
	resent   segmentList // transmitted more often
	suspects segmentList // counted fastResend times
	due      segmentList // taken for lost, and without a time-out until sent again

	collect bool           // have counted take
	counted []*sendSegment // those counted for the first time, but not often enough
}

// count takes n acknowledgements, the newest that of segment sn as of its
// transmission at ts.
func (d *lossDetector) count(sn, ts seq, n, limit uint32) {
	for s := d.fresh.head; s != nil && s.sn.before(sn) && !s.ts.after(ts); {
		next := s.order.next
		d.hit(s, n, limit)
		s = next
	}
	for s := d.resent.head; s != nil && !s.ts.after(ts); {
		next := s.order.next
		if s.sn.before(sn) {
			d.hit(s, n, limit)
		}
		s = next
	}
}

// countBefore takes an input with n acknowledgements that has acknowledged the
// transmission with a number, counted over all segments, and none after it.
func (d *lossDetector) countBefore(number uint64, n, limit uint32) {
	for _, l := range []*segmentList{&d.fresh, &d.resent} {
		for s := l.head; s != nil && s.tx.number < number; {
			next := s.order.next
			d.hit(s, n, limit)
			s = next
		}
	}
}

func (d *lossDetector) hit(s *sendSegment, n, limit uint32) {
	s.fastack += n
	if d.collect && s.fastack == n && n < limit {
		d.counted = append(d.counted, s)
	}
	if s.fastack >= limit {
		s.unlinkOrder()
		d.suspects.pushOrder(s)
	}
}

// suspect reports whether s is going to be sent again soon.
func (d *lossDetector) suspect(s *sendSegment) bool {
	return s.list == &d.suspects || s.list == &d.due
}

// sent files s after a transmission. A segment that is still suspect, because
// it timed out with its count, stays so.
func (d *lossDetector) sent(s *sendSegment) {
	if s.list == &d.suspects && s.fastack > 0 {
		return
	}
	s.unlinkOrder()
	if s.xmit == 1 {
		d.fresh.pushOrder(s)
	} else {
		d.resent.pushOrder(s)
	}
}

// countAck has the loss detector count an input of which newest was the newest
// acknowledgement, and early the number of those that una did not cover.
func (k *KCP) countAck(newest newestAck, early uint32) {
	if k.cfg.fastResend == 0 || k.snd.validation != nil {
		return // who is not validated may acknowledge blindly
	}
	n, limit := uint32(1), k.cfg.fastResend
	reordered := k.snd.recovery.reoWndMult > 0 || k.snd.recovery.reorderingDominates()
	if k.cfg.ext.EarlyRetransmit {
		n = max(early, 1)
		if reordered {
			limit = math.MaxUint32 // numbers prove nothing, only time does
		}
		k.snd.loss.collect, k.snd.loss.counted = true, k.out.scratch[:0]
	}
	switch {
	case !k.cfg.ext.SendOrder:
		if newest.seen && newest.sn.within(k.snd.una, k.snd.nxt) {
			k.snd.loss.count(newest.sn, newest.ts, n, limit)
		}
	case k.snd.rate.any:
		k.snd.loss.countBefore(k.snd.rate.newest.number, n, limit)
	}
	if !k.cfg.ext.EarlyRetransmit {
		return
	}
	at := k.clock.now + max(k.reoWnd(), 1)
	for _, s := range k.snd.loss.counted {
		if reordered {
			s.unlinkOrder() // there is no need to count on
		}
		if k.cfg.fastLimit > 0 && s.xmit > k.cfg.fastLimit {
			continue
		}
		if k.snd.recovery.reorderingDominates() && s.resendTS.before(at) && !s.early {
			// Its time-out does not reckon with it.
			k.snd.timeouts.remove(s)
			s.resendTS = at
			k.snd.timeouts.add(s)
		}
		k.repairAt(s, at)
	}
	clear(k.snd.loss.counted)
	k.out.scratch, k.snd.loss.counted, k.snd.loss.collect = k.snd.loss.counted[:0], nil, false
}

// repairAt has s sent again at a time, if it does not time out before, as after
// enough acknowledgements.
func (k *KCP) repairAt(s *sendSegment, at seq) {
	if s.early || s.list == &k.snd.loss.due || !at.before(s.resendTS) {
		return
	}
	k.snd.timeouts.remove(s)
	s.early, s.resendTS = true, at
	k.snd.timeouts.add(s)
}

// takeSuspects appends the segments to be fast-retransmitted. Those that have
// just timed out are sent anyway and keep their place among the suspects, and
// those that were sent too often are left to their time-outs.
func (k *KCP) takeSuspects(again []*sendSegment) []*sendSegment {
	for s := k.snd.loss.suspects.head; s != nil; {
		next := s.order.next
		switch {
		case s.group == nil: // timed out
		case k.cfg.fastLimit > 0 && s.xmit > k.cfg.fastLimit:
			s.unlinkOrder()
		default:
			k.snd.timeouts.remove(s)
			s.fastDue = true
			again = append(again, s)
		}
		s = next
	}
	return again
}

// postpone gives segments that have just timed out more time where the path has
// become slower meanwhile: as much as the newest acknowledgement has taken, and
// the variance. It returns the others. The time-out of a segment is fixed when
// it leaves, and a queue can grow by more than that within one round trip.
func (k *KCP) postpone(expired []*sendSegment) []*sendSegment {
	if !k.cfg.ext.PostponeTimeouts {
		return expired
	}
	variance := max(k.cfg.interval, uint32(4*k.snd.rtt.rttvar))
	if k.snd.recovery.reorderingDominates() {
		variance += uint32(k.reoWnd())
	}
	rest := expired[:0]
	for _, s := range expired {
		at := s.ts + seq(min(uint32(k.snd.rate.frontRTT/1000)+variance, 2*s.rto))
		if s.early || s.tx.number < k.snd.rate.newestAckedTx || !at.after(k.clock.now) {
			rest = append(rest, s)
			continue
		}
		s.resendTS = at
		k.snd.timeouts.add(s)
	}
	return rest
}
