//go:build amd64 || arm64 || ppc64le

package fec

import "github.com/klauspost/reedsolomon"

// Only the kernels of the reedsolomon package are used, not its Encoder. Its
// Encode and Reconstruct allocate and its cache of inverted matrices grows with
// every new pattern of losses. The kernels run on the calling goroutine.

// mulsPerShard is for how many multiplications a shard pays. A multiplication of
// 1400 bytes takes less than 0.1 µs.
const mulsPerShard = maxShards / 2

// mul sets out to c times in, element by element.
func mul(c byte, in, out []byte) {
	var kernels reedsolomon.LowLevel
	kernels.GalMulSlice(c, in, out)
}

// mulAdd adds c times in to out, element by element.
func mulAdd(c byte, in, out []byte) {
	var kernels reedsolomon.LowLevel
	kernels.GalMulSliceXor(c, in, out)
}
