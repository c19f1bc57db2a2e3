package stats

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
	ProbesSent          uint64 // WASK that are not signals
	ProbesReceived      uint64 // WASK, signals of the session included
	WindowUpdates       uint64 // WINS received that are not signals
}

// Retransmits returns how many retransmissions were sent, for either reason.
// Repeats are not among them.
func (s Counters) Retransmits() uint64 { return s.TimeoutRetransmits + s.FastRetransmits }

// Add adds the counts of o.
func (s *Counters) Add(o *Counters) {
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

// Drops counts packets dropped, by reason.
type Drops struct {
	Short    uint64 // shorter than a segment header
	Conv     uint64 // a segment of another conversation inside
	Length   uint64 // a segment longer than its packet
	Command  uint64 // an unknown command
	Una      uint64 // acknowledges data that was never sent
	Piece    uint64 // a piece that is malformed, or contradicts others of its segment
	FEC      uint64 // a malformed or repeated FEC header
	Requests uint64 // more requests than are answered at a time
	Stream   uint64 // a stream segment that is malformed, or breaks the rules of its stream
}

// Total returns the sum of all reasons.
func (d Drops) Total() uint64 {
	return d.Short + d.Conv + d.Length + d.Command + d.Una + d.Piece + d.Requests + d.FEC + d.Stream
}

// Add adds the counts of o.
func (d *Drops) Add(o *Drops) {
	d.Short += o.Short
	d.Conv += o.Conv
	d.Length += o.Length
	d.Command += o.Command
	d.Una += o.Una
	d.Piece += o.Piece
	d.Requests += o.Requests
	d.FEC += o.FEC
	d.Stream += o.Stream
}
