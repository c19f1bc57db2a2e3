package machine

import (
	"math"
	"slices"

	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// Retransmission in sessions, Extensions.PipeWindow. A segment that is declared lost
// goes into a queue. It leaves as congestion window and pacing allow (RFC 6675 §5, RFC
// 9002 §7), or by a slow start as acknowledgements come in (RFC 6937). Otherwise a few
// acknowledgements from a peer could cause the whole window to be retransmitted at
// once, several times over. The bare state machine sends all of it in the flush that
// finds it lost, as the reference does.

// waits reports whether s was declared lost and waits for its retransmission.
func (d *lossDetector) waits(s *Segment) bool { return s.list == &d.again || s.list == &d.due }

// queueLost puts segments just declared lost, in the order of sn, to those that wait. What
// the peer has waits for the oldest, and those that were sent again before are the oldest.
func (d *lossDetector) queueLost(lost []*Segment) {
	oldest := d.again.head
	for _, s := range slices.Backward(lost) {
		if s.unlinkOrder(); s.xmit > 1 && oldest != nil && s.sn.Before(oldest.sn) {
			d.again.pushFront(s)
		}
	}
	for _, s := range lost {
		switch {
		case s.list != nil:
		case s.xmit > 1:
			d.again.pushOrder(s)
		default:
			d.due.pushOrder(s)
		}
	}
}

// fitsPipe reports whether a segment may be retransmitted because congestion
// control allows it. The segments in flight and not lost (the pipe of RFC 6675
// §4) must leave room in the congestion window. Pacing must allow a packet.
// Without pacing fitsPipe is false, and only recovery.Credit counts.
func (k *KCP) fitsPipe(rate int64) bool {
	return rate > 0 && k.pipeHasRoom() && k.snd.pace.Wait(k.clock.micros, rate) == 0
}

// pipeHasRoom reports whether the congestion window has room. It has none while more is
// lost than arrives: the path has become another one, the window and the pacing rate are
// of the old one, and as much leaves as arrives (packet conservation, RFC 6937 §3).
func (k *KCP) pipeHasRoom() bool {
	return k.snd.inFlight-k.snd.loss.again.n-k.snd.loss.due.n < k.snd.cc.Window() && !k.snd.rate.MostLost()
}

// resendWait returns the milliseconds until a segment may be retransmitted.
func (k *KCP) resendWait() uint32 {
	rate := k.snd.cc.PacingRate()
	c := &k.snd.recovery.Credit
	wait := c.Wait(k.clock.now, c.Round(&k.snd.recovery.Outage, k.snd.rtt.srtt, k.snd.rtt.rto))
	if rate > 0 && k.pipeHasRoom() {
		wait = min(wait, k.wholeMillis(k.snd.pace.Wait(k.clock.micros, rate)))
	}
	return max(wait, k.wholeMillis(max(k.rateWait(), k.snd.pace.StrictWait(k.clock.micros, rate))))
}

// flushLost retransmits the lost segments that wait, oldest first, as far as they may.
func (k *KCP) flushLost(h *wire.Header, rate int64) {
	c := &k.snd.recovery.Credit
	c.Refill(k.clock.now, c.Round(&k.snd.recovery.Outage, k.snd.rtt.srtt, k.snd.rtt.rto))
	for k.snd.loss.again.n+k.snd.loss.due.n > 0 {
		s := k.snd.loss.again.head
		if s == nil {
			s = k.snd.loss.due.head
		}
		fits := k.fitsPipe(rate)
		if !fits && (c.Left <= 0 || k.snd.pace.StrictWait(k.clock.micros, rate) > 0) || k.capHolds(s.size()) {
			return
		}
		c.Spend(fits)
		k.snd.pace.Charge(s.size(), rate)
		k.resend(s, h)
		k.repeatInSpare(s, h, rate)
	}
	c.Left = min(c.Left, recovery.MaxResendCredit)
}

// repeatInSpare sends copies of s, which was just retransmitted, in packets of their own.
// It does so if new data cannot leave, as there is none or the peer's window is full, and
// little is in flight. More would push other flows out of a queue.
func (k *KCP) repeatInSpare(s *Segment, h *wire.Header, rate int64) {
	if !k.cfg.ext.EarlyRepair || k.snd.queue.n > 0 && k.inPeerWindow() || k.streaming() || k.snd.recovery.Outage.On || k.snd.validation != nil ||
		k.snd.rate.Queued() || recovery.SpareShare*k.snd.inFlight >= k.snd.cc.Window() {
		return
	}
	for n := 0; n < recovery.SpareCopies && k.fitsPipe(rate) && !k.fits(s.size(), k.cfg.mtu) && s.size() <= k.maxPacketOf(s) && !k.capHolds(s.size()); n++ {
		k.snd.pace.Charge(s.size(), rate)
		k.repeat(s, h, nil)
	}
}

// notLost records that s was acknowledged while it waited for retransmission.
func (k *KCP) notLost(s *Segment) {
	if s.xmit == 1 {
		k.snd.recovery.Episode.Count(true)
		k.reordered(s.fastDue)
		k.cfg.trace.spurious(s.sn)
	}
}

// noteLost records that the last transmission of s is declared lost.
func (k *KCP) noteLost(s *Segment) {
	if k.cfg.ext.EarlyRetransmit {
		k.snd.recovery.Lost(k.clock.now, Seq(k.snd.rtt.srtt), s.xmit == 1)
	}
	k.cfg.trace.lost(s)
	k.snd.redundancy.OnLoss(k.snd.nxt)
	k.snd.rate.DeclaredLost(&s.tx, s.size())
	s.lostAt = s.tx.At
	k.snd.blackHole.DeclaredLost(netpath.SizedLosses{
		Size: s.packet, MTU: int32(k.cfg.mtu), Now: uint32(k.clock.now), SN: uint32(s.sn), Next: uint32(k.snd.nxt),
	})
}

// resend retransmits s.
func (k *KCP) resend(s *Segment, h *wire.Header) {
	s.repaired = s.fastDue
	if s.fastDue {
		s.fastDue, s.early = false, false
		s.fastack = 0
		k.counters.FastRetransmits++
	} else {
		k.counters.TimeoutRetransmits++
	}
	s.tx = k.snd.rate.Sent(s.size(), k.clock.micros, k.snd.flightBytes-int64(s.size()))
	s.repeats = 0
	s.xmit++
	s.resendTS = k.clock.now + Seq(s.rto)
	k.sendSegment(s, h)
}

// flushRetransmissions retransmits, in the order of sn, the segments that timed out or
// are suspects. It reports which of the two it found; a first time-out does not count
// with Extensions.TailProbe. rate is the controller's pacing rate.
func (k *KCP) flushRetransmissions(h *wire.Header, rate int64) (timedOut, fast bool) {
	again := k.out.scratch[:0]
	if !k.snd.loss.held {
		again = k.postpone(k.snd.timeouts.expire(k.clock.now, again))
	}
	if k.snd.validation != nil {
		again = k.withinCredit(again)
	} else if k.cfg.ext.TailProbe {
		again = k.tailLossProbe(again)
	}
	for _, s := range again {
		if s.early {
			s.fastDue = true
			continue
		}
		k.backOff(s)
		s.cause = trace.LossTimeout
		if s.xmit == 1 && k.cfg.ext.TailProbe {
			s.cause = trace.LossTailProbe
			continue
		}
		timedOut = true
	}
	if every := k.cfg.ext.OutageProbe; timedOut && every != 0 {
		k.snd.recovery.Outage.Detect(k.clock.now, k.snd.rtt.rto, every)
	}
	again = k.takeSuspects(again)
	slices.SortFunc(again, func(a, b *Segment) int { return int(a.sn.Diff(b.sn)) })
	for _, s := range again {
		fast = fast || s.fastDue
		k.noteLost(s)
		if !k.cfg.ext.PipeWindow {
			k.snd.pace.Charge(s.size(), rate)
			k.resend(s, h)
		}
	}
	if k.cfg.ext.PipeWindow {
		k.snd.loss.queueLost(again)
	}
	clear(again)
	k.out.scratch = again[:0]
	return timedOut, fast
}

// flushRedundant puts redundant copies (package copies) into the packet under
// construction, if there is one. The segments from first on have just been sent for the
// first time.
func (k *KCP) flushRedundant(h *wire.Header, first Seq) {
	if len(k.out.packet) == 0 || !k.cfg.ext.EarlyRepair && k.cfg.ext.Redundancy == 0 || k.snd.validation != nil {
		return
	}
	if k.out.last == nil && k.rateWait() > 0 {
		return // ACKs do not wait for the cap, but what would fill their packet does
	}
	r := &k.snd.redundancy
	var room recovery.CopyCarrier
	by, most := r.Begin(&room, k.out.packet, k.cfg.ext.Redundancy, k.snd.nxt)
	// One copy of each segment that was retransmitted because it was lost. Losses come
	// together, and all later data waits for these. They are few, so they may overdraw.
	for i, sn := 0, k.snd.una; k.cfg.ext.EarlyRepair && i < recovery.RetransmitsReach && sn.Before(first); i, sn = i+1, sn+1 {
		if s := k.snd.ring.at(sn); k.mayRepeat(s) && s.xmit > 1 && s.repeats == 0 {
			r.Credit -= s.size()
			k.repeat(s, h, by)
		}
	}
	if most == 0 || k.waiting() {
		return // nothing is being lost, or the stream is not thin
	}
	for i, sn := 0, first-1; i < recovery.CopyReach && !sn.Before(k.snd.una); i, sn = i+1, sn-1 {
		s := k.snd.ring.at(sn)
		if !k.mayRepeat(s) || int(s.repeats) >= most {
			continue
		}
		price := s.size()
		if _, n := k.copyOfSent(s, by); n > 0 {
			price = n
		}
		if !r.Pay(price) {
			return
		}
		k.repeat(s, h, by)
	}
}

// mayRepeat reports whether a redundant copy of s, which may be nil, can be put
// into the packet under construction.
func (k *KCP) mayRepeat(s *Segment) bool {
	return s != nil && s.ts != k.clock.now && s.repeated != k.clock.now && !k.snd.loss.suspect(s) &&
		len(s.data) <= recovery.MaxCopied && k.fits(s.size(), k.cfg.mtu)
}

// copyOfSent returns a copy of s in the short form (WIRE.md §5.11), for which the packet
// grows by n bytes. If n is 0 it needs a header.
func (k *KCP) copyOfSent(s *Segment, by *recovery.CopyCarrier) (c recovery.Copy, n int) {
	c = recovery.Copy{SN: s.sn, Stream: s.streamed, Frg: s.frg, Data: s.data}
	if s.tag != nil {
		k.abandonIfSpent(s, 0) // a redundant copy does not go through sendSegment
		if s.tag.Abandoned {
			return c, 0
		}
	}
	return c, by.Cost(&c)
}

// repeat puts a redundant copy of s into the packet under construction, in the short
// form if by can carry it. Time-outs and loss detection do not see it.
func (k *KCP) repeat(s *Segment, h *wire.Header, by *recovery.CopyCarrier) {
	s.repeated = k.clock.now
	s.repeats = uint8(min(int(s.repeats)+1, math.MaxUint8))
	if c, n := k.copyOfSent(s, by); n > 0 {
		k.reserve(n, k.cfg.mtu)
		k.out.packet = by.Append(k.out.packet[:len(k.out.packet)-n], &c, k.clock.now)
	} else {
		by.Close()
		k.putSegment(s, h)
	}
	k.counters.Repeats++
	k.cfg.trace.repeated(s)
}
