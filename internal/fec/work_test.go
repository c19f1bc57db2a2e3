package fec

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// attacks make packets that are to cost a Decoder as much as they can, each
// without regard to what the one before has led to.
var attacks = []struct {
	name string
	next func(packet []byte, i int, random *rand.Rand) []byte
}{
	// Random seqids and types fit no ratio.
	{"random", func(p []byte, i int, random *rand.Rand) []byte {
		return smallShard(p, random.Uint32(), random.IntN(2) == 0)
	}},
	// Few shards in a row single out one ratio, and then another.
	{"alternating", func(p []byte, i int, random *rand.Rand) []byte {
		r := []ratio{{1, 1}, {2, 1}, {1, 2}, {2, 2}}[i/16%4]
		seqid := uint32(i)
		return smallShard(p, seqid, seqid%r.size() < uint32(r.data))
	}},
	// The same with large groups, of which only the edges are shown.
	{"edges", func(p []byte, i int, random *rand.Rand) []byte {
		r := []ratio{{100, 155}, {127, 129}, {200, 51}, {50, 203}}[i/64%4]
		place := []int{r.data - 1, r.data, int(r.size()) - 1, 0}[i%4]
		seqid := uint32(i/4)*r.size() + uint32(place)
		return smallShard(p, seqid, place < r.data)
	}},
	// Every seqid is new, and all shards are data.
	{"data", func(p []byte, i int, random *rand.Rand) []byte {
		return smallShard(p, random.Uint32(), true)
	}},
	// A ratio that is right for a group or two, and then another.
	{"changing", func(p []byte, i int, random *rand.Rand) []byte {
		r := ratio{1 + i/600*7%200, 1 + i/600*5%50}
		seqid := uint32(i)
		return smallShard(p, seqid, seqid%r.size() < uint32(r.data))
	}},
	// One shard in ten contradicts the others.
	{"noise", func(p []byte, i int, random *rand.Rand) []byte {
		seqid := uint32(i)
		return smallShard(p, seqid, (seqid%13 < 10) != (i%10 == 0))
	}},
}

// smallShard makes a shard with an empty KCP packet in p.
func smallShard(p []byte, seqid uint32, isData bool) []byte {
	p = p[:HeaderSize]
	typ := uint16(TypeParity)
	if isData {
		typ = TypeData
	}
	putSize(p)
	putHeader(p, seqid, typ)
	return p
}

// However the shards of a peer contradict each other, they have a ratio searched
// for and changed no more often than time and their number allow.
func TestSearchesAndChangesAreBounded(t *testing.T) {
	for _, attack := range attacks {
		for perSecond, start := range map[int]uint32{50: 0, 2000: 1<<31 - 100, 100_000: 0xffffff00} {
			name := fmt.Sprintf("%s at %d/s from %d", attack.name, perSecond, start)
			d := NewDecoder()
			random := rand.New(rand.NewPCG(1, uint64(start)))
			packet := make([]byte, HeaderSize)
			const n = 8000
			for i := range n {
				now := start + uint32(i*1000/perSecond)
				_, _, _ = d.Decode(attack.next(packet, i, random), now, nil)
			}
			s := d.Stats()
			require.LessOrEqual(t, s.Searches, uint64(n*1000/perSecond/searchPeriod+1), name)
			require.LessOrEqual(t, s.Searches, uint64(n/minSearch), name)
			require.LessOrEqual(t, s.RatioChanges, uint64(n*1000/perSecond/adoptPeriod+adoptBurst), name)
			checkAccounts(t, d)
		}
	}
}

// What bounds searches and changes stands still neither after a long silence nor
// where the clock wraps.
func TestPassed(t *testing.T) {
	for _, then := range []uint32{0, 5, 1 << 31, 0xffffffff} {
		for _, elapsed := range []uint32{100, 101, 1<<31 - 1, 1 << 31, 1<<31 + 1, 0xf0000000} {
			require.True(t, passed(then, then+elapsed, 100), "from %d, %d ms", then, elapsed)
		}
		for _, elapsed := range []uint32{0, 99, 1<<32 - 1, 1<<32 - 1000} {
			require.False(t, passed(then, then+elapsed, 100), "from %d, %d ms", then, int32(elapsed))
		}
	}
}

// Parity that leads to nonsense costs a group the recovery, and no more than some
// attempts, however often it comes. The next group is recovered.
func TestNonsenseIsBounded(t *testing.T) {
	for _, r := range []ratio{{10, 3}, {20, 10}, {200, 55}} {
		s := newSender(t, r, 1)
		s.longest = 20
		rcv := newReceiver(s)
		rcv.learn()
		group := s.group()
		rcv.feed(group[1:r.data]...)
		before := rcv.dec.Stats()
		forged := append([]byte(nil), group[r.data]...)
		for i := range 1000 {
			for j := frameSize; j < len(forged); j++ {
				forged[j] = byte(s.random.Uint32()) | 0x80
			}
			putHeader(forged, packetSeqID(group[r.data+i%r.parity]), TypeParity)
			_, _, _ = rcv.dec.Decode(forged, rcv.now, func([]byte) {})
		}
		require.LessOrEqual(t, rcv.dec.Stats().Corrupt-before.Corrupt, uint64(maxCorrupt), "%v", r)
		checkAccounts(t, rcv.dec)
		recovered := len(rcv.recovered)
		rcv.feed(s.group()[1:]...)
		require.Len(t, rcv.recovered, recovered+1, "%v", r)
	}
}

// Where a multiplication is expensive, shards have as many done as they pay for.
func TestRebuildingIsPaidFor(t *testing.T) {
	s := newSender(t, ratio{100, 40}, 1)
	rcv := newReceiver(s)
	rcv.learn()
	rcv.dec.work = 0
	group := s.group()
	rcv.dec.code.prepare()
	for i, p := range group[40:] {
		rcv.feed(p)
		if i < 99 {
			require.Empty(t, rcv.recovered)
		}
	}
	// With 40 missing, a group wants 40 multiplications of each shard.
	require.Equal(t, mulsPerShard >= 40, len(rcv.recovered) > 0)
	require.GreaterOrEqual(t, rcv.dec.work, 0)
	for range 3 {
		rcv.feed(s.group()...) // nothing to do, but to save up
	}
	before := len(rcv.recovered)
	rcv.feed(without(s.group(), 0, 1, 2)...)
	require.Len(t, rcv.recovered, before+3)
}
