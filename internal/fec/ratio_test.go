package fec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// learnable are ratios of all kinds.
var learnable = []ratio{
	{1, 1}, {2, 1}, {3, 1}, {1, 3}, {2, 2}, {5, 5}, {10, 1}, {10, 3}, {3, 10}, {20, 10}, {30, 1},
	{50, 5}, {64, 64}, {100, 40}, {200, 55}, {128, 128}, {255, 1}, {1, 255},
}

// Without loss the ratio is known with the first shard of the second group, or
// a few later, and the first group is repaired all the same.
func TestLearnsAtOnce(t *testing.T) {
	for _, r := range learnable {
		s := newSender(t, r, 1)
		s.longest = 20
		rcv := newReceiver(s)
		wire := s.groups(4)
		n := 0
		for rcv.dec.code == nil {
			require.Less(t, n, len(wire), "%v", r)
			rcv.feed(wire[n])
			n++
		}
		require.Equal(t, r, rcv.dec.code.ratio)
		size := int(r.size())
		limit := size + size/8 + 2
		if size < 4 {
			limit = 3 * size // groups this small have others like them
		}
		require.LessOrEqual(t, n, limit, "%v", r)
	}
}

// With loss, duplicates and reordering the ratio is found within some groups,
// and it is the right one.
func TestLearnsUnderLoss(t *testing.T) {
	for _, r := range learnable {
		for _, loss := range []float64{0.1, 0.5} {
			worst := 0
			seeds := uint64(3)
			if testing.Short() {
				seeds = 1
			}
			for seed := range seeds {
				n := shardsToLearn(t, r, loss, seed)
				worst = max(worst, n)
			}
			limit := max(160, 12*int(r.size()))
			require.LessOrEqual(t, worst, limit, "%v at a loss of %v", r, loss)
		}
	}
}

// shardsToLearn returns how many shards were sent until the ratio was known.
func shardsToLearn(t *testing.T, r ratio, loss float64, seed uint64) int {
	s := newSender(t, r, seed)
	s.longest = 5
	s.enc.next = s.random.Uint32N(s.enc.code.limit()/r.size()) * r.size()
	rcv := newReceiver(s)
	wire := s.groups(2000/int(r.size()) + 12)
	sent := 0
	var late [][]byte
	for _, p := range wire {
		sent++
		if s.random.Float64() < loss {
			continue
		}
		if s.random.IntN(5) == 0 {
			late = append(late, p)
			continue
		}
		rcv.feed(p)
		if s.random.IntN(20) == 0 {
			rcv.feed(p)
		}
		if len(late) > 6 {
			rcv.feed(late...)
			late = nil
		}
		if rcv.dec.code != nil {
			require.Equal(t, r, rcv.dec.code.ratio, "loss %v, seed %d, after %d", loss, seed, sent)
			return sent
		}
	}
	t.Fatalf("%v is not learned at a loss of %v, seed %d", r, loss, seed)
	return 0
}

// A ratio that changes is followed, from any to any other.
func TestRatioChanges(t *testing.T) {
	list := []ratio{{1, 1}, {3, 1}, {10, 3}, {10, 4}, {9, 4}, {20, 10}, {200, 55}, {201, 54}}
	for i, from := range list {
		for j, to := range list {
			if from != to {
				testRatioChange(t, from, to, uint64(len(list)*i+j+i))
			}
		}
	}
}

func testRatioChange(t *testing.T, from, to ratio, seed uint64) {
	name := fmt.Sprintf("%v to %v, seed %d", from, to, seed)
	s := newSender(t, from, seed)
	s.longest = 20
	rcv := newReceiver(s)
	rcv.learn()
	rcv.now += adoptPeriod
	last := s.enc.next
	enc, err := NewEncoder(to.data, to.parity)
	require.NoError(t, err)
	if seed%2 == 0 {
		enc.next = (last/to.size() + 1) * to.size() // goes on where the other ended
	} // or starts anew
	s.enc = enc
	sent := 0
	limit := 6*int(to.size()) + 150 // until no edge of a group is lost
	for rcv.dec.code.ratio != to {
		require.Less(t, sent, limit, name)
		for _, p := range s.packet() {
			sent++
			if s.random.IntN(20) != 0 {
				rcv.feed(p)
			}
		}
	}
	// From the next group on, repairs are back.
	for s.enc.count != 0 {
		rcv.feed(s.packet()...)
	}
	for range 5 {
		before := len(rcv.recovered)
		rcv.feed(without(s.group(), s.random.IntN(to.data))...)
		require.Equal(t, before+1, len(rcv.recovered), name)
	}
}

