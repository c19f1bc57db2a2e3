package fec

// The time is per KCP packet of 1400 bytes; parity comes on top of that.

// stream makes the groups of a sender over and over, with little more work than
// to write seqids.
type stream struct {
	ratio
	next    uint32
	packets [][]byte
}

// newStream returns a stream of data shards with KCP packets of n bytes.
func newStream(r ratio, n int) *stream {
	e, err := NewEncoder(r.data, r.parity)
	if err != nil {
		panic(err)
	}
	s := &stream{ratio: r}
	for i := range r.data {
		packet := make([]byte, HeaderSize+n)
		for j := range packet[HeaderSize:] {
			packet[HeaderSize+j] = byte(i*j + j>>3)
		}
		parity := e.Encode(packet, 0)
		s.packets = append(s.packets, packet)
		s.packets = append(s.packets, parity...)
	}
	return s
}

// group returns the packets of the next group, valid until the next call.
func (s *stream) group() [][]byte {
	for _, p := range s.packets {
		putHeader(p, s.next, packetType(p))
		s.next = (s.next + 1) % s.limit()
	}
	return s.packets
}
