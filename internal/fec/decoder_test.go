package fec

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

func TestDecodeRefuses(t *testing.T) {
	data := func(size, n int) []byte {
		p := make([]byte, frameSize+n)
		putHeader(p, 7, TypeData)
		if n >= 2 {
			binary.LittleEndian.PutUint16(p[frameSize:], uint16(size))
		}
		return p
	}
	typed := func(p []byte, seqid uint32, typ uint16) []byte {
		putHeader(p, seqid, typ)
		return p
	}
	for _, c := range []struct {
		name   string
		packet []byte
		want   error
	}{
		{"nil", nil, ErrShort},
		{"no size", data(0, 0), ErrShort},
		{"half a size", data(1, 1), ErrShort},
		{"size too small", data(9, 10), ErrSize},
		{"size too large", data(11, 10), ErrSize},
		{"size zero", data(0, 2), ErrSize},
		{"longer than size can say", data(0, maxShard+1), ErrSize},
		{"long parity", typed(data(0, maxShard+1), 7, TypeParity), ErrSize},
		{"parity with the seqid of out-of-band", typed(data(0, 10), oobSeqID, TypeParity), ErrSeqID},
		{"out-of-band without conv", typed(data(5, 5), oobSeqID, TypeOOB), ErrShort},
		{"out-of-band with a seqid", typed(data(10, 10), 7, TypeOOB), ErrSeqID},
		{"out-of-band of a wrong size", typed(data(9, 10), oobSeqID, TypeOOB), ErrSize},
		{"no type", typed(data(10, 10), 7, 0), ErrType},
		{"bare KCP", typed(data(10, 24), 7, wire.CmdPush), ErrType},
		{"high byte", typed(data(10, 10), 7, TypeData|0x100), ErrType},
	} {
		payload, kind, err := NewDecoder().Decode(c.packet, 0, nil)
		require.ErrorIs(t, err, c.want, c.name)
		require.Equal(t, KindNone, kind, c.name)
		require.Nil(t, payload, c.name)
	}
}

// shuffle displaces packets by less than the given distance.
func shuffle(random *rand.Rand, packets [][]byte, distance int) {
	type placed struct {
		place  int
		packet []byte
	}
	order := make([]placed, len(packets))
	for i, p := range packets {
		order[i] = placed{i + random.IntN(distance), p}
	}
	slices.SortStableFunc(order, func(a, b placed) int { return a.place - b.place })
	for i := range packets {
		packets[i] = order[i].packet
	}
}

func TestDuplicates(t *testing.T) {
	s := newSender(t, ratio{3, 2}, 1)
	r := newReceiver(s)
	r.learn()
	group := s.group()
	before := r.dec.Stats()
	r.feed(group[0], group[0], group[0]) // copies do not make a group
	require.EqualValues(t, 2, r.dec.Stats().Duplicates-before.Duplicates)
	require.Equal(t, before.Recovered, r.dec.Stats().Recovered)
	require.Equal(t, 3, r.got[number(group[0])], "duplicates are for KCP to drop")
	r.feed(group[3])
	_, kind, err := r.dec.Decode(bytes.Clone(group[3]), 0, nil)
	require.ErrorIs(t, err, ErrReplay)
	require.Equal(t, KindParity, kind)
	require.Empty(t, r.recovered)
	r.feed(group[4])
	require.Len(t, r.recovered, 2)
	r.feed(group...) // all of it again
	require.Len(t, r.recovered, 2)
	for _, n := range r.recovered {
		require.Equal(t, 1, n)
	}
	// What was recovered had not arrived before.
	require.EqualValues(t, 3+3, r.dec.Stats().Duplicates-before.Duplicates)
}

func TestSeqIDWraps(t *testing.T) {
	for _, r := range ratios {
		for seed := range uint64(1) {
			s := newSender(t, r, seed)
			limit := uint32(0xffffffff/uint64(r.size())) * r.size()
			groups := 300/r.size() + 3
			s.enc.next = limit - groups*r.size()
			rcv := newReceiver(s)
			var wire [][]byte
			for i := range 2 * groups {
				for j, p := range s.group() {
					// Some data shard of every group is lost once the ratio
					// must be known.
					if i+2 < groups || j != int(seed)%r.data {
						wire = append(wire, p)
					}
				}
			}
			shuffle(s.random, wire, 10)
			rcv.feed(wire...)
			require.Equal(t, r, rcv.dec.code.ratio)
			require.EqualValues(t, 1, rcv.dec.Stats().RatioChanges)
			require.Len(t, rcv.got, len(s.packets), "%v", r)
		}
	}
}

