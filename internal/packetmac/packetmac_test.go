package packetmac

import (
	"bytes"
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func newKey(t testing.TB, b byte) *Key {
	k, err := New(bytes.Repeat([]byte{b}, KeySize))
	require.NoError(t, err)
	return k
}

// The example of WIRE.md §4.1.
func TestMark(t *testing.T) {
	nonce := make([]byte, NonceSize)
	newKey(t, 1).Mark(nonce, []byte("hello"), 1<<32+7)
	require.Equal(t, "2787eca8d541cea60a8b2ea207000000", hex.EncodeToString(nonce))
	require.EqualValues(t, 7, Low(nonce))
}

// A nonce is good for its content, number and key, and for nothing else.
func TestCheck(t *testing.T) {
	a, other := newKey(t, 1), newKey(t, 2)
	for _, content := range [][]byte{nil, {0}, make([]byte, 16), bytes.Repeat([]byte("content "), 175)} {
		for _, number := range []uint64{0, 1, math.MaxUint32, 1 << 32, 1<<32 + 1, Numbers - 1} {
			nonce := make([]byte, NonceSize)
			a.Mark(nonce, content, number)
			require.True(t, a.Check(nonce, content, number))
			require.False(t, other.Check(nonce, content, number))
			for _, n := range []uint64{number + 1, number ^ 1<<32, number ^ 1<<61, number + Numbers, math.MaxUint64} {
				require.False(t, a.Check(nonce, content, n), "%d for %d", n, number)
			}
			require.False(t, a.Check(nonce, append(content, 0), number))
			require.False(t, a.Check(nonce[:NonceSize-1], content, number))
			require.False(t, a.Check(append(nonce, 0), content, number))
			for bit := range 8 * NonceSize {
				forged := bytes.Clone(nonce)
				forged[bit/8] ^= 1 << (bit % 8)
				require.False(t, a.Check(forged, content, number))
				require.False(t, a.Check(forged, content, number&^math.MaxUint32|uint64(Low(forged))))
			}
			for bit := 0; bit < 8*len(content); bit += 1 + len(content)/8 {
				forged := bytes.Clone(content)
				forged[bit/8] ^= 1 << (bit % 8)
				require.False(t, a.Check(nonce, forged, number))
			}
		}
	}
	require.Zero(t, Low(nil))
	require.False(t, a.Check(nil, nil, 0))
}

func TestAllocations(t *testing.T) {
	k, nonce, content := newKey(t, 1), make([]byte, NonceSize), make([]byte, 1400)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		k.Mark(nonce, content, 5)
		if !k.Check(nonce, content, 5) {
			panic("not taken")
		}
	}))
}

func BenchmarkMark(b *testing.B) {
	k, nonce, content := newKey(b, 1), make([]byte, NonceSize), make([]byte, 1400)
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for i := range b.N {
		k.Mark(nonce, content, uint64(i))
	}
}
