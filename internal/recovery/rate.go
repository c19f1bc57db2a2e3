package recovery

import "github.com/arqnet/kcp/congestion"

// The rate at which data arrives (draft-cheng-iccrg-delivery-rate-estimation).

// Transmission is what the sampler records of every transmission. The fields from
// delivered on are the totals and times at that moment.
type Transmission struct {
	At          int64  // when it left, in microseconds
	Number      uint64 // of the transmission, counted over all segments
	delivered   int64
	deliveredAt int64
	firstSent   int64
	lost        int64
	inFlight    int64
	appLimited  bool
}

// RateSampler holds the totals that rate samples are taken from. All its times
// are in microseconds, and its bytes include segment headers.
type RateSampler struct {
	Delivered       int64  // bytes acknowledged
	DeliveredAt     int64  // when the last of them were
	Lost            int64  // bytes of transmissions declared lost
	LostSent        int64  // when the newest of them had left
	firstSent       int64  // when the newest segment acknowledged had left
	MinRTT          int64  // shortest time to an acknowledgement; 0: none yet
	count           uint64 // transmissions
	NewestAckedTx   uint64 // number of the newest transmission ever acknowledged
	NewestAckedRTT  int64  // time until it was acknowledged
	appLimitedUntil int64  // delivered at which a lack of data has no more effect; 0: none

	*RateSample // nil before the first input, and after Compact with no data left
}

// RateSample is the sample of the current input.
type RateSample struct {
	Sample  congestion.Sample
	Newest  Transmission // of the newest segment acknowledged
	Sampled bool         // newest is valid
	Waited  bool         // the acknowledgement may have waited: it shows no round trip
}

// Sent returns the record of a transmission of size bytes. Before it, inFlight bytes
// were in flight.
func (r *RateSampler) Sent(size int, now, inFlight int64) Transmission {
	if inFlight <= 0 {
		r.firstSent, r.DeliveredAt = now, now
	}
	r.count++
	return Transmission{
		At: now, Number: r.count, delivered: r.Delivered, deliveredAt: r.DeliveredAt, firstSent: r.firstSent,
		lost: r.Lost, inFlight: inFlight + int64(size), appLimited: r.appLimitedUntil > 0,
	}
}

// Limited records that the sender has run out of data, with inFlight bytes in
// flight.
func (r *RateSampler) Limited(inFlight int64) {
	r.appLimitedUntil = max(r.Delivered+inFlight, 1)
}

// AppLimited reports whether the sender was short of data lately, so that samples say
// less than what the path takes.
func (r *RateSampler) AppLimited() bool { return r.appLimitedUntil > 0 }

// Queued reports whether the newest acknowledgement took half as long again as the
// shortest: a queue is on the path, and losses may be its overflow.
func (r *RateSampler) Queued() bool { return 2*r.NewestAckedRTT >= 3*r.MinRTT }

// MostLost reports whether more was declared lost than was delivered since the newest
// segment left that is acknowledged.
func (r *RateSampler) MostLost() bool {
	return r.RateSample != nil && r.Lost-r.Newest.lost > r.Delivered-r.Newest.delivered
}

// Begin starts the sample of a new input.
func (r *RateSampler) Begin() {
	if r.RateSample == nil {
		r.RateSample = new(RateSample)
	}
	r.Sample, r.Sampled, r.Waited = congestion.Sample{}, false, false
}

// Transmissions is how often a segment was sent before it was acknowledged.
type Transmissions uint8

const (
	Once      Transmissions = iota // once
	Repeated                       // once, and in redundant copies
	Last                           // more than once, and the last transmission has arrived
	Ambiguous                      // more than once, and which transmission has arrived is not known
)

// Acked records the acknowledgement of a segment of size bytes. tx is of its last
// transmission.
func (r *RateSampler) Acked(tx *Transmission, size int, now int64, how Transmissions) {
	r.Delivered += int64(size)
	r.DeliveredAt = now
	r.Sample.Acked += int64(size)
	rtt := now - tx.At
	if r.Waited {
		rtt = r.NewestAckedRTT
	} else if how == Once && (r.Sample.RTT == 0 || rtt < r.Sample.RTT) {
		r.Sample.RTT = max(rtt, 1)
	}
	if how <= Repeated && !r.Waited && (r.MinRTT == 0 || rtt < r.MinRTT) {
		r.MinRTT = rtt
	}
	if how != Ambiguous {
		r.OnDelivered(tx, rtt)
	}
}

// OnDelivered records that transmission tx was delivered. Its acknowledgement
// took rtt microseconds.
func (r *RateSampler) OnDelivered(tx *Transmission, rtt int64) {
	if !r.Sampled || tx.Number > r.Newest.Number {
		r.Newest, r.Sampled = *tx, true
	}
	if tx.Number > r.NewestAckedTx {
		r.NewestAckedTx, r.NewestAckedRTT = tx.Number, rtt
	}
}

// Finish completes the sample of the current input. Times are exact to grain
// microseconds.
func (r *RateSampler) Finish(grain int64) {
	if r.appLimitedUntil > 0 && r.Delivered > r.appLimitedUntil {
		r.appLimitedUntil = 0
	}
	if !r.Sampled {
		return
	}
	n, s := &r.Newest, &r.Sample
	r.firstSent = n.At
	s.PriorDelivered, s.InFlight, s.AppLimited = n.delivered, n.inFlight, n.appLimited
	s.Lost = r.Lost - n.lost
	s.Delivered = r.Delivered - n.delivered
	// Data can leave faster than the path takes it. Acknowledgements can arrive
	// faster too, if something on the way has held them back. The longer of the
	// two times is what the path took.
	s.Interval = max(n.At-n.firstSent, r.DeliveredAt-n.deliveredAt, grain)
	if s.RTT > 0 {
		s.RTT = max(s.RTT, grain)
	}
}

// DeclaredLost records that the last transmission of a segment of size bytes is
// declared lost. tx is of that transmission.
func (r *RateSampler) DeclaredLost(tx *Transmission, size int) {
	r.Lost += int64(size)
	r.LostSent = max(r.LostSent, tx.At)
}
