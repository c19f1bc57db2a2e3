//go:build !amd64 && !arm64 && !ppc64le

package fec

// The reedsolomon package has no vector code here, and builds tables of 32 MiB
// to make up for it, more than some routers have.

// mulsPerShard is for how many multiplications a shard pays. One of 1400 bytes
// takes 1 to 2 µs.
const mulsPerShard = 16

// mul sets out to c times in, element by element.
func mul(c byte, in, out []byte) { mulGeneric(c, in, out) }

// mulAdd adds c times in to out, element by element.
func mulAdd(c byte, in, out []byte) { mulAddGeneric(c, in, out) }
