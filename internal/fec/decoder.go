package fec

import "math"

// Bounds of a Decoder. Together with a window of 4 to 64 groups (at least 128
// shards) they are all that traffic can make it keep.
const (
	maxHeld     = 1 << 20   // bytes in buffers, and for the moment of a recovery as much again
	maxPending  = 256 << 10 // bytes of them for shards of an unknown ratio
	sweepPeriod = 5000      // milliseconds between two looks for what is out of date
	groupAge    = 30_000    // milliseconds without a shard that end a group
)

// Decoder repairs one direction of a session. It learns the ratio from the
// traffic, also when it changes.
//
// A damaged or forged packet can spoil the group it appears to belong to, and
// no other: there is no state that makes the Decoder refuse later packets.
type Decoder struct {
	code    *code // nil while the ratio is unknown
	window  window
	pool    pool
	count   uint64 // shards that came to a group
	last    uint32 // seqid of the latest shard
	swept   uint32 // when sweep was called, milliseconds
	started bool   // swept is valid
	pending []held // shards that do not fit the ratio, oldest first
	bytes   int    // in the buffers of pending

	// doubt is at work while the ratio is unknown, has been contradicted, or
	// may be another since a jump of the seqid.
	doubt *learner

	// Space for the rebuilding of a group, by the ratio.
	missing, used []uint8
	sums          []uint8
	rebuilt       [][]byte

	stats DecoderStats
}

// shard is a data or parity shard on its way through the Decoder.
type shard struct {
	seqid  uint32
	isData bool
	stray  uint8  // how far its seqid is from the one after the previous shard's
	bytes  []byte // what the parity covers, or the parity
}

// held is a shard that waits for the ratio to become known.
type held struct {
	shard
	at uint32 // when it came, milliseconds
}

// DecoderStats counts what a Decoder has seen and done.
type DecoderStats struct {
	Data       uint64 // data shards, duplicates included
	Parity     uint64 // parity shards, duplicates included
	OOB        uint64 // out-of-band packets
	Duplicates uint64 // shards that were in their group already

	Recovered  uint64 // KCP packets given back by parity
	Corrupt    uint64 // recoveries whose result was no packet and was thrown away
	Lost       uint64 // groups given up with data missing
	Mismatched uint64 // shards that contradicted the ratio in use

	RatioChanges             uint64 // times a ratio was learned, the first included
	DataShards, ParityShards int    // the ratio in use, 0 while unknown
	Held                     int    // bytes in buffers
}

// NewDecoder returns a Decoder that knows nothing of its peer yet.
func NewDecoder() *Decoder { return &Decoder{doubt: new(learner)} }

// Decode takes one packet at now, in milliseconds of a clock that may wrap, and
// returns what of it is for the session: the KCP packet of a data shard, conv
// and payload of an out-of-band packet, nothing of a parity shard. The payload
// is part of packet. Data is returned whatever becomes of its group, duplicates
// too.
//
// Decode calls recovered, which may be nil, for each KCP packet that has been
// lost and can now be recovered; the slice is valid during the call, which must
// not use the Decoder.
//
// The error is ErrShort, ErrType, ErrSize, ErrSeqID or ErrReplay. With all but
// ErrReplay the kind is KindNone.
func (d *Decoder) Decode(packet []byte, now uint32, recovered func(packet []byte)) (payload []byte, kind Kind, err error) {
	if len(packet) < HeaderSize {
		return nil, KindNone, ErrShort
	}
	s := shard{seqid: packetSeqID(packet), bytes: packet[frameSize:]}
	switch packetType(packet) {
	case TypeData:
		if !sizeMatches(packet) {
			return nil, KindNone, ErrSize
		}
		s.isData = true
		d.stats.Data++
		// No ratio has that seqid, which is no reason to keep the packet back.
		if s.seqid != oobSeqID {
			_ = d.accept(s, now, recovered) // a repeated packet is the session's affair
		}
		return packet[HeaderSize:], KindData, nil
	case TypeParity:
		if len(s.bytes) > maxShard {
			return nil, KindNone, ErrSize
		}
		if s.seqid == oobSeqID {
			return nil, KindNone, ErrSeqID
		}
		d.stats.Parity++
		return nil, KindParity, d.accept(s, now, recovered)
	case TypeOOB:
		if len(packet) < HeaderSize+convSize {
			return nil, KindNone, ErrShort
		}
		if s.seqid != oobSeqID {
			return nil, KindNone, ErrSeqID
		}
		if !sizeMatches(packet) {
			return nil, KindNone, ErrSize
		}
		d.stats.OOB++
		return packet[HeaderSize:], KindOOB, nil
	}
	return nil, KindNone, ErrType
}

// Stats returns what the Decoder has seen and done since it was made.
func (d *Decoder) Stats() DecoderStats {
	s := d.stats
	if d.code != nil {
		s.DataShards, s.ParityShards = d.code.data, d.code.parity
	}
	s.Held = d.pool.held
	return s
}

