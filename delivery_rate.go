package kcp

// RateSample is what one input tells about the path: how fast data arrives
// there. It is taken as draft-cheng-iccrg-delivery-rate-estimation describes:
// between the transmission of the newest segment acknowledged and now, as much
// was delivered as the total has grown.
type RateSample struct {
	Acked          int64 // bytes that the input acknowledged
	RTT            int64 // in microseconds, of the newest segment that was sent only once; 0: none
	Delivered      int64 // bytes delivered in Interval
	Interval       int64 // in microseconds; 0: no sample
	PriorDelivered int64 // CongestionState.Delivered when the newest segment left
	InFlight       int64 // FlightBytes when it left, itself included
	Lost           int64 // bytes taken for lost since it left
	AppLimited     bool  // the sender was short of data when it left
}

// Rate returns the delivery rate in bytes a second; 0 without a sample.
func (r *RateSample) Rate() int64 {
	if r.Interval <= 0 {
		return 0
	}
	return int64(float64(r.Delivered) * 1e6 / float64(r.Interval))
}

// sendRecord is what the sampler notes with every transmission.
type sendRecord struct {
	at          int64  // when it left, in microseconds
	number      uint64 // of the transmission, counted over all segments
	delivered   int64  // totals and times at that moment
	deliveredAt int64
	firstSent   int64
	lost        int64
	inFlight    int64
	appLimited  bool
}

// rateSampler keeps the totals that rate samples are taken from.
type rateSampler struct {
	delivered       int64  // bytes acknowledged
	deliveredAt     int64  // when the last of them were
	lost            int64  // bytes of transmissions taken for lost
	lostSent        int64  // when the newest of them had left
	firstSent       int64  // when the newest segment acknowledged had left
	minRTT          int64  // least time to an acknowledgement
	count           uint64 // transmissions
	newestAckedTx   uint64 // number of the newest transmission acknowledged at all,
	frontRTT        int64  // and how long that took
	appLimitedUntil int64  // delivered at which the effects of a lack of data are over; 0: none

	*rateInput // nil before the first input, and when there is nothing in flight any more
}

// rateInput is what the current input tells.
type rateInput struct {
	sample RateSample
	newest sendRecord // of the newest segment acknowledged
	any    bool
}

// sent records a transmission, before which inFlight bytes were in flight.
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

// limited notes that the sender has run out of data with inFlight bytes in
// flight.
func (r *rateSampler) limited(inFlight int64) {
	r.appLimitedUntil = max(r.delivered+inFlight, 1)
}

// begin starts a new input.
func (r *rateSampler) begin() {
	if r.rateInput == nil {
		r.rateInput = new(rateInput)
	}
	r.sample, r.any = RateSample{}, false
}

// acked takes the acknowledgement of s. Where s was sent more than once, last
// says that it is known to be that of the last transmission.
func (r *rateSampler) acked(s *sendSegment, now int64, last bool) {
	size := int64(s.size())
	r.delivered += size
	r.deliveredAt = now
	r.sample.Acked += size
	rtt := now - s.tx.at
	if s.xmit == 1 && s.repeats == 0 && (r.sample.RTT == 0 || rtt < r.sample.RTT) {
		r.sample.RTT = max(rtt, 1)
	}
	if s.xmit == 1 && (r.minRTT == 0 || rtt < r.minRTT) {
		r.minRTT = rtt
	}
	if s.xmit == 1 || last {
		r.arrived(&s.tx, rtt)
	}
}

// arrived takes it that a transmission has arrived, the acknowledgement of which
// took rtt.
func (r *rateSampler) arrived(tx *sendRecord, rtt int64) {
	if !r.any || tx.number > r.newest.number {
		r.newest, r.any = *tx, true
	}
	if tx.number > r.newestAckedTx {
		r.newestAckedTx, r.frontRTT = tx.number, rtt
	}
}

// finish completes the sample of the current input. Times are exact to grain
// microseconds.
func (r *rateSampler) finish(grain int64) {
	if r.appLimitedUntil > 0 && r.delivered > r.appLimitedUntil {
		r.appLimitedUntil = 0
	}
	if !r.any {
		return
	}
	n, s := &r.newest, &r.sample
	r.firstSent = n.at
	s.PriorDelivered, s.InFlight, s.AppLimited = n.delivered, n.inFlight, n.appLimited
	s.Lost = r.lost - n.lost
	s.Delivered = r.delivered - n.delivered
	// Sending can be faster than the path, and so can acknowledging, where
	// something on the way has held acknowledgements back: the longer of the two
	// is what the path took.
	s.Interval = max(n.at-n.firstSent, r.deliveredAt-n.deliveredAt, grain)
	if s.RTT > 0 {
		s.RTT = max(s.RTT, grain)
	}
}

// takenForLost notes that the last transmission of s is taken for lost.
func (r *rateSampler) takenForLost(s *sendSegment) {
	r.lost += int64(s.size())
	r.lostSent = max(r.lostSent, s.tx.at)
	s.lostAt = s.tx.at
}
