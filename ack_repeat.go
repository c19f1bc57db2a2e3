package kcp

// Repetition of ACKs, Extensions.RepeatAcks. The wire has no lists of
// acknowledged ranges (as SACK, RFC 2018): what has arrived beyond una is
// acknowledged segment by segment, and only once. If the packet with an ACK is
// lost, the peer retransmits a segment that has arrived. A duplicate ACK harms
// no peer. So while such spurious retransmissions come in, every ACK that una
// does not cover is sent once more, with the ACKs that follow.

const (
	// ackRepeatLength is for how many ACKs one spurious retransmission by the
	// peer switches repetition on. Several add up to ackRepeatMost at most.
	ackRepeatLength = 400
	ackRepeatMost   = 4000
	// ackRepeatDelay bounds, in milliseconds, how long after its segment
	// arrived an ACK may be sent a second time. A peer that takes a round-trip
	// sample from every ACK measures the delay too.
	ackRepeatDelay = 10
)

// ackRepeater is the state of Extensions.RepeatAcks. Its zero value is ready.
type ackRepeater struct {
	left  int // ACKs for which repetition is still on
	items []repeatedAck
}

type repeatedAck struct {
	ackItem
	at   seq // when its segment arrived
	sent bool
}

// note records an ACK that is to be sent, if repetition is on.
func (r *ackRepeater) note(a ackItem, now seq) {
	if r.left > 0 {
		r.left--
		r.items = append(r.items, repeatedAck{ackItem: a, at: now})
	}
}

// duplicate records that the peer has sent a segment that had arrived before.
func (r *ackRepeater) duplicate() {
	r.left = min(r.left+ackRepeatLength, ackRepeatMost)
}

// repeatAcks puts out once more the ACKs of packets before this one. They stand
// in front of the new ACKs, because kcp-go takes its round-trip sample from the
// last ACK of a packet.
func (k *KCP) repeatAcks(h *header) {
	if len(k.rcv.acks) == 0 || len(k.rcv.ackRepeats.items) == 0 || k.snd.validation != nil {
		return
	}
	keep := k.rcv.ackRepeats.items[:0]
	for _, a := range k.rcv.ackRepeats.items {
		switch {
		case a.sn.before(k.rcv.nxt) || k.clock.now.diff(a.at) > ackRepeatDelay:
		case !a.sent:
			a.sent = true
			keep = append(keep, a)
		default:
			k.putAck(h, a.ackItem, 0)
		}
	}
	k.rcv.ackRepeats.items = keep
}
