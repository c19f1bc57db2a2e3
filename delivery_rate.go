package kcp

// RateSample is what one input shows of the path: the rate at which data
// arrives (draft-cheng-iccrg-delivery-rate-estimation). It spans the time from
// the transmission of the newest segment acknowledged until now. In that time
// as much was delivered as the total has grown. Bytes include segment headers.
type RateSample struct {
	Acked          int64 // bytes that the input acknowledged
	RTT            int64 // microseconds, of the newest segment sent only once; 0: none
	Delivered      int64 // bytes delivered in Interval
	Interval       int64 // microseconds; 0: no sample
	PriorDelivered int64 // CongestionState.Delivered when the newest segment left
	InFlight       int64 // FlightBytes when it left, itself included
	Lost           int64 // bytes found lost since it left
	AppLimited     bool  // the sender was short of data when it left
}

// Rate returns the delivery rate in bytes a second; 0 without a sample.
func (r *RateSample) Rate() int64 {
	if r.Interval <= 0 {
		return 0
	}
	return int64(float64(r.Delivered) * 1e6 / float64(r.Interval))
}

// sendRecord is what the sampler records of every transmission. The fields from
// delivered on are the totals and times at that moment.
type sendRecord struct {
	at          int64  // when it left, in microseconds
	number      uint64 // of the transmission, counted over all segments
	delivered   int64
	deliveredAt int64
	firstSent   int64
	lost        int64
	inFlight    int64
	appLimited  bool
}

// rateSampler holds the totals that rate samples are taken from. All its times
// are in microseconds, and its bytes include segment headers.
type rateSampler struct {
	delivered       int64  // bytes acknowledged
	deliveredAt     int64  // when the last of them were
	lost            int64  // bytes of transmissions declared lost
	lostSent        int64  // when the newest of them had left
	firstSent       int64  // when the newest segment acknowledged had left
	minRTT          int64  // shortest time to an acknowledgement; 0: none yet
	count           uint64 // transmissions
	newestAckedTx   uint64 // number of the newest transmission ever acknowledged
	newestAckedRTT  int64  // time until it was acknowledged
	appLimitedUntil int64  // delivered at which a lack of data has no more effect; 0: none

	*rateInput // nil before the first input, and after Compact with no data left
}

// rateInput is the sample of the current input.
type rateInput struct {
	sample  RateSample
	newest  sendRecord // of the newest segment acknowledged
	sampled bool       // newest is valid
	waited  bool       // the acknowledgement may have waited: it shows no round trip
}

// sent records a transmission of s. Before it, inFlight bytes were in flight.
func (r *rateSampler) sent(s *sendSegment, now, inFlight int64) {
	if inFlight <= 0 {
		r.firstSent, r.deliveredAt = now, now
	}
	r.count++
	s.tx = sendRecord{
		at: now, number: r.count, delivered: r.delivered, deliveredAt: r.deliveredAt, firstSent: r.firstSent,
		lost: r.lost, inFlight: inFlight + int64(s.size()), appLimited: r.appLimitedUntil > 0,
	}
}

// limited records that the sender has run out of data, with inFlight bytes in
// flight.
func (r *rateSampler) limited(inFlight int64) {
	r.appLimitedUntil = max(r.delivered+inFlight, 1)
}

// begin starts the sample of a new input.
func (r *rateSampler) begin() {
	if r.rateInput == nil {
		r.rateInput = new(rateInput)
	}
	r.sample, r.sampled, r.waited = RateSample{}, false, false
}

// acked records the acknowledgement of s. If s was sent more than once, last
// says that its last transmission is known to have arrived.
func (r *rateSampler) acked(s *sendSegment, now int64, last bool) {
	size := int64(s.size())
	r.delivered += size
	r.deliveredAt = now
	r.sample.Acked += size
	rtt := now - s.tx.at
	if r.waited {
		rtt = r.newestAckedRTT
	} else if s.xmit == 1 && s.repeats == 0 && (r.sample.RTT == 0 || rtt < r.sample.RTT) {
		r.sample.RTT = max(rtt, 1)
	}
	if s.xmit == 1 && !r.waited && (r.minRTT == 0 || rtt < r.minRTT) {
		r.minRTT = rtt
	}
	if s.xmit == 1 || last {
		r.onDelivered(&s.tx, rtt)
	}
}

// onDelivered records that transmission tx was delivered. Its acknowledgement
// took rtt microseconds.
func (r *rateSampler) onDelivered(tx *sendRecord, rtt int64) {
	if !r.sampled || tx.number > r.newest.number {
		r.newest, r.sampled = *tx, true
	}
	if tx.number > r.newestAckedTx {
		r.newestAckedTx, r.newestAckedRTT = tx.number, rtt
	}
}

// finish completes the sample of the current input. Times are exact to grain
// microseconds.
func (r *rateSampler) finish(grain int64) {
	if r.appLimitedUntil > 0 && r.delivered > r.appLimitedUntil {
		r.appLimitedUntil = 0
	}
	if !r.sampled {
		return
	}
	n, s := &r.newest, &r.sample
	r.firstSent = n.at
	s.PriorDelivered, s.InFlight, s.AppLimited = n.delivered, n.inFlight, n.appLimited
	s.Lost = r.lost - n.lost
	s.Delivered = r.delivered - n.delivered
	// Data can leave faster than the path takes it. Acknowledgements can arrive
	// faster too, if something on the way has held them back. The longer of the
	// two times is what the path took.
	s.Interval = max(n.at-n.firstSent, r.deliveredAt-n.deliveredAt, grain)
	if s.RTT > 0 {
		s.RTT = max(s.RTT, grain)
	}
}

// declaredLost records that the last transmission of s is declared lost.
func (r *rateSampler) declaredLost(s *sendSegment) {
	r.lost += int64(s.size())
	r.lostSent = max(r.lostSent, s.tx.at)
	s.lostAt = s.tx.at
}
