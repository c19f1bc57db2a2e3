package kcp

// The wire has no lists of acknowledged ranges: what has arrived beyond una is
// acknowledged segment by segment, and only once. Where the packet of an ACK is
// lost, the peer repeats a segment that has arrived. An ACK that comes twice
// disturbs nobody, so while such repetitions come in, ACKs that una does not
// cover are sent once more with the next ones.

const (
	// ackRepeatLength is for how many ACKs one needless repetition of the peer
	// switches this on, and ackRepeatMost what several add up to.
	ackRepeatLength = 400
	ackRepeatMost   = 4000
	// ackRepeatDelay bounds, in milliseconds, how much later than the first one
	// an ACK may be sent again: peers that take a round-trip sample from every
	// ACK would measure the delay too.
	ackRepeatDelay = 10
)

// ackRepeater is the state of Extensions.RepeatAcks.
type ackRepeater struct {
	left  int // ACKs for which repetition is on
	items []repeatedAck
}

type repeatedAck struct {
	ackItem
	at   seq // when it was noted
	sent bool
}

// note takes an ACK that is about to be sent.
func (r *ackRepeater) note(a ackItem, now seq) {
	if r.left > 0 {
		r.left--
		r.items = append(r.items, repeatedAck{ackItem: a, at: now})
	}
}

// duplicate notes that the peer has sent a segment which had arrived.
func (r *ackRepeater) duplicate() {
	r.left = min(r.left+ackRepeatLength, ackRepeatMost)
}

// repeatAcks puts out once more the ACKs that went with the packets before
// this one. Whatever it puts out stands before the new ACKs, since kcp-go takes
// its round-trip sample from the last one of a packet.
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
			k.putAck(h, a.ackItem)
		}
	}
	k.rcv.ackRepeats.items = keep
}
