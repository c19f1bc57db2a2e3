package recovery

import (
	"github.com/arqnet/kcp/internal/container"
)

const (
	// MaxAckDelay bounds how long an acknowledgement waits, in milliseconds, as
	// max_ack_delay does in QUIC (RFC 9000 §18.2). On short paths the bound is
	// the part 1/delayShare of a round trip, since time-outs are short too.
	MaxAckDelay = 25
	delayShare  = 4
	// MinAckDelay is the shortest wait in milliseconds, so that it lasts a full
	// tick of the clock. Even on the shortest paths a reply may come in that
	// time and carry the acknowledgement.
	MinAckDelay = 2
	// soonDelay, in milliseconds, and SoonShare take the place of MaxAckDelay
	// and delayShare once manySegments segments or manyBytes bytes wait. A
	// spurious retransmission of that much would be expensive. There is still
	// time for the rest of a message to arrive, and for a reply to leave.
	soonDelay    = 5
	SoonShare    = 16
	manySegments = 4
	manyBytes    = 256
	// FullSegments is how many full segments are acknowledged at once: the sender of
	// a long transfer opens its window by acknowledgements.
	FullSegments = 4
	// PerRound is how many acknowledgements a round trip of long transfers needs, if it
	// lasts longRound milliseconds at least. More would fill a narrow way back (RFC
	// 5690).
	PerRound  = 4
	longRound = PerRound * MinAckDelay
	// gapAcks is how many packets behind a new gap are acknowledged at once.
	// Many senders wait for two such acknowledgements (RFC 5681 §3.2 has
	// three), and one may be lost.
	gapAcks = 3
)

// Ack is an acknowledgement to be sent: sn and ts of the segment it
// answers.
type Ack struct{ SN, TS container.Serial }

// DelayedAck is the state of Extensions.ThinAcks. Its zero value is ready.
type DelayedAck struct {
	Due        container.Serial // when the waiting acknowledgements must leave
	End        container.Serial // one more than the highest sn received
	Sampled    container.Serial // when the last ACK of a segment below una left
	started    bool             // sampled is valid
	Urgent     bool             // the waiting acknowledgements must leave at once
	Gap        bool             // there was a gap before the current packet
	early      bool             // the current packet brought a segment behind a gap
	Filled     bool             // filler has filled a gap since the last flush
	Announced  bool             // the present flush has put out an ACK that was to wait
	urgentAcks uint8            // packets behind the gap still to be acknowledged at once
	wait       uint8            // milliseconds that they wait until Due
	Filler     Ack              // valid if filled
	Segments   int32            // new segments since the last flush
	Bytes      int32            // their payload
	Replies    Replies

	round    container.Serial // when the present round trip began
	arrived  uint32           // new segments in it
	perRound uint32           // the same of the one before
}

// Arrival is what the policy has to know of a data segment that has arrived.
type Arrival struct {
	Ack   Ack  // its acknowledgement
	Bytes int  // its payload
	Fresh bool // it had not arrived before
	Next  bool // it was the next one in order
	Alone bool // no other acknowledgement waits
	Gap   bool // there is a gap now
}

// AckPath is what the policy has to know of the path and of both directions.
type AckPath struct {
	Now  container.Serial
	Next container.Serial // rcv_nxt
	SRTT uint32           // milliseconds
	Wait bool             // Extensions.AwaitReplies
}

// Received records a data segment.
func (p *DelayedAck) Received(s Arrival, at AckPath) {
	if s.Fresh {
		p.Replies.Arrived(uint32(at.Now))
	} else {
		p.Replies.Paused()
	}
	if s.Alone {
		p.wait = uint8(p.delay(at)) // MaxHold at most
		p.Due = at.Now + container.Serial(p.wait)
	}
	if !s.Fresh {
		return
	}
	p.Segments++
	p.arrived++
	p.Bytes += int32(s.Bytes)
	if s.Ack.SN.After(p.End) {
		p.urgentAcks = gapAcks
	}
	if !s.Ack.SN.Before(p.End) {
		p.End = s.Ack.SN + 1
	}
	if s.Ack.SN.After(at.Next) {
		p.early = true
		p.Replies.Disturbed()
	}
	if s.Next && p.Gap {
		p.Filled, p.Filler, p.urgentAcks = true, s.Ack, gapAcks
		p.Gap = s.Gap
	}
}

// delay returns for how many milliseconds the ACK of what has just arrived may wait.
func (p *DelayedAck) delay(at AckPath) uint32 {
	delay := min(MaxAckDelay, max(MinAckDelay, at.SRTT/delayShare))
	if at.Wait {
		return p.Replies.Delay(uint32(at.Now), delay, at.SRTT)
	}
	return delay
}

// Decide decides, after an input, how long the acknowledgements may wait. gap says that
// there is a gap: the news of a missing segment leaves at once, because the peer acts on
// it. mss is the payload of a full segment in bytes; share is the most that is advertised
// as the window, in segments; 0: no limit.
func (p *DelayedAck) Decide(now container.Serial, srtt uint32, gap bool, mss int, share uint32) {
	if p.early && gap && p.urgentAcks > 0 {
		p.urgentAcks--
		p.Urgent = true
	}
	p.early = false
	full := p.full(now, srtt)
	switch {
	case int(p.Bytes) >= full*mss, share > 0 && 2*uint32(p.Segments) >= share:
		p.Urgent = true // in the second case the peer can send little more before it
	case full == FullSegments && (p.Segments >= manySegments || p.Bytes >= manyBytes):
		soon := now + container.Serial(min(soonDelay, max(MinAckDelay, srtt/SoonShare)))
		if soon.Before(p.Due) {
			p.Due = soon
		}
	}
}

