package fec

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// ratios are those that the tests go through.
var ratios = []ratio{{1, 1}, {2, 1}, {3, 1}, {1, 3}, {5, 5}, {10, 3}, {20, 10}, {50, 5}, {100, 40}}

// sender is one direction of a session: it makes KCP packets of random sizes
// and contents, which begin with their number, and remembers them.
type sender struct {
	tb      testing.TB
	enc     *Encoder
	random  *rand.Rand
	longest int      // of a KCP packet, bytes
	packets [][]byte // the KCP packets by number
	now     uint32
}

func newSender(tb testing.TB, r ratio, seed uint64) *sender {
	tb.Helper()
	enc, err := NewEncoder(r.data, r.parity)
	require.NoError(tb, err)
	return &sender{tb: tb, enc: enc, random: rand.New(rand.NewPCG(seed, 7)), longest: 300}
}

// packet returns the next data shard and what parity follows it, as copies.
func (s *sender) packet() [][]byte {
	p := make([]byte, HeaderSize+4+s.random.IntN(s.longest-3))
	for i := range p {
		p[i] = byte(s.random.Uint32())
	}
	binary.LittleEndian.PutUint32(p[HeaderSize:], uint32(len(s.packets)))
	s.packets = append(s.packets, bytes.Clone(p[HeaderSize:]))
	s.now++
	out := [][]byte{nil}
	for _, parity := range s.enc.Encode(p, s.now) {
		out = append(out, bytes.Clone(parity))
	}
	out[0] = p
	return out
}

// group returns the shards of the next group.
func (s *sender) group() [][]byte {
	var out [][]byte
	for range s.enc.code.data {
		out = append(out, s.packet()...)
	}
	return out
}

// groups returns the shards of n groups, one after the other.
func (s *sender) groups(n int) [][]byte {
	var out [][]byte
	for range n {
		out = append(out, s.group()...)
	}
	return out
}

// receiver is the other end of a sender. It fails the test if anything but the
// sender's packets comes out.
type receiver struct {
	tb        testing.TB
	from      *sender
	dec       *Decoder
	now       uint32
	got       map[uint32]int // how often each packet came, by number
	recovered map[uint32]int // how often by way of parity
}

func newReceiver(from *sender) *receiver {
	return &receiver{
		tb: from.tb, from: from, dec: NewDecoder(),
		got: map[uint32]int{}, recovered: map[uint32]int{},
	}
}

// feed decodes packets, which are left as they are.
func (r *receiver) feed(packets ...[]byte) {
	r.tb.Helper()
	for _, p := range packets {
		payload, kind, err := r.dec.Decode(bytes.Clone(p), r.now, r.take)
		var ok bool
		if isData(p) {
			ok = kind == KindData && err == nil && bytes.Equal(payload, p[HeaderSize:])
			r.got[r.check(payload)]++
		} else {
			ok = kind == KindParity && (err == nil || err == ErrReplay) && payload == nil
		}
		if !ok {
			r.tb.Fatalf("%x: kind %d, payload %x, error %v", p, kind, payload, err)
		}
		if r.dec.pool.held > 2*maxHeld {
			r.tb.Fatalf("%d bytes held", r.dec.pool.held)
		}
	}
}

func (r *receiver) take(packet []byte) {
	r.tb.Helper()
	n := r.check(packet)
	r.got[n]++
	r.recovered[n]++
}

// check returns the number of a packet that has come out.
func (r *receiver) check(packet []byte) uint32 {
	r.tb.Helper()
	if len(packet) < 4 {
		r.tb.Fatalf("a packet that was never sent: %x", packet)
	}
	n := binary.LittleEndian.Uint32(packet)
	if int64(n) >= int64(len(r.from.packets)) || !bytes.Equal(r.from.packets[n], packet) {
		r.tb.Fatalf("a packet that was never sent: %x", packet)
	}
	return n
}

// learn feeds whole groups until the ratio is known and no doubt is left.
func (r *receiver) learn() {
	r.tb.Helper()
	for range 600 {
		r.feed(r.from.group()...)
		if r.dec.doubt == nil && r.dec.code.ratio == r.from.enc.code.ratio {
			return
		}
	}
	r.tb.Fatalf("%v not learned: %+v", r.from.enc.code.ratio, r.dec.Stats())
}

// regainTrust feeds whole groups until the ratio is trusted again, which takes
// few.
func (r *receiver) regainTrust() {
	r.tb.Helper()
	for n := 0; !r.dec.trusted(); n += int(r.dec.code.size()) {
		if n > minTrust+3*int(r.dec.code.size()) {
			r.tb.Fatalf("%v not trusted after %d shards", r.dec.code.ratio, n)
		}
		r.feed(r.from.group()...)
	}
}

// isData tells data from parity.
func isData(packet []byte) bool { return packetType(packet) == TypeData }

// number returns the number of the KCP packet in a data shard.
func number(packet []byte) uint32 { return binary.LittleEndian.Uint32(packet[HeaderSize:]) }

// without returns packets but those at the given places.
func without(packets [][]byte, places ...int) [][]byte {
	var out [][]byte
	for i, p := range packets {
		lost := false
		for _, place := range places {
			lost = lost || i == place
		}
		if !lost {
			out = append(out, p)
		}
	}
	return out
}
