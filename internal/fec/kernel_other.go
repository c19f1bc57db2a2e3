//go:build !amd64 && !arm64 && !ppc64le

package fec

// The reedsolomon package has no vector code here, and builds tables of 32 MiB
// to make up for it, more than some routers have.

// mulsPerShard is for how many multiplications a shard pays. One of 1400 bytes
// takes about 0.5 µs.
const mulsPerShard = 32

// multiply fills d.rebuilt with the missing shards of g.
func (d *Decoder) multiply(g *group, size int) { d.multiplyLanes(g, size) }

// mul sets out to c times in, element by element.
func mul(c byte, in, out []byte) { mulGeneric(c, in, out) }

// mulAdd adds c times in to out, element by element.
func mulAdd(c byte, in, out []byte) { mulAddGeneric(c, in, out) }
