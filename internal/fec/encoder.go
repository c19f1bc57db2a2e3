package fec

// maxGap is the pause before the last data shard of a group, in milliseconds,
// from which on the parity of the group is not sent: the shards before it have
// then arrived, or have been retransmitted, long ago.
const maxGap = 500

// Encoder adds parity to one direction of a session.
//
// It does not keep the packets of a group but adds each of them to the parity
// at once, so it holds about P+1 packets in buffers.
type Encoder struct {
	code  *code
	next  uint32 // seqid of the next shard
	count int    // data shards in the current group
	size  int    // longest of them, in bytes from the size field on

	last    uint32 // time of the last data shard, milliseconds
	started bool   // last is valid
	broken  bool   // the parity of the current group was given up

	// parity[i] has parityRoom bytes in front of the parity itself, which is
	// extended by length, a multiple of the vector size, as shards require.
	parity [][]byte
	length int
	stage  []byte   // the shard under way, padded
	out    [][]byte // result of Encode

	stats EncoderStats
}

// parityRoom keeps the parity behind its header aligned to cache lines.
const parityRoom = 64

// EncoderStats counts what an Encoder has done.
type EncoderStats struct {
	Data    uint64 // data shards
	Parity  uint64 // parity shards
	Skipped uint64 // groups whose parity was not sent, see [Encoder.Encode]
}

// NewEncoder returns an Encoder that adds parity shards to every data shards,
// each at least 1 and at most 256 together. Otherwise the error is [ErrRatio].
//
// A kcp-go receiver that is set to another ratio, or to none, learns it from
// the traffic as long as both add up to at most 255.
func NewEncoder(data, parity int) (*Encoder, error) {
	r := ratio{data, parity}
	if err := r.validate(); err != nil {
		return nil, err
	}
	return &Encoder{
		code:   newCode(r),
		parity: make([][]byte, parity),
		out:    make([][]byte, parity),
	}, nil
}

// Encode writes the header of a data shard to the first HeaderSize bytes of
// packet, which are followed by a KCP packet; packet is at most 65541 bytes
// long. At now, in milliseconds of a clock that may wrap, it is about to be
// sent.
//
// After the last data shard of a group Encode returns the parity packets, which
// are to be sent behind it and are valid until the next call. Where there was a
// pause of 500 ms or more before that shard, it returns none, and their seqids
// are passed over. Before the first shard of all there is no pause; kcp-go takes
// it for one, which shows with one data shard in a group and keeps its receivers
// from learning the ratio for 258 packets.
func (e *Encoder) Encode(packet []byte, now uint32) (parity [][]byte) {
	putSize(packet)
	putHeader(packet, e.take(), TypeData)
	e.stats.Data++

	steady := !e.started || !passed(e.last, now, maxGap)
	e.last, e.started = now, true

	e.add(packet[frameSize:])
	if e.count < e.code.data {
		return nil
	}
	if steady && !e.broken {
		parity = e.seal()
	} else {
		e.stats.Skipped++
		e.next = (e.next + uint32(e.code.parity)) % e.code.limit()
	}
	e.count, e.size, e.length, e.broken = 0, 0, 0, false
	return parity
}

// Stats returns what the Encoder has done since it was made.
func (e *Encoder) Stats() EncoderStats { return e.stats }

// Compact gives up all buffers, for a session that has fallen idle. The parity
// of a group that is under way will not be sent.
func (e *Encoder) Compact() {
	clear(e.parity)
	clear(e.out)
	e.stage = nil
	e.length = 0
	e.broken = e.count > 0
}

// take returns the next seqid.
func (e *Encoder) take() uint32 {
	seqid := e.next
	e.next = (e.next + 1) % e.code.limit()
	return seqid
}

// add adds a data shard to the parity of the current group.
func (e *Encoder) add(shard []byte) {
	k := e.count
	e.count++
	e.size = max(e.size, len(shard))
	if e.broken {
		return
	}
	n := padded(len(shard))
	e.grow(n)
	in := e.stage[:n]
	copy(in, shard)
	clear(in[len(shard):])
	// Up to length there is parity to add to, beyond it this shard is the first.
	old := min(e.length, n)
	for i, p := range e.parity {
		c := e.code.parityFactor(e.code.data+i, k)
		p = p[parityRoom:]
		mulAdd(c, in[:old], p[:old])
		if old < n {
			mul(c, in[old:], p[old:n])
		}
	}
	e.length = max(e.length, n)
}

// grow makes room for shards of n bytes.
func (e *Encoder) grow(n int) {
	if n <= len(e.stage) {
		return
	}
	_, size := class(n)
	e.stage = make([]byte, size)
	for i, old := range e.parity {
		p := make([]byte, parityRoom+size)
		copy(p, old)
		e.parity[i] = p
	}
}

// seal returns the parity packets of the current group.
func (e *Encoder) seal() [][]byte {
	for i, p := range e.parity {
		packet := p[parityRoom-frameSize : parityRoom+e.size]
		putHeader(packet, e.take(), TypeParity)
		e.out[i] = packet
	}
	e.stats.Parity += uint64(len(e.out))
	return e.out
}
