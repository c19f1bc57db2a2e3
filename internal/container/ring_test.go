package container

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingSize(t *testing.T) {
	for _, test := range []struct{ n, want int }{{0, 8}, {8, 8}, {9, 16}, {16, 16}, {17, 32}, {1000, 1024}} {
		require.Equal(t, test.want, RingSize(test.n), test.n)
	}
}

// Growing keeps what the ring holds under its numbers, those about zero too.
func TestReserve(t *testing.T) {
	for _, first := range []uint32{0, 5, 13, 1<<32 - 3, 1 << 31} {
		var r Ring[uint32]
		require.Zero(t, r.Len())
		r.Reserve(first, 1)
		require.Equal(t, 8, r.Len())
		for i := range uint32(8) {
			*r.At(first + i) = 100 + i
		}
		r.Reserve(first, 8)
		require.Equal(t, 8, r.Len(), "it was large enough")
		r.Reserve(first, 30)
		require.Equal(t, 32, r.Len())
		for i := range uint32(32) {
			want := uint32(0)
			if i < 8 {
				want = 100 + i
			}
			require.Equal(t, want, *r.At(first + i), "number %d of those from %d on", i, first)
		}
	}
}
