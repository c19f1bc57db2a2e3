package fec

// candidates are the ratios that none of a run of shards contradicts.
//
// Loss, reordering, jumps of the seqid and parity that is not sent contradict
// nothing. A run of shards of one ratio therefore always leaves that ratio, and
// sooner or later no other. A shard costs one division for each size of a group
// that is left.
type candidates struct {
	sizes   [maxShards - 1]candidate
	n       int // of sizes, those that are left
	ratios  int // that are left, of all sizes
	shards  int // of the run
	data    int // of them
	against int // of them, those that contradict the ratio in use
}

// candidate is a size of a group, and how many of its shards can be data.
type candidate struct {
	size        uint16
	least, most uint8
}

// reset begins a new run.
func (c *candidates) reset() {
	for i := range c.sizes {
		c.sizes[i] = candidate{size: uint16(i + 2), least: 1, most: uint8(i + 1)}
	}
	*c = candidates{sizes: c.sizes, n: len(c.sizes)}
}

// add takes the next shard of the run; fits tells whether it fits the ratio in
// use. It reports whether any ratio is left.
func (c *candidates) add(s sample, fits bool) bool {
	c.shards++
	if s.typ < 0 {
		c.data++
	}
	if !fits {
		c.against++
	}
	n, ratios := 0, 0
	for _, x := range c.sizes[:c.n] {
		place := s.seqid % uint32(x.size)
		if s.typ < 0 {
			if place >= uint32(x.most) {
				continue
			}
			x.least = max(x.least, uint8(place+1))
		} else {
			if place < uint32(x.least) {
				continue
			}
			x.most = min(x.most, uint8(min(place, maxShards-1)))
		}
		c.sizes[n] = x
		n++
		ratios += int(x.most-x.least) + 1
	}
	c.n, c.ratios = n, ratios
	return n > 0
}

// only returns the one ratio that is left, if it is one. Shards of one kind say
// nothing.
func (c *candidates) only() (ratio, bool) {
	if c.ratios != 1 || c.data == 0 || c.data == c.shards {
		return ratio{}, false
	}
	x := c.sizes[0]
	return ratio{int(x.least), int(x.size) - int(x.least)}, true
}
