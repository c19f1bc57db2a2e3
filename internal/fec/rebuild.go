package fec

import "encoding/binary"

// Bounds of the work for a group. To rebuild one takes as many multiplications
// of a shard as it has data shards, for each that is missing.
const (
	maxCorrupt = 8       // recoveries of nonsense, after which a group is given up
	maxLengths = 8       // lengths of parity that are tried at a time
	maxWork    = 1 << 25 // saved up for multiplications; the largest group takes that for 1400 bytes
	mulWork    = 512     // of a multiplication, beside its bytes
)

// work returns what n multiplications of a shard of the given size take. The
// unit is a byte.
func work(n, size int) int { return n * (padded(size) + mulWork) }

// earn lets a shard pay for rebuilding. What a shard pays for is enough for any
// group wherever there is vector code.
func (d *Decoder) earn(size int) {
	d.work = min(maxWork, d.work+work(mulsPerShard, size))
}

// rebuild recovers the missing data shards of g if enough shards are there.
// Parity that leads to nonsense is given up, and what parity is left or still to
// come gets its turn.
func (d *Decoder) rebuild(g *group, recovered func([]byte)) {
	for !g.done && g.corrupt < maxCorrupt && g.data+g.parity >= d.code.data && d.trusted() {
		size := d.choose(g)
		if size == 0 || d.work < work(len(d.missing)*d.code.data, size) {
			return
		}
		d.work -= work(len(d.missing)*d.code.data, size)
		d.solve(g, size)
		if d.valid() {
			d.deliver(g, recovered)
		} else {
			g.corrupt++
			d.stats.Corrupt++
			for _, i := range d.used {
				d.discard(g, int(i))
			}
		}
		for i, b := range d.rebuilt {
			d.pool.put(b)
			d.rebuilt[i] = nil
		}
		d.rebuilt = d.rebuilt[:0]
	}
}

// choose sets d.missing to the missing data shards of g and d.used to as many
// parity shards. It returns the size of these, which is one for all and equal to the size
// of the longest data shard or more, or 0 if there are not enough of that kind.
func (d *Decoder) choose(g *group) int {
	if d.sums == nil {
		d.sums = make([]uint8, d.code.size())
		d.missing = make([]uint8, 0, d.code.parity)
		d.used = make([]uint8, 0, d.code.parity)
	}
	d.missing = d.missing[:0]
	longest := 0
	for i, shard := range g.shards[:d.code.data] {
		if shard == nil {
			d.missing = append(d.missing, uint8(i))
		}
		longest = max(longest, len(shard))
	}
	parity := g.shards[d.code.data:]
	tried, latest := 0, 0
	for i, first := range parity {
		if first == nil || len(first) < longest || len(first) == latest {
			continue
		}
		latest = len(first)
		if tried++; tried > maxLengths {
			break
		}
		d.used = d.used[:0]
		for j := i; j < len(parity) && len(d.used) < len(d.missing); j++ {
			if parity[j] != nil && len(parity[j]) == len(first) {
				d.used = append(d.used, uint8(d.code.data+j))
			}
		}
		if len(d.used) == len(d.missing) {
			return len(first)
		}
	}
	return 0
}

// solve sets d.rebuilt to the missing data shards of g, each of the given size.
func (d *Decoder) solve(g *group, size int) {
	d.code.prepare()
	d.code.logs(d.sums, d.missing, d.used)
	for range d.missing {
		d.rebuilt = append(d.rebuilt, d.pool.get(size))
	}
	for n := range d.missing {
		d.multiplyOne(g, n, size)
	}
}

// multiplyOne fills d.rebuilt[n].
func (d *Decoder) multiplyOne(g *group, n, size int) {
	i, all := int(d.missing[n]), d.rebuilt[n][:padded(size)]
	// A parity shard is as long as the result and sets all of it.
	first := int(d.used[0])
	mul(factor(d.sums, i, first), g.shards[first][:len(all)], all)
	for _, k := range d.used[1:] {
		mulAdd(factor(d.sums, i, int(k)), g.shards[k][:len(all)], all)
	}
	for k, shard := range g.shards[:d.code.data] {
		if shard != nil {
			shard = shard[:padded(len(shard))]
			mulAdd(factor(d.sums, i, k), shard, all[:len(shard)])
		}
	}
}

// valid reports whether every rebuilt shard is a packet followed by padding.
// Damage in one shard of a group shows in every rebuilt one at the same place,
// so that a single misfit speaks against all.
func (d *Decoder) valid() bool {
	for _, b := range d.rebuilt {
		size := int(binary.LittleEndian.Uint16(b))
		if size < sizeSize || size > len(b) {
			return false
		}
		for _, padding := range b[size:] {
			if padding != 0 {
				return false
			}
		}
	}
	return true
}

// deliver hands the rebuilt packets to the session, and closes the group.
func (d *Decoder) deliver(g *group, recovered func([]byte)) {
	g.done = true
	d.release(g)
	for _, b := range d.rebuilt {
		size := binary.LittleEndian.Uint16(b)
		d.stats.Recovered++
		if recovered != nil {
			recovered(b[sizeSize:size])
		}
	}
}
