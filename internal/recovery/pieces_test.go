package recovery

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
)

// recount returns the memory of all segments.
func (a *PartialSegments) recount() (n int) {
	for _, s := range a.held {
		n += s.memory()
	}
	return n
}

// PartialSegments that are cut anew at each transmission, and whose pieces come in any
// order and twice, are whole when all bytes have come, and not before. What is held
// is what is counted.
func TestSegments(t *testing.T) {
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 1))
		var a PartialSegments
		var pool container.Pool[int]
		const segments = 5
		var want [segments][]byte
		var pieces []Piece
		var of []int
		missing := make(map[[2]int]bool)
		for sn := range segments {
			want[sn] = make([]byte, 1+random.IntN(5000))
			for i := range want[sn] {
				want[sn][i] = byte(random.Uint32())
				missing[[2]int{sn, i}] = true
			}
			size := len(want[sn])
			for range 1 + random.IntN(3) {
				for at := 0; at < size; {
					n := min(PieceUnit(size)*(1+random.IntN(20)), size-at)
					pieces, of = append(pieces, Piece{at, size, want[sn][at : at+n]}), append(of, sn)
					at += n
				}
			}
		}
		done := make(map[int]bool)
		for _, i := range random.Perm(len(pieces)) {
			b := make([]byte, PieceHeader+len(pieces[i].Data))
			pieces[i].Encode(b)
			p, ok := DecodePiece(b)
			require.True(t, ok)
			sn, left := of[i], 0
			if done[sn] {
				continue
			}
			for at := range p.Data {
				delete(missing, [2]int{sn, p.At + at})
			}
			for key := range missing {
				if key[0] == sn {
					left++
				}
			}
			if a.Compare(container.Serial(sn), 3, &p) == KnownPiece {
				continue
			}
			whole := a.Add(container.Serial(sn), 3, &p, &pool, 0, 100)
			require.Equal(t, left == 0, whole != nil, "seed %d", seed)
			require.Equal(t, a.recount(), a.Bytes())
			if done[sn] = whole != nil; done[sn] {
				require.True(t, bytes.Equal(want[sn], whole))
			}
		}
		require.Zero(t, a.Len())
		require.Zero(t, a.Bytes())
	}
}

// What has waited too long is dropped, and nothing else, also when the clock wraps
// around.
func TestExpire(t *testing.T) {
	var a PartialSegments
	var pool container.Pool[int]
	p := Piece{0, 200, make([]byte, 4)}
	start := ^container.Serial(0) - 50
	a.Add(1, 0, &p, &pool, start, 100)
	a.Add(2, 0, &p, &pool, start+60, 100)
	a.Expire(start+99, 100, &pool)
	require.Equal(t, 2, a.Len())
	a.Expire(start+100, 100, &pool)
	require.False(t, a.Has(1))
	require.True(t, a.Has(2))
	require.Equal(t, a.recount(), a.Bytes())
	require.Equal(t, ContradictingPiece, a.Compare(2, 1, &p))
	require.Equal(t, ContradictingPiece, a.Compare(2, 0, &Piece{0, 199, p.Data}))
	require.Equal(t, KnownPiece, a.Compare(2, 0, &p))
	require.Equal(t, MorePiece, a.Compare(2, 0, &Piece{4, 200, p.Data}))
	a.Drop(2, &pool)
	require.Zero(t, a.Bytes())
}

func TestUnitsIn(t *testing.T) {
	for size := 1; size < 70000; size += 1 + size/7 {
		unit := PieceUnit(size)
		all := unitsIn(0, size, unit)
		require.LessOrEqual(t, bits.OnesCount64(all), MaxPieces)
		require.Equal(t, (size+unit-1)/unit, bits.OnesCount64(all))
		sum := uint64(0)
		for at := 0; at < size; at += unit {
			one := unitsIn(at, min(at+unit, size), unit)
			require.Equal(t, 1, bits.OnesCount64(one))
			require.Zero(t, sum&one)
			sum |= one
		}
		require.Equal(t, all, sum)
	}
}