// However far the seqid jumps, the groups there are recovered, as soon as they
// have shown that the ratio is still the same.
func TestSeqIDJumps(t *testing.T) {
	s := newSender(t, ratio{4, 2}, 1)
	r := newReceiver(s)
	r.learn()
	r.feed(s.groups(maxGroups)...) // the first groups leave the window
	for _, next := range []uint32{6 << 28, 6000, 0xffffff00 / 6 * 6, 6 << 20, 0, 600} {
		s.enc.next = next
		r.feed(s.group()...)
		require.False(t, r.dec.trusted())
		r.regainTrust()
		for range 3 {
			before := len(r.recovered)
			r.feed(without(s.group(), 1, 2)...)
			require.Equal(t, before+2, len(r.recovered), "at %d", next)
		}
	}
	require.EqualValues(t, 1, r.dec.Stats().RatioChanges)
}

// A shard that claims a wrong size, and one of another length than the rest.
func TestNonsenseFromParity(t *testing.T) {
	s := newSender(t, ratio{3, 2}, 1)
	r := newReceiver(s)
	r.learn()
	for _, c := range []struct {
		name    string
		corrupt uint64
		change  func(p []byte) []byte
	}{
		{"size too large", 1, func(p []byte) []byte { p[frameSize+1] ^= 0x80; return p }},
		{"shorter than the data", 0, func(p []byte) []byte { return p[:HeaderSize] }},
		{"longer, and padding not zero", 1, func(p []byte) []byte { return append(p, 1, 2, 3) }},
		{"longer by zeros", 0, func(p []byte) []byte { return append(p, make([]byte, 2000)...) }},
		{"padding not zero", 1, func(p []byte) []byte { p[len(p)-1] ^= 1; return p }},
	} {
		group := s.group()
		for len(group[1]) == len(group[3]) {
			group = s.group() // the lost shard is to have padding
		}
		before := r.dec.Stats()
		r.feed(without(group[:3], 1)...)
		_, _, err := r.dec.Decode(c.change(bytes.Clone(group[3])), 0, func(p []byte) {
			require.Equal(t, s.packets[number(group[1])], p, c.name)
		})
		require.NoError(t, err)
		r.feed(group[4]) // the other parity shard is as good
		require.EqualValues(t, 1, r.dec.Stats().Recovered-before.Recovered, c.name)
		require.Equal(t, c.corrupt, r.dec.Stats().Corrupt-before.Corrupt, c.name)
	}
}

// Where two copies of a shard differ, the one that came more in line is used.
func TestConflicts(t *testing.T) {
	forge := func(p []byte) []byte {
		f := bytes.Clone(p)
		if isData(f) {
			f[len(f)-1] ^= 1
		} else {
			f[frameSize+1] ^= 0x80 // the size of what is recovered
		}
		return f
	}
	for _, c := range []struct {
		name string
		want int // packets recovered
		feed func(d func(...[]byte), g [][]byte)
	}{
		{"forged first", 1, func(d func(...[]byte), g [][]byte) { d(forge(g[2]), g[0], g[1], g[2], g[4]) }},
		{"forged later", 1, func(d func(...[]byte), g [][]byte) { d(g[0], g[1], g[2], forge(g[1]), g[4]) }},
		{"forged first, loss before", 2, func(d func(...[]byte), g [][]byte) { d(forge(g[3]), g[0], g[3], g[4], g[5]) }},
		{"neither better", 1, func(d func(...[]byte), g [][]byte) { d(g[0], forge(g[1]), g[0], g[1], g[2], g[3], g[4]) }},
		{"neither better, too few left", 0, func(d func(...[]byte), g [][]byte) { d(g[0], forge(g[1]), g[0], g[1], g[2], g[4]) }},
		{"forged parity first", 1, func(d func(...[]byte), g [][]byte) { d(forge(g[4]), g[0], g[1], g[2], g[4]) }},
	} {
		s := newSender(t, ratio{4, 2}, 1)
		r := newReceiver(s)
		r.learn()
		group := s.group()
		n := 0
		c.feed(func(packets ...[]byte) {
			for _, p := range packets {
				_, _, _ = r.dec.Decode(bytes.Clone(p), 0, func(packet []byte) {
					r.check(packet)
					n++
				})
			}
		}, group)
		require.Equal(t, c.want, n, c.name)
	}
}

func TestGroupsExpire(t *testing.T) {
	s := newSender(t, ratio{4, 2}, 1)
	r := newReceiver(s)
	r.now = 0xffffff00 // the clock wraps while the group waits
	r.learn()
	group, old := s.group(), s.group()
	r.feed(old[:3]...)
	r.feed(group[:3]...)
	r.now += groupAge - 1
	r.feed(group[5])
	require.Len(t, r.recovered, 1)
	r.now += sweepPeriod
	lost := r.dec.Stats().Lost
	r.feed(old[5])
	require.Len(t, r.recovered, 1)
	require.EqualValues(t, 1, r.dec.Stats().Lost-lost)
}

// The constants of the package are the figures that WIRE.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"`seqid 4 · type 2", "seqid 4", frameSize - 2},
		{"`seqid 4 · type 2", "type 2", frameSize - 4},
		{"`seqid 4 · type 2", "size 2", HeaderSize - frameSize},
		{"| 0x00f3 | datagram", "conv 4", convSize},
		{"A group is D data", "500 ms", maxGap * time.Millisecond},
	})
}
