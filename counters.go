package kcp

// Counters counts what a state machine has done since New. Retransmissions
// count when they are sent.
type Counters struct {
	PacketsSent         uint64 // packets put out
	PacketsReceived     uint64 // packets put in that were long enough for a segment
	BytesSent           uint64 // payload bytes, each once
	BytesAcked          uint64 // payload bytes acknowledged, each once: the peer's endpoint has them
	BytesReceived       uint64 // payload bytes, each once
	SegmentsSent        uint64 // data segments, first transmissions
	TimeoutRetransmits  uint64 // data segments retransmitted after a time-out
	FastRetransmits     uint64 // data segments retransmitted earlier: after ACKs of later ones, or an outage
	Repeats             uint64 // redundant copies of data segments, outage probes included
	SpuriousRetransmits uint64 // TimeoutRetransmits and FastRetransmits of segments that had arrived
	SegmentsReceived    uint64 // data segments, duplicates included
	Duplicates          uint64 // data segments that had arrived before
	OutOfWindow         uint64 // data segments beyond the receive window or the memory allowed
	BrokenMessages      uint64 // messages dropped because their fragments do not count down
	AcksSent            uint64 // ACK segments
	AcksReceived        uint64 // ACK segments
	ProbesSent          uint64 // WASK that are no signals
	ProbesReceived      uint64 // WASK, signals of the session included
	WindowUpdates       uint64 // WINS received that are no signals
}

// Counters returns a copy of the counters of k.
func (k *KCP) Counters() Counters { return k.counters }

// Retransmits returns how many retransmissions were sent, for either reason.
// Repeats are not among them.
func (s Counters) Retransmits() uint64 { return s.TimeoutRetransmits + s.FastRetransmits }

// newSegments returns how many data segments have arrived that count: neither again
// nor beyond what is taken.
func (s *Counters) newSegments() uint64 { return s.SegmentsReceived - s.Duplicates - s.OutOfWindow }

// add adds the counts of o.
func (s *Counters) add(o *Counters) {
	s.PacketsSent += o.PacketsSent
	s.PacketsReceived += o.PacketsReceived
	s.BytesSent += o.BytesSent
	s.BytesAcked += o.BytesAcked
	s.BytesReceived += o.BytesReceived
	s.SegmentsSent += o.SegmentsSent
	s.TimeoutRetransmits += o.TimeoutRetransmits
	s.FastRetransmits += o.FastRetransmits
	s.Repeats += o.Repeats
	s.SpuriousRetransmits += o.SpuriousRetransmits
	s.SegmentsReceived += o.SegmentsReceived
	s.Duplicates += o.Duplicates
	s.OutOfWindow += o.OutOfWindow
	s.BrokenMessages += o.BrokenMessages
	s.AcksSent += o.AcksSent
	s.AcksReceived += o.AcksReceived
	s.ProbesSent += o.ProbesSent
	s.ProbesReceived += o.ProbesReceived
	s.WindowUpdates += o.WindowUpdates
}
