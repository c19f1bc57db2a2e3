package fec

import (
	"bytes"
	"unsafe"
)

// Bounds of the window of groups that a Decoder keeps. Groups in the window
// cost only their bookkeeping once their data has arrived.
const (
	minGroups    = 4
	maxGroups    = 64
	windowShards = 128 // that many shards fit at least
)

// noGroup is the number of an unused group.
const noGroup = 0xffffffff

// group is what is known of a group of shards.
type group struct {
	done    bool     // no data shard is missing any more
	data    int      // data shards that arrived, and have not been put in doubt
	parity  int      // parity shards in shards
	corrupt uint8    // recoveries whose result was not a packet
	touched uint32   // when the latest shard came, milliseconds
	used    uint64   // the Decoder's count of shards at that time
	seen    bitset   // shards that arrived
	shards  [][]byte // from the size field or parity on; nil where there is none
	stray   []uint8  // of each shard, see shard.stray
}

// bitset is a set of shards of a group.
type bitset [maxShards / 64]uint64

func (b *bitset) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b *bitset) add(i int)      { b[i/64] |= 1 << (i % 64) }

// window is the groups that got a shard most recently. Membership does not
// depend on the order of seqids, so that no seqid, however far ahead or behind,
// can make later shards appear too old.
type window struct {
	numbers []uint32 // seqid divided by the size of a group; noGroup if unused
	groups  []group
	recent  int // index of the last group that was looked up
	shards  int // of a group
	used    int // groups that have shards and stray
}

func newWindow(size int) window {
	n := min(maxGroups, max(minGroups, (windowShards+size-1)/size))
	w := window{numbers: make([]uint32, n), groups: make([]group, n), shards: size}
	for i := range w.numbers {
		w.numbers[i] = noGroup
	}
	return w
}

// size returns how much memory the window occupies beside itself and the buffers
// of its shards, in bytes.
func (w *window) size() int {
	if w.groups == nil {
		return 0
	}
	n := len(w.groups) * int(unsafe.Sizeof(group{})+unsafe.Sizeof(w.numbers[0]))
	return n + w.used*w.shards*(sliceSize+1)
}

// find returns the group with the given number, or nil.
func (w *window) find(number uint32) *group {
	if w.numbers[w.recent] == number {
		return &w.groups[w.recent]
	}
	for i, n := range w.numbers {
		if n == number {
			w.recent = i
			return &w.groups[i]
		}
	}
	return nil
}

// oldest returns the index of an unused group or else of the one that has been
// without a shard for the longest.
func (w *window) oldest() int {
	oldest := 0
	for i, n := range w.numbers {
		if n == noGroup {
			return i
		}
		if w.groups[i].used < w.groups[oldest].used {
			oldest = i
		}
	}
	return oldest
}

// group returns the group with the given number, a new one if need be.
func (d *Decoder) group(number uint32, now uint32) *group {
	if d.window.groups == nil {
		d.window = newWindow(int(d.code.size()))
	}
	g := d.window.find(number)
	if g == nil {
		i := d.window.oldest()
		d.drop(i)
		d.window.numbers[i] = number
		d.window.recent = i
		g = &d.window.groups[i]
		if g.shards == nil {
			g.shards = make([][]byte, d.code.size())
			g.stray = make([]uint8, d.code.size())
			d.window.used++
		}
	}
	g.touched = now
	d.count++
	g.used = d.count
	return g
}

// drop takes group i out of the window.
func (d *Decoder) drop(i int) {
	if d.window.numbers[i] == noGroup {
		return
	}
	g := &d.window.groups[i]
	if !g.done {
		d.stats.Lost++
	}
	d.release(g)
	d.window.numbers[i] = noGroup
	*g = group{shards: g.shards, stray: g.stray}
}

// release gives up the shards of g.
func (d *Decoder) release(g *group) {
	for i, shard := range g.shards {
		if shard != nil {
			d.pool.put(shard)
			g.shards[i] = nil
		}
	}
}

// discard gives up shard i of g.
func (d *Decoder) discard(g *group, i int) {
	d.pool.put(g.shards[i])
	g.shards[i] = nil
	if i < d.code.data {
		g.data--
	} else {
		g.parity--
	}
}

// store keeps a shard as number i of g, if the bound on memory allows it.
func (d *Decoder) store(g *group, i int, s shard) {
	for d.pool.held+d.pool.growth(len(s.bytes)) > maxHeld {
		if d.pool.idle > 0 {
			d.pool.trim()
			continue
		}
		oldest := d.window.oldest()
		if d.window.numbers[oldest] == noGroup || &d.window.groups[oldest] == g {
			return
		}
		d.drop(oldest)
	}
	g.shards[i] = d.pool.clone(s.bytes)
	g.stray[i] = s.stray
	if i < d.code.data {
		g.data++
	} else {
		g.parity++
	}
}

// insert adds a shard, which fits the ratio, to its group.
//
// Where two copies of a shard differ, one of them is damaged or forged, and
// trusting it would spoil the group. The seqid is most often what is wrong, and
// then the copy that came more in line with the others is the right one. If that
// does not tell, neither is used.
func (d *Decoder) insert(s shard, now uint32, recovered func([]byte)) error {
	d.earn(len(s.bytes))
	number := s.seqid / d.code.size()
	g := d.group(number, now)
	i := int(s.seqid % d.code.size())

	var ignored error
	if g.seen.has(i) {
		d.stats.Duplicates++
		if !s.isData {
			ignored = ErrReplay
		}
	}
	g.seen.add(i)
	if g.done {
		return ignored
	}
	if stored := g.shards[i]; stored != nil {
		if bytes.Equal(stored, s.bytes) || s.stray > g.stray[i] {
			return ignored
		}
		tie := s.stray == g.stray[i]
		d.discard(g, i)
		if tie {
			return ignored
		}
	}
	if s.isData && g.data+1 == d.code.data {
		g.done = true
		d.release(g)
		return nil
	}
	d.store(g, i, s)
	d.rebuild(g, recovered)
	return nil
}