// full returns how many full segments are acknowledged at once.
func (p *DelayedAck) full(now container.Serial, srtt uint32) int {
	if took := uint32(now - p.round); took >= max(srtt, 1) {
		p.perRound = uint32(uint64(p.arrived) * uint64(srtt) / uint64(took))
		p.round, p.arrived = now, 0
	}
	if srtt < longRound {
		return FullSegments
	}
	return max(FullSegments, int(p.perRound/PerRound))
}

// AwaitCall lets acknowledgements that are due wait on, for a call of the application
// that was woken but has not run: in a process that is short of processor time, the data
// that it writes comes soon. In all they wait MaxAckDelay and half of a round trip, but
// no more than 100 ms, so that the peer's probe time-out (RFC 8985 §7.2) comes later.
func (p *DelayedAck) AwaitCall(now container.Serial, srtt uint32) {
	if p.Urgent || p.Due.After(now) {
		return
	}
	since := p.Due - container.Serial(p.wait)
	if waited, most := now.Diff(since), int32(min(MaxAckDelay+srtt/2, MaxHold)); waited < most {
		p.wait = uint8(min(2*max(waited, 1), most))
		p.Due = since + container.Serial(p.wait)
	}
}

// SampledRecently reports whether an ACK of a segment below una has left within
// a round trip.
func (p *DelayedAck) SampledRecently(now, srtt container.Serial) bool {
	return p.started && now.Within(p.Sampled, p.Sampled+srtt)
}

// Announce records that an ACK leaves that una covers, and returns what it announces in
// frg.
func (p *DelayedAck) Announce(now container.Serial) uint8 {
	p.Sampled, p.started, p.Filled = now, true, false
	p.Announced = p.Replies.Hold > 0
	return p.Replies.Announcement()
}

// Sent records what a flush has sent: new segments for the first time, or others again.
func (p *DelayedAck) Sent(now container.Serial, fresh, again bool) {
	switch {
	case again:
		p.Replies.Disturbed()
	case fresh:
		p.Replies.Replied(uint32(now))
	case p.Announced:
		p.Replies.Alone(uint32(now))
	}
	p.Announced = false
}

// atClose is how many ACKs of segments behind a gap leave again with CLOSE at most.
const atClose = 32

// RepeatedAcks appends to acks what acknowledges the segments at the places behind next
// that have arrived, the newest first. Their ACKs may be lost or late, and una covers
// none.
func RepeatedAcks(acks []Ack, next container.Serial, places int, ts container.Serial, arrived func(sn container.Serial) bool) []Ack {
	left := atClose
	for sn := next + container.Serial(places) - 1; sn.After(next) && left > 0; sn-- {
		if arrived(sn) {
			acks = append(acks, Ack{SN: sn, TS: ts})
			left--
		}
	}
	return acks
}

const (
	// repeatLength is for how many ACKs one spurious retransmission by the
	// peer switches repetition on. Several add up to repeatMost at most.
	repeatLength = 400
	repeatMost   = 4000
	// RepeatDelay bounds, in milliseconds, how long after its segment
	// arrived an ACK may be sent a second time. A peer that takes a round-trip
	// sample from every ACK measures the delay too.
	RepeatDelay = 10
)

// Repeater is the state of Extensions.RepeatAcks. The wire has no lists of acknowledged
// ranges (as SACK, RFC 2018): what has arrived beyond una is acknowledged segment by
// segment, and only once. If the packet with an ACK is lost, the peer retransmits a
// segment that has arrived. A duplicate ACK harms no peer. So while such spurious
// retransmissions come in, every ACK that una does not cover is sent once more, with the
// ACKs that follow. At 5 % loss each way on 100 Mbit/s and 50 ms, a sender then repeats
// 5.4 % instead of 9.6 %.
//
// The zero value is ready.
type Repeater struct {
	left  int // ACKs for which repetition is still on
	items []repeated
}

// repeatedBytes is the size of a repeated, in bytes.
const repeatedBytes = 16

type repeated struct {
	Ack
	at   container.Serial // when its segment arrived
	sent bool
}

// RepeatFor returns a repeater that is on for so many ACKs.
func RepeatFor(acks int) *Repeater { return &Repeater{left: acks} }

// Note records an ACK that is to be sent, if repetition is on. r may be nil.
func (r *Repeater) Note(a Ack, now container.Serial) {
	if r != nil && r.left > 0 {
		r.left--
		r.items = append(r.items, repeated{Ack: a, at: now})
	}
}

// Duplicate records that the peer has sent a segment that had arrived before.
func (r *Repeater) Duplicate() {
	r.left = min(r.left+repeatLength, repeatMost)
}

// Memory returns how many bytes the ACKs take that are to be sent again.
func (r *Repeater) Memory() int { return cap(r.items) * repeatedBytes }

// Repeat calls again for the ACKs that are to be sent once more, at or beyond rcv_nxt,
// and forgets them.
func (r *Repeater) Repeat(nxt, now container.Serial, again func(Ack)) {
	keep := r.items[:0]
	for _, a := range r.items {
		switch {
		case a.SN.Before(nxt) || now.Diff(a.at) > RepeatDelay:
		case !a.sent:
			a.sent = true
			keep = append(keep, a)
		default:
			again(a.Ack)
		}
	}
	r.items = keep
}
