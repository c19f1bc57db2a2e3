package fec

import (
	"math/rand/v2"
	"testing"

	"github.com/klauspost/reedsolomon"
	"github.com/stretchr/testify/require"
)

// mulSlow multiplies polynomials bit by bit.
func mulSlow(a, b byte) byte {
	product, shifted := 0, int(a)
	for ; b != 0; b >>= 1 {
		if b&1 != 0 {
			product ^= shifted
		}
		if shifted <<= 1; shifted > 255 {
			shifted ^= 0x11d
		}
	}
	return byte(product)
}

func TestKernels(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 7, 64, 65, 192, 1408} {
		in, sum := make([]byte, n), make([]byte, n)
		for i := range in {
			in[i], sum[i] = byte(random.Uint32()), byte(random.Uint32())
		}
		for c := range 256 {
			product, added := make([]byte, n), make([]byte, n)
			for i := range in {
				product[i] = mulSlow(byte(c), in[i])
				added[i] = sum[i] ^ product[i]
			}
			for _, kernel := range []func(byte, []byte, []byte){mul, mulGeneric} {
				out := make([]byte, n)
				kernel(byte(c), in, out)
				require.Equal(t, product, out)
			}
			for _, kernel := range []func(byte, []byte, []byte){mulAdd, mulAddGeneric} {
				out := append([]byte(nil), sum...)
				kernel(byte(c), in, out)
				require.Equal(t, added, out)
			}
		}
	}
}

func TestCodeIsReedSolomons(t *testing.T) {
	for _, data := range []int{1, 2, 3, 5, 10, 20, 32} {
		for _, parity := range []int{1, 2, 3, 10, 56, maxShards - data} {
			testCode(t, ratio{data, parity})
		}
	}
	testCode(t, ratio{128, 128})
	testCode(t, ratio{255, 1})
}

func testCode(t *testing.T, r ratio) {
	theirs, err := reedsolomon.New(r.data, r.parity, reedsolomon.WithMaxGoroutines(1))
	require.NoError(t, err)
	// The parity of a shard with a single 1 is a column of the matrix.
	shards := make([][]byte, r.size())
	for i := range shards {
		shards[i] = make([]byte, r.data)
		if i < r.data {
			shards[i][i] = 1
		}
	}
	require.NoError(t, theirs.Encode(shards))
	c := newCode(r)
	for i := r.data; i < int(r.size()); i++ {
		for k := range r.data {
			if shards[i][k] != c.parityFactor(i, k) {
				t.Fatalf("%v: factor of %d in %d: want %d, got %d", r, k, i, shards[i][k], c.parityFactor(i, k))
			}
		}
	}
}
