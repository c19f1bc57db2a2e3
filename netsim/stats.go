package netsim

// Tally counts packets and the bytes in them.
type Tally struct {
	Packets int64 // how many
	Bytes   int64 // payload only
}

func (t *Tally) add(size int) {
	t.Packets++
	t.Bytes += int64(size)
}

func (t *Tally) merge(o Tally) {
	t.Packets += o.Packets
	t.Bytes += o.Bytes
}

// LinkStats counts what became of the packets given to a Link, a Network or one
// direction of a Relay. Every packet is in Sent, and once none is underway
//
//	Sent + Duplicated = Delivered + Lost + Overflow + TooBig + Filtered + Unreachable
//
// Reordered and Corrupted are copies counted a second time, when they are sent.
type LinkStats struct {
	Sent        Tally // packets handed in
	Delivered   Tally // copies handed out
	Lost        Tally // lost by chance, in an outage, or to a cut
	Duplicated  Tally // second copies made
	Reordered   Tally // copies timed to arrive before a packet sent earlier
	Corrupted   Tally // copies with a flipped bit
	Overflow    Tally // dropped for lack of room in a queue
	TooBig      Tally // larger than the MTU
	Filtered    Tally // dropped by a Network's filter
	Unreachable Tally // arrived where no socket was, or refused by a Relay's socket
}

func (s *LinkStats) merge(o LinkStats) {
	s.Sent.merge(o.Sent)
	s.Delivered.merge(o.Delivered)
	s.Lost.merge(o.Lost)
	s.Duplicated.merge(o.Duplicated)
	s.Reordered.merge(o.Reordered)
	s.Corrupted.merge(o.Corrupted)
	s.Overflow.merge(o.Overflow)
	s.TooBig.merge(o.TooBig)
	s.Filtered.merge(o.Filtered)
	s.Unreachable.merge(o.Unreachable)
}