// A single contradiction costs samples for a while and is then forgotten.
func TestDoubtEnds(t *testing.T) {
	s := newSender(t, ratio{10, 3}, 1)
	r := newReceiver(s)
	r.learn()
	forged := s.packet()[0]
	putHeader(forged, oobSeqID, TypeData) // no ratio has it, so it says nothing
	_, _, err := r.dec.Decode(forged, 0, nil)
	require.NoError(t, err)
	require.Nil(t, r.dec.doubt)
	putHeader(forged, 12, TypeData)
	_, _, err = r.dec.Decode(forged, 0, nil)
	require.NoError(t, err)
	require.NotNil(t, r.dec.doubt)
	require.EqualValues(t, 1, r.dec.Stats().Mismatched)
	for range 9 {
		r.feed(s.packet()...)
	}
	n := 0
	for ; r.dec.doubt != nil; n++ {
		r.feed(s.group()...)
	}
	require.Less(t, n, 50)
	require.Empty(t, r.dec.pending)
	checkAccounts(t, r.dec)
}

// requireRepair has a stream of clean groups learned and repaired.
func requireRepair(t testing.TB, rcv *receiver, r ratio) {
	s := rcv.from
	s.enc.next = s.random.Uint32N(s.enc.code.limit()/r.size()) * r.size()
	learned := func() bool { return rcv.dec.code != nil && rcv.dec.code.ratio == r }
	rcv.now += adoptPeriod // what came before may have had a ratio adopted
	// The first group shows the jump of the seqid.
	for n := 0; n == 0 || n < 2*maxSamples+2*int(r.size()) && !learned(); n += int(r.size()) {
		for _, p := range s.group() {
			// What garbage gives back is garbage.
			_, _, _ = rcv.dec.Decode(p, rcv.now, nil)
		}
	}
	require.NotNil(t, rcv.dec.code, "%v", r)
	require.Equal(t, r, rcv.dec.code.ratio)
	rcv.regainTrust()
	for range 3 {
		before := len(rcv.recovered)
		rcv.feed(without(s.group(), s.random.IntN(r.data))...)
		require.Equal(t, before+1, len(rcv.recovered))
	}
	checkAccounts(t, rcv.dec)
}

// Around a change of the ratio, shards of both may fit into one group. In a bulk
// transfer all packets have the same size and begin alike, so that what comes
// out of a wrong combination looks like one of them. Nothing may come out but
// what was sent.
func TestRatioChangeRecoversNothingFalse(t *testing.T) {
	pairs := []ratio{{10, 3}, {3, 1}, {20, 10}, {1, 1}, {10, 4}, {9, 3}, {2, 1}}
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 99))
		dec := NewDecoder()
		sent := map[string]bool{}
		recovered := 0
		now := uint32(0)
		check := func(p []byte) {
			recovered++
			require.True(t, sent[string(p)], "seed %d: a packet that was never sent", seed)
		}
		for _, i := range random.Perm(len(pairs)) {
			now += adoptPeriod
			enc, err := NewEncoder(pairs[i].data, pairs[i].parity)
			require.NoError(t, err)
			if random.IntN(2) == 0 { // the new encoder need not begin at 0
				enc.next = random.Uint32N(100) * pairs[i].size()
			}
			for range 50 + random.IntN(1500) {
				p := make([]byte, HeaderSize+60)
				copy(p[HeaderSize:], "conversation, command and what else is the same")
				binary.LittleEndian.PutUint64(p[HeaderSize+50:], random.Uint64())
				sent[string(p[HeaderSize:])] = true
				for _, shard := range append([][]byte{p}, enc.Encode(p, 0)...) {
					if random.Float64() >= 0.15 {
						_, _, _ = dec.Decode(bytes.Clone(shard), now, check)
					}
				}
			}
		}
		require.Greater(t, recovered, 50)
	}
}