// Compact gives up all buffers, for a session that has fallen idle. Groups that
// are under way can then be recovered only if enough of them is still to come.
// The ratio is kept.
func (d *Decoder) Compact() {
	for i := range d.window.groups {
		d.drop(i)
		d.window.groups[i] = group{}
	}
	d.expirePending(math.MaxInt)
	d.pending = nil
	d.pool.trim()
	d.missing, d.used, d.sums, d.rebuilt = nil, nil, nil, nil
	if d.code != nil {
		d.doubt = nil
	}
}

// accept takes a shard to its group, or keeps it until the ratio is known.
func (d *Decoder) accept(s shard, now uint32, recovered func([]byte)) error {
	s.stray = distance(s.seqid, d.last+1)
	d.last = s.seqid
	if !d.started || int32(now-d.swept) >= sweepPeriod {
		d.sweep(now)
	}
	fits := d.code != nil && d.code.fits(s.seqid, s.isData)
	if d.doubt == nil {
		if fits && s.stray < jump {
			return d.insert(s, now, recovered)
		}
		d.doubt = new(learner)
	}
	d.doubt.add(newSample(s.seqid, s.isData), fits)
	if s.stray >= jump {
		d.doubt.agree = 0
	}

	var err error
	if fits {
		err = d.insert(s, now, recovered)
	} else {
		d.hold(s, now)
	}
	d.learn(now, recovered)
	return err
}

// jump is a distance of seqids that says nothing of how far it really is. A peer
// that has begun anew, perhaps with another ratio, shows in one.
const jump = 255

// distance returns how far a is from b, either way, jump at most.
func distance(a, b uint32) uint8 {
	return uint8(min(a-b, b-a, jump))
}

// learn adopts a ratio if there is reason to.
func (d *Decoder) learn(now uint32, recovered func([]byte)) {
	var inUse ratio
	if d.code != nil {
		inUse = d.code.ratio
	}
	if r, ok := d.doubt.search(inUse); ok {
		d.adopt(r, now, recovered)
	} else if inUse.known() && d.doubt.settled() {
		d.resolve()
	}
}

// hold keeps a shard that does not fit the ratio.
func (d *Decoder) hold(s shard, now uint32) {
	if d.code != nil {
		d.stats.Mismatched++
	}
	_, size := class(len(s.bytes))
	n := 0
	for bytes := d.bytes; n < len(d.pending) && (bytes+size > maxPending || len(d.pending)-n >= maxSamples); n++ {
		bytes -= cap(d.pending[n].bytes)
	}
	d.expirePending(n)
	if d.pool.held+d.pool.growth(len(s.bytes)) > maxHeld {
		d.pool.trim()
		if d.pool.held+size > maxHeld {
			return
		}
	}
	d.bytes += size
	s.bytes = d.pool.clone(s.bytes)
	d.pending = append(d.pending, held{s, now})
}

// expirePending gives up the n oldest pending shards, or all if there are fewer.
func (d *Decoder) expirePending(n int) {
	n = min(n, len(d.pending))
	for i := range d.pending[:n] {
		d.bytes -= cap(d.pending[i].bytes)
		d.pool.put(d.pending[i].bytes)
	}
	rest := copy(d.pending, d.pending[n:])
	clear(d.pending[rest:])
	d.pending = d.pending[:rest]
}

// resolve ends the doubt about the ratio.
func (d *Decoder) resolve() {
	d.doubt = nil
	d.expirePending(math.MaxInt)
	d.pending = nil
}

// trusted reports whether the ratio in use may be relied on. Shards of another
// ratio that happen to fit would be combined to packets that never were, and
// these look real: what all packets of a session have in common, such as its
// conversation, comes out of any combination of them.
func (d *Decoder) trusted() bool {
	return d.doubt == nil || d.doubt.agree >= max(2*int(d.code.size()), minTrust)
}

// minTrust is how many shards in a row have to fit before a ratio that was
// contradicted is trusted again.
const minTrust = 32

// adopt changes to another ratio and sorts the shards that wait for it into
// groups. Those that are in groups already may be of the ratio before, and go.
func (d *Decoder) adopt(r ratio, now uint32, recovered func([]byte)) {
	waiting := d.pending
	d.pending, d.bytes = nil, 0
	for i := range d.window.numbers {
		d.drop(i)
	}
	d.code = newCode(r)
	d.window = newWindow(int(r.size()))
	d.missing, d.used, d.sums, d.rebuilt = nil, nil, nil, nil
	d.stats.RatioChanges++
	d.resolve()

	for _, h := range waiting {
		if r.fits(h.seqid, h.isData) {
			_ = d.insert(h.shard, now, recovered)
		}
		d.pool.put(h.bytes)
	}
}

// sweep gives up what is out of date.
func (d *Decoder) sweep(now uint32) {
	d.swept, d.started = now, true
	for i, number := range d.window.numbers {
		if number != noGroup && int32(now-d.window.groups[i].touched) >= groupAge {
			d.drop(i)
		}
	}
	n := 0
	for n < len(d.pending) && int32(now-d.pending[n].at) >= sweepPeriod {
		n++
	}
	d.expirePending(n)
	d.pool.age()
}
