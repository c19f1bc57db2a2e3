package kcp

// Acknowledgements of Extensions.ThinAcks. The reference answers every PUSH
// with an ACK of its own, at once. Most of these say nothing that the una of
// the same packet does not say, and the packet around them costs more than they
// do, while mostly there is another one about to leave.

const (
	// maxAckDelay is the longest an acknowledgement waits, in milliseconds, as
	// in QUIC (RFC 9000 §18.2), and ackDelayShare the part of a round trip: on
	// short paths, where time-outs are short too, next to nothing.
	maxAckDelay   = 25
	ackDelayShare = 4
	// minAckDelay is how long one waits at least, a full tick of the clock:
	// on the shortest paths too an answer may come that takes it along.
	minAckDelay = 2
	// ackSoon and ackSoonShare are the same once ackSegments segments or ackBytes
	// bytes wait, in which a needless repair would be dear: long enough for the
	// rest of a message to arrive, and for an answer to leave.
	ackSoon      = 5
	ackSoonShare = 16
	ackSegments  = 4
	ackBytes     = 256
	// ackFull is how many full segments are acknowledged at once: the senders
	// of long transfers open their windows by acknowledgements.
	ackFull = 4
	// gapAcks is how often a new gap is told at once: many senders wait for two
	// such acknowledgements (RFC 5681 has three), and one may be lost.
	gapAcks = 3
)

// ackPolicy is the state of Extensions.ThinAcks.
type ackPolicy struct {
	due        seq     // when the acknowledgements that wait have to leave
	urgent     bool    // they have to leave at once
	gap        bool    // there was a gap before the current packet,
	early      bool    // and the packet has brought a segment behind one
	filled     bool    // a gap that had been told was filled since the last flush,
	filler     ackItem // by this segment
	urgentAcks int     // how often the present gap is still to be told at once
	end        seq     // one more than the highest sn received
	segments   int     // new segments since the last flush
	bytes      int     // their payload
	sampled    seq     // when the last ACK left that una covered
	started    bool    // there was one
}

// receivedPush notes the PUSH a, of n bytes. fresh says that it was not there
// before, next that it was the next one in order.
func (k *KCP) receivedPush(a ackItem, n int, fresh, next bool) {
	p := &k.rcv.ackPolicy
	if len(k.rcv.acks) == 1 {
		p.due = k.clock.now + seq(min(maxAckDelay, max(minAckDelay, uint32(k.snd.rtt.srtt)/ackDelayShare)))
	}
	if !fresh {
		return
	}
	p.segments++
	p.bytes += n
	if a.sn.after(p.end) {
		p.urgentAcks = gapAcks
	}
	if !a.sn.before(p.end) {
		p.end = a.sn + 1
	}
	if a.sn.after(k.rcv.nxt) {
		p.early = true
	}
	if next && p.gap {
		p.filled, p.filler, p.urgentAcks = true, a, gapAcks
		p.gap = k.rcv.early > 0
	}
}

// told reports whether the segment sn, which has come again, was acknowledged
// just now. What una covers is not looked up: it takes no ACK of its own.
func (k *KCP) ackedRecently(sn seq) bool {
	if sn.before(k.rcv.nxt) {
		return false
	}
	s := k.rcv.ring.at(sn)
	if k.clock.now.diff(s.lastAcked) < k.snd.rtt.srtt/2 {
		return true
	}
	s.lastAcked = k.clock.now
	return false
}

// decideAck decides how long the acknowledgements may wait, after a packet.
// What the peer acts on leaves at once: that something is missing.
func (k *KCP) decideAck() {
	p := &k.rcv.ackPolicy
	if p.early && k.rcv.early > 0 && p.urgentAcks > 0 {
		p.urgentAcks--
		p.urgent = true
	}
	p.early = false
	switch {
	case p.bytes >= ackFull*k.cfg.mss:
		p.urgent = true
	case p.segments >= ackSegments || p.bytes >= ackBytes:
		soon := k.clock.now + seq(min(ackSoon, max(minAckDelay, uint32(k.snd.rtt.srtt)/ackSoonShare)))
		if soon.before(p.due) {
			p.due = soon
		}
	}
}

// ackTime returns when the acknowledgements that wait have to leave.
func (k *KCP) ackTime() seq {
	if k.cfg.ext.ThinAcks && !k.rcv.ackPolicy.urgent {
		return k.rcv.ackPolicy.due
	}
	return k.clock.now
}

// flushEarlyAcks puts out an ACK for every segment that una does not cover,
// and leaves the newest of the others, if there is one, to flushCoveredAck.
func (k *KCP) flushEarlyAcks(h *header) {
	p := &k.rcv.ackPolicy
	covered := k.rcv.acks[:0]
	for _, a := range k.rcv.acks {
		switch {
		case !a.sn.before(k.rcv.nxt):
			k.putAck(h, a)
			p.segments--
		case len(covered) == 0:
			covered = append(covered, a)
		case a.ts.before(covered[0].ts):
			covered[0] = a
		}
	}
	k.rcv.acks = covered
	k.snd.redundancy.earn(p.segments)
	p.urgent = false
	p.segments, p.bytes = 0, 0
}

// flushCoveredAck puts out the ACK that says no more than una does, and the
// time: where no other segment says una, where the peer should have a
// round-trip sample again, of which one for each round trip will do (RFC 6298),
// or where it may want to know which transmission has filled a gap. bare says
// that nothing else is in this flush.
func (k *KCP) flushCoveredAck(h *header, bare bool) {
	p := &k.rcv.ackPolicy
	if p.filled {
		k.rcv.acks = append(k.rcv.acks[:0], p.filler)
	}
	if len(k.rcv.acks) == 0 {
		return
	}
	a := k.rcv.acks[0]
	k.rcv.acks = k.rcv.acks[:0]
	recent := p.started && k.clock.now.within(p.sampled, p.sampled+seq(k.snd.rtt.srtt))
	if recent && !bare && !p.filled {
		return
	}
	p.sampled, p.started, p.filled = k.clock.now, true, false
	k.putAck(h, a)
}
