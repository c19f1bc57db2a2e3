package fec

import "encoding/binary"

// rebuild recovers the missing data shards of g if enough shards are there.
// Parity that leads to nonsense is given up, and what parity is left or still to
// come gets its turn.
func (d *Decoder) rebuild(g *group, recovered func([]byte)) {
	for !g.done && g.data+g.parity >= d.code.data && d.trusted() {
		size := d.choose(g)
		if size == 0 {
			return
		}
		d.solve(g, size)
		if d.valid() {
			d.deliver(g, recovered)
		} else {
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
// parity shards. It returns the size of these, which is one for all and that of
// the longest data shard or more, or 0 if there are not enough of that kind.
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
	for i, first := range parity {
		if first == nil || len(first) < longest {
			continue
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
	d.code.logs(d.sums, d.missing, d.used)
	for _, i := range d.missing {
		out := d.pool.get(size)
		all := out[:padded(size)]
		// A parity shard is as long as the result and sets all of it.
		first := int(d.used[0])
		mul(factor(d.sums, int(i), first), g.shards[first][:len(all)], all)
		for _, k := range d.used[1:] {
			mulAdd(factor(d.sums, int(i), int(k)), g.shards[k][:len(all)], all)
		}
		for k, shard := range g.shards[:d.code.data] {
			if shard != nil {
				shard = shard[:padded(len(shard))]
				mulAdd(factor(d.sums, int(i), k), shard, all[:len(shard)])
			}
		}
		d.rebuilt = append(d.rebuilt, out)
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
