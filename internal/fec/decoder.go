package fec

import (
	"math"
	"unsafe"
)

// Bounds of a Decoder. Together with a window of 4 to 64 groups (at least 128
// shards) and a learner they are all that traffic can make it keep.
const (
	maxHeld     = 1 << 20   // bytes in buffers, and for the moment of a recovery as much again
	maxPending  = 256 << 10 // bytes of them for shards of an unknown ratio
	sweepPeriod = 5000      // milliseconds between two looks for what is out of date
	groupAge    = 30_000    // milliseconds without a shard that end a group
	adoptPeriod = 1000      // milliseconds between two changes of the ratio, in the long run
	adoptBurst  = 4         // changes that may come at once
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

	// Whatever becomes of doubt, these bound what shards can have done.
	wait     int    // shards until the next search
	searched uint32 // when the latest search was made, milliseconds
	changes  int    // of the ratio, less one for each adoptPeriod that has passed
	counted  uint32 // when that was last taken off, milliseconds

	work int // that shards have paid for, see earn

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
	Corrupt    uint64 // recoveries whose result was not a packet and was thrown away
	Lost       uint64 // groups given up with data missing
	Mismatched uint64 // shards that contradicted the ratio in use

	Searches                 uint64 // for a ratio that some shards contradict
	RatioChanges             uint64 // times a ratio was learned, the first included
	DataShards, ParityShards int    // the ratio in use, 0 while unknown
	Held                     int    // bytes of memory, see Decoder.Held
}

// NewDecoder returns a Decoder that knows nothing of its peer yet.
func NewDecoder() *Decoder { return &Decoder{doubt: newLearner()} }

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
		// No ratio has that seqid, but that does not keep the packet back.
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
	s.Held = d.Held()
	return s
}

// Held returns how much memory the Decoder occupies beside itself, in bytes:
// buffers, free ones too, and what it notes of shards and groups.
func (d *Decoder) Held() int {
	n := d.pool.held + d.pool.lists() + d.window.size()
	n += cap(d.pending) * int(unsafe.Sizeof(held{}))
	n += cap(d.missing) + cap(d.used) + cap(d.sums) + cap(d.rebuilt)*sliceSize
	if d.code != nil {
		n += int(unsafe.Sizeof(code{})) + cap(d.code.base)
	}
	if d.doubt != nil {
		n += int(unsafe.Sizeof(learner{})) + cap(d.doubt.samples)*int(unsafe.Sizeof(sample{}))
	}
	return n
}

// sliceSize is what a slice takes without its elements.
const sliceSize = int(unsafe.Sizeof([]byte(nil)))

// Compact gives up all buffers, for a session that has fallen idle. Groups that
// are under way can then be recovered only if enough of them is still to come.
// The ratio is kept.
func (d *Decoder) Compact() {
	for i := range d.window.groups {
		d.drop(i)
	}
	d.window = window{}
	d.expirePending(math.MaxInt)
	d.pending = nil
	d.pool.trim()
	if d.code != nil {
		d.code.base = nil
	}
	d.missing, d.used, d.sums, d.rebuilt = nil, nil, nil, nil
	if d.code != nil {
		d.doubt = nil
	}
}

// accept takes a shard to its group, or keeps it until the ratio is known.
func (d *Decoder) accept(s shard, now uint32, recovered func([]byte)) error {
	s.stray = distance(s.seqid, d.last+1)
	d.last = s.seqid
	if !d.started || passed(d.swept, now, sweepPeriod) {
		d.sweep(now)
	}
	fits := d.code != nil && d.code.fits(s.seqid, s.isData)
	if d.doubt == nil {
		if fits && s.stray < jump {
			return d.insert(s, now, recovered)
		}
		d.doubt = newLearner()
	}
	d.wait = max(0, d.wait-1)
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
// that has started over, perhaps with another ratio, shows in one.
const jump = 255

// distance returns how far a is from b, either way, jump at most.
func distance(a, b uint32) uint8 {
	return uint8(min(a-b, b-a, jump))
}

// learn adopts a ratio if there is reason to.
//
// To change the ratio costs a window and what waits to be sorted into it. Shards
// that speak for one ratio and then for another have it happen adoptBurst times,
// and then once in adoptPeriod.
func (d *Decoder) learn(now uint32, recovered func([]byte)) {
	var inUse ratio
	if d.code != nil {
		inUse = d.code.ratio
	}
	if d.mayAdopt(now) {
		r, ok := d.doubt.only(inUse)
		if !ok && d.maySearch(inUse, now) {
			r, ok = d.doubt.search(inUse)
		}
		if ok {
			d.adopt(r, now, recovered)
			return
		}
	}
	if inUse.known() && d.doubt.settled() {
		d.resolve()
	}
}

// mayAdopt reports whether the ratio may change.
func (d *Decoder) mayAdopt(now uint32) bool {
	if d.changes > 0 && passed(d.counted, now, adoptPeriod) {
		d.changes -= min(d.changes, int((now-d.counted)/adoptPeriod))
		d.counted = now
	}
	return d.changes < adoptBurst
}

// maySearch reports whether a search is due, and counts it.
func (d *Decoder) maySearch(inUse ratio, now uint32) bool {
	if d.wait > 0 || !d.doubt.searchable(inUse) ||
		d.stats.Searches > 0 && !passed(d.searched, now, searchPeriod) {
		return false
	}
	d.stats.Searches++
	d.searched = now
	d.wait = len(d.doubt.samples)
	return true
}

// passed reports whether a period has passed from then to now, in milliseconds
// of a clock that wraps. A clock may have gone back a little since, and what is
// half the circle away or more is long ago.
func passed(then, now, period uint32) bool {
	elapsed := now - then
	return elapsed >= period && elapsed < 1<<32-clockSlack
}

// clockSlack is by how much the clock may go back, in milliseconds.
const clockSlack = 60_000

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
	if n > 0 {
		d.expirePending(max(n, len(d.pending)/8)) // the rest is moved up, so not for each one
	}
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
	d.code = &code{ratio: r}
	d.window = window{}
	d.missing, d.used, d.sums, d.rebuilt = nil, nil, nil, nil
	d.stats.RatioChanges++
	if d.changes == 0 {
		d.counted = now
	}
	d.changes++
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
		if number != noGroup && passed(d.window.groups[i].touched, now, groupAge) {
			d.drop(i)
		}
	}
	n := 0
	for n < len(d.pending) && passed(d.pending[n].at, now, sweepPeriod) {
		n++
	}
	d.expirePending(n)
	d.pool.age()
}
