package kcp

// Counters counts what a state machine has done since New.
type Counters struct {
	PacketsSent         uint64 // packets put out
	PacketsReceived     uint64 // packets put in that were long enough for a segment
	BytesSent           uint64 // payload, each byte once
	BytesReceived       uint64 // payload, each byte once
	SegmentsSent        uint64 // data segments, first transmissions
	TimeoutRetransmits  uint64 // data segments sent again after a time-out
	FastRetransmits     uint64 // data segments sent again after acknowledgements of later ones
	Repeats             uint64 // data segments repeated before anything told that they were lost
	SpuriousRetransmits uint64 // of both, where an earlier transmission had arrived
	SegmentsReceived    uint64 // data segments, duplicates included
	Duplicates          uint64 // data segments that had arrived before
	OutOfWindow         uint64 // data segments beyond the receive window
	BrokenMessages      uint64 // messages dropped because their fragments do not count down
	AcksSent            uint64
	AcksReceived        uint64
	ProbesSent          uint64 // WASK
	ProbesReceived      uint64 // WASK
	WindowUpdates       uint64 // WINS received
}

// Counters returns the counters of k.
func (k *KCP) Counters() Counters { return k.counters }

// Retransmits returns how many segments were sent again, for any reason.
func (s Counters) Retransmits() uint64 { return s.TimeoutRetransmits + s.FastRetransmits }

// Trace holds hooks into the state machine, for logging and tools. Any may be
// nil. They are called from within the methods of the KCP and must not call
// back; in a session they run under its lock and must not block.
type Trace struct {
	// Sent is called for every data segment put out. transmissions is 1 for
	// the first, rto the time-out that starts now, in milliseconds.
	Sent func(sn uint32, size, transmissions int, rto uint32)
	// Received is called for every data segment that arrives, new or not.
	Received func(sn uint32, size int)
	// RTT is called for every round-trip sample; all in milliseconds.
	RTT func(sample, srtt, rto uint32)
}

func (t *Trace) sent(s *sendSegment) {
	if t != nil && t.Sent != nil {
		t.Sent(uint32(s.sn), len(s.data), int(s.xmit), s.rto)
	}
}

func (t *Trace) received(sn seq, size int) {
	if t != nil && t.Received != nil {
		t.Received(uint32(sn), size)
	}
}

func (t *Trace) rtt(sample, srtt, rto uint32) {
	if t != nil && t.RTT != nil {
		t.RTT(sample, srtt, rto)
	}
}
