package recovery

// How long a delayed ACK waits for the application's next data. An application that
// writes at its own rhythm, such as 20 times a second, or that takes some milliseconds to
// answer, sends a packet that carries the acknowledgement (RFC 1122 §4.2.3.2). The usual
// delay would let the ACK leave before it, in a packet of its own. So the ACK waits as
// long as that has lately taken.
//
// The receiver announces how long (max_ack_delay, RFC 9000 §18.2). The peer adds it to
// its retransmission time-out (RFC 9002 §6.2.1), and takes no round-trip sample from an
// ACK that has waited, so the samples still measure the path. Every other packet of the
// receiver shows una. One that does not cover what has long arrived shows a loss, for
// which the peer then does not wait. Times are milliseconds and wrap around.

const (
	// MaxHold bounds how long an ACK waits for data, in milliseconds. The
	// announcement has 7 bits.
	MaxHold = 100
	// FirstReplies is after how many replies in a row, each in time and with
	// nothing lost meanwhile, ACKs wait for the next. After a loss it takes
	// Streak, so that losses of a few in a thousand keep ACKs from waiting.
	FirstReplies = 16
	Streak       = 250
	// UndelayedShare is of how many ACKs one does not wait, for a round-trip sample.
	UndelayedShare = 32
)

// Parts of an announcement, which is frg of an ACK. 0 means that ACKs do not wait.
const (
	HoldMask = 0x7f // for how many milliseconds ACKs may wait
	Waited   = 0x80 // this one may have waited
)

// Replies is how soon the application writes after data has arrived. Its
// zero value is ready.
type Replies struct {
	since  uint32 // when the first data arrived that no new data has followed; valid if Open
	from   uint32 // when the peer has learned of hold; valid if Hold > 0
	took   uint8  // milliseconds that replies take: the most, which decays
	Hold   uint8  // milliseconds that ACKs may wait, as announced; 0: no longer than usual
	streak uint8  // replies in a row, Streak at most
	acks   uint8  // ACKs since Hold was set, modulo 256
	Open   bool   // data has arrived since the last reply
	Waits  bool   // the present ACK waits for Hold
	lossy  bool   // something was lost since Streak was last reached
}

// Arrived records new data.
func (r *Replies) Arrived(now uint32) {
	if !r.Open {
		r.Open, r.since = true, now
	}
}

// Replied records data that is sent for the first time.
func (r *Replies) Replied(now uint32) {
	if !r.Open {
		return
	}
	r.Open = false
	took := int32(now - r.since)
	if took < 0 || took > MaxHold {
		r.Paused()
		return
	}
	r.took = max(uint8(took), r.took-(r.took+15)/16)
	if r.streak < Streak {
		r.streak++
	} else {
		r.lossy = false
	}
}

// Paused makes ACKs wait no longer than usual: no reply has come in time, or the peer has
// sent again what had arrived, for which the ACK was late or got lost.
func (r *Replies) Paused() { r.streak, r.took, r.Hold, r.Waits = 0, 0, 0, false }

// Disturbed is Paused, for longer: something was lost.
func (r *Replies) Disturbed() {
	r.Paused()
	r.lossy = true
}

// regular reports whether there were enough replies in a row.
func (r *Replies) regular() bool {
	return r.streak >= FirstReplies && !r.lossy || r.streak >= Streak
}

// Delay returns for how many milliseconds the ACK of what has just arrived may
// wait. usual is that time without replies, and srtt the round trip.
func (r *Replies) Delay(now uint32, usual, srtt uint32) uint32 {
	r.Waits = false
	took := uint32(r.took)
	if !r.regular() || took <= usual {
		r.Hold = 0
		return usual
	}
	// A reply that takes by an eighth longer, and a tick of the clock, is in time.
	switch want, hold := min(took+took/8+2, MaxHold), uint32(r.Hold); {
	case hold < want:
		r.Hold, r.acks = uint8(min(took*3/2+2, MaxHold)), 0
		r.from = now + usual + 2*srtt // the peer's time-out comes first
	case hold > 2*want:
		r.Hold = uint8(want)
	}
	r.acks++
	r.Waits = int32(now-r.from) >= 0 && r.acks%UndelayedShare != 0 && uint32(r.Hold) > usual
	if r.Waits {
		return uint32(r.Hold)
	}
	return usual
}

// Announcement returns frg of an ACK that una covers.
func (r *Replies) Announcement() uint8 {
	if r.Waits {
		return r.Hold | Waited
	}
	return r.Hold
}

// Alone records that an ACK leaves without new data.
func (r *Replies) Alone(now uint32) {
	if r.Waits && r.Open && int32(now-r.since) >= int32(r.Hold) {
		r.Paused()
	}
}
