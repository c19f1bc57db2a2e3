package fec

import "fmt"

// ratio is the shape of a group. The zero value is an unknown ratio.
type ratio struct {
	data, parity int
}

func (r ratio) String() string { return fmt.Sprintf("%d-%d", r.data, r.parity) }

func (r ratio) known() bool { return r.data != 0 }

// size is the number of shards of a group.
func (r ratio) size() uint32 { return uint32(r.data + r.parity) }

// limit is the modulus of seqids: the largest multiple of the size of a group
// that 32 bits hold.
func (r ratio) limit() uint32 { return 0xffffffff / r.size() * r.size() }

// fits reports whether a shard of the given kind can have this seqid.
func (r ratio) fits(seqid uint32, isData bool) bool {
	return seqid < r.limit() && (seqid%r.size() < uint32(r.data)) == isData
}

func (r ratio) validate() error {
	if r.data < 1 || r.parity < 1 || r.data > maxShards || r.parity > maxShards || r.data+r.parity > maxShards {
		return fmt.Errorf("%w: %d data and %d parity shards, want at least 1 of each and at most %d in all",
			ErrRatio, r.data, r.parity, maxShards)
	}
	return nil
}

// code is the Reed-Solomon code of a ratio.
//
// Bytes at the same place in the shards of a group are the values of one
// polynomial over GF(2^8) of a degree below D, shard x holding its value at x.
// This is the code of the Vandermonde matrix, made systematic, that the
// reedsolomon package uses. Being a polynomial it is known by any D of its
// values, and Lagrange's formula gives each missing value as a sum over the
// known ones, with no matrix to invert:
//
//	y[i] = Σk y[k] · Πm (i-m) / (k-m), with k and m≠k running over the known
//
// Subtraction is xor. The products are taken as sums of logarithms.
type code struct {
	ratio

	// base[x] is the logarithm of the product of (x-m) over all data shards
	// m ≠ x. A Decoder has it only after the first group to rebuild.
	base []uint8
}

func newCode(r ratio) *code {
	c := &code{ratio: r}
	c.prepare()
	return c
}

// prepare fills base, if that has not been done.
func (c *code) prepare() {
	if c.base != nil {
		return
	}
	c.base = make([]uint8, c.size())
	for x := range c.base {
		sum := 0
		for m := range c.data {
			sum += logDiff(x, m)
		}
		c.base[x] = uint8(sum % gfOrder)
	}
}

// logDiff returns the logarithm of x-m, and 0 where they are equal, which
// leaves a factor out of a product.
func logDiff(x, m int) int { return int(gfLog[byte(x)^byte(m)]) }

// parityFactor returns the factor of data shard k in parity shard i, both
// counted from the start of the group.
func (c *code) parityFactor(i, k int) byte {
	return gfExp[(int(c.base[i])-logDiff(i, k)-int(c.base[k])+2*gfOrder)%gfOrder]
}

// logs fills sums[x], for every shard x of the group, with the logarithm of the
// product of (x-m) over all known shards m ≠ x. The known ones are all data
// shards but the missing ones, and as many parity shards as are missing.
func (c *code) logs(sums []uint8, missing, used []uint8) {
	for x := range sums {
		sum := int(c.base[x])
		for n := range missing {
			sum += gfOrder - logDiff(x, int(missing[n])) + logDiff(x, int(used[n]))
		}
		sums[x] = uint8(sum % gfOrder)
	}
}

// factor returns the factor of the known shard k in the missing shard i, from
// sums as filled by logs.
func factor(sums []uint8, i, k int) byte {
	return gfExp[(int(sums[i])-logDiff(i, k)-int(sums[k])+2*gfOrder)%gfOrder]
}
