package machine

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// seqPoints are the places of the circle where arithmetic goes wrong first.
var seqPoints = []uint32{0, 1 << 31, math.MaxUint32, math.MaxInt32, 1 << 30, 0x12345678}

// Exhaustive around the boundaries: every pair of values near two points, held
// against the same question asked in 64 bits.
func TestSeqOrder(t *testing.T) {
	const near = 20
	for _, p := range seqPoints {
		for _, q := range seqPoints {
			for i := range uint32(2*near + 1) {
				for j := range uint32(2*near + 1) {
					checkSeqOrder(t, Seq(p+i-near), Seq(q+j-near))
				}
			}
		}
	}
}

func checkSeqOrder(t *testing.T, a, b Seq) {
	distance := int64(a) - int64(b)
	switch {
	case distance >= 1<<31:
		distance -= 1 << 32
	case distance < -1<<31:
		distance += 1 << 32
	}
	if got := int64(a.Diff(b)); got != distance {
		t.Fatalf("%d.Diff(%d) = %d, want %d", a, b, got, distance)
	}
	if distance == -1<<31 { // opposite points of the circle: each is after the other
		distance = 1 << 31
	}
	if a.Before(b) != (distance < 0) || a.After(b) != (distance > 0) {
		t.Fatalf("%d and %d: before %v, after %v at distance %d", a, b, a.Before(b), a.After(b), distance)
	}
}

// A range that crosses 2^32 contains what one that does not cross it contains.
func TestSeqWithin(t *testing.T) {
	for _, p := range seqPoints {
		for size := range Seq(9) {
			for start := range Seq(9) {
				from := Seq(p) - 4 + start
				for i := -20; i <= 20; i++ {
					want := i >= 0 && i < int(size)
					require.Equal(t, want, (from+Seq(i)).Within(from, from+size), "%d in [%d, +%d)", i, from, size)
				}
			}
		}
	}
}

// A ring without room has no segment of any number.
func TestEmptyRing(t *testing.T) {
	for _, p := range seqPoints {
		require.Nil(t, new(sendRing).at(Seq(p)))
	}
}

// FuzzSegment decodes and encodes any bytes: the codec loses nothing, and the
// payload is what the header says or is refused. What is shorter than a header
// is never decoded: Input refuses it, as it does a una beyond what was sent.
func FuzzSegment(f *testing.F) {
	for _, n := range []int{0, 1, wire.HeaderSize - 1} {
		f.Add(make([]byte, n)) // short datagrams
	}
	f.Add(push(0, 0, ""))                             // 1: no payload
	f.Add(push(0xffffffff, 255, "part"))              // 6 and 13
	f.Add(ack(0xfffffff0, 0xffffffff, 0x80000000))    // 3 and 13
	f.Add(append(push(1, 0, "a"), push(2, 0, "")...)) // 1: two in a packet
	for _, distance := range []uint32{1, 128, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1} {
		for cmd := uint8(wire.CmdPush); cmd <= wire.CmdPiece; cmd++ {
			f.Add(segment(cmd, 0, 0, 0, distance, "")) // una
			f.Add(segment(cmd, 0, 0, distance, 0, "")) // sn
			f.Add(segment(cmd, 0, distance, 0, 0, "")) // ts
		}
	}
	for code := wire.Hello; code <= wire.Tiebreak+1; code++ {
		for _, cmd := range []uint8{wire.CmdWask, wire.CmdWins} {
			f.Add(segment(cmd, uint8(code), 5, 6, 0, ""))
			f.Add(segment(cmd, uint8(code|wire.Answer), 1<<32-1, 1<<31, 0, ""))
		}
	}
	for _, size := range []uint32{1, 2, 0x7fffffff, 0x80000000, 0xffffffff} {
		p := push(0, 0, "x") // 2: len beyond the packet
		binary.LittleEndian.PutUint32(p[20:], size)
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < wire.HeaderSize {
			k := New(0, func([]byte) { t.Fatal("output") })
			require.Equal(t, ErrPacketShort, k.Input(b))
			require.Equal(t, stats.Counters{}, k.Counters())
			return
		}
		h := wire.DecodeHeader(b)
		var again [wire.HeaderSize]byte
		h.Encode(again[:])
		require.Equal(t, b[:wire.HeaderSize], again[:])
		rest := b[wire.HeaderSize:]
		payload, ok := h.Payload(rest)
		require.Equal(t, uint64(h.Len) <= uint64(len(rest)), ok)
		if ok {
			require.Equal(t, rest[:h.Len], payload)
		}
		// A machine that has sent nothing takes no una ahead of it.
		k := New(h.Conv, func([]byte) {})
		err := k.Input(b)
		if ahead := h.Una-1 < 1<<31; ahead && ok && wire.IsReference(h.Cmd) {
			require.Equal(t, ErrForgedUna, err)
		}
		require.Zero(t, k.snd.una)
	})
}

// own returns a segment of the session itself with an SSN.
func own(sn, ssn uint32, kind, frg uint8, data string) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, kind}, ssn)
	return segment(wire.CmdStream, 0, 0, sn, 0, string(append(append(b, frg), data...)))
}

// ofStream returns a segment of a stream.
func ofStream(sn uint32) []byte {
	return segment(wire.CmdStream, 0, 0, sn, 0, "\x01\x00\x00\x00\x08\x00\x00\x00\x00......12345678")
}

// Segments of the session itself are read in the order of their SSN, which counts PUSH
// too, and wait for no segment of a stream.
func TestOwnSegments(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		input  [][]byte
		read   []string
		acks   int // segments that are acknowledged
		broken uint64
	}{
		{name: "behind a missing segment of a stream", acks: 2, read: []string{"a", "b"},
			input: [][]byte{own(1, 0, streams.OwnData, 0, "a"), own(3, 1, streams.OwnData, 0, "b")}},
		{name: "in the wrong order", acks: 2, read: []string{"a", "b"},
			input: [][]byte{own(3, 1, streams.OwnData, 0, "b"), own(1, 0, streams.OwnData, 0, "a")}},
		{name: "behind a missing one", acks: 2, read: []string{"a"},
			input: [][]byte{own(0, 0, streams.OwnData, 0, "a"), own(2, 2, streams.OwnData, 0, "c")}},
		{name: "behind PUSH", acks: 3, read: []string{"p", "q", "a"},
			input: [][]byte{own(2, 2, streams.OwnData, 0, "a"), push(1, 0, "q"), push(0, 0, "p")}},
		{name: "behind PUSH that arrived before", acks: 3, read: []string{"p", "q", "a"},
			input: [][]byte{push(0, 0, "p"), push(1, 0, "q"), own(5, 2, streams.OwnData, 0, "a")}},
		{name: "a missing PUSH", acks: 2, read: []string{"p"},
			input: [][]byte{push(0, 0, "p"), own(2, 2, streams.OwnData, 0, "a")}},
		{name: "fragments", acks: 4, read: []string{"ab", "c"},
			input: [][]byte{own(7, 2, streams.OwnData, 0, "c"), own(5, 1, streams.OwnData, 0, "b"), own(3, 0, streams.OwnData, 1, "a"), ofStream(4)}},
		{name: "an abandoned message", acks: 3, read: []string{"c"},
			input: [][]byte{own(3, 0, streams.OwnAbandon, 1, ""), own(5, 1, streams.OwnData, 0, "b"), own(7, 2, streams.OwnData, 0, "c")}},
		{name: "abandoned before it arrived", acks: 3, read: []string{"c"},
			input: [][]byte{own(7, 2, streams.OwnData, 0, "c"), own(5, 1, streams.OwnAbandon, 0, ""), own(3, 0, streams.OwnData, 1, "a")}},
		{name: "one SSN twice", acks: 3, broken: 1, read: []string{"a", "b"},
			input: [][]byte{own(3, 1, streams.OwnData, 0, "b"), own(4, 1, streams.OwnData, 0, "x"), own(1, 0, streams.OwnData, 0, "a")}},
		{name: "an SSN that has passed", acks: 1, read: []string{"a"},
			input: [][]byte{own(1, 0, streams.OwnData, 0, "a"), own(2, 0, streams.OwnData, 0, "x")}},
		{name: "beyond the window", input: [][]byte{own(1, 128, streams.OwnData, 0, "a"), own(2, 1<<31, streams.OwnData, 0, "x"), own(3, 1<<32-1, streams.OwnData, 0, "x")}},
		{name: "a duplicate", acks: 2, read: []string{"a"},
			input: [][]byte{own(1, 0, streams.OwnData, 0, "a"), own(1, 0, streams.OwnData, 0, "x")}},
		{name: "too short", acks: 1, input: [][]byte{segment(wire.CmdStream, 0, 0, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x00\x00")}},
		{name: "ABANDON with data", acks: 1, input: [][]byte{own(0, 0, streams.OwnAbandon, 0, "x")}},
	} {
		h := newHarness(t, func(k *KCP) { k.hooks.Host = &droppingHost{testHost: newTestHost(t, k)} })
		for _, p := range tc.input {
			h.input(p)
			requireBooks(t, h.k)
		}
		require.Len(t, h.k.rcv.acks, tc.acks, tc.name)
		for _, want := range tc.read {
			h.recv(want)
		}
		require.Equal(t, -1, h.k.PeekSize(), tc.name)
		require.Equal(t, tc.broken, h.k.counters.BrokenMessages, tc.name)
		h.out = nil
	}
}

// droppingHost takes any segment of a stream.
type droppingHost struct{ *testHost }

func (droppingHost) OnStream([]byte) {}

// While the receive queue is full, segments with an SSN are kept up to the receive
// window, and no more, whatever their sn.
func TestOwnSegmentsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(k *KCP) { k.hooks.Host = newTestHost(t, k) })
	const most = 2 * MinRcvWnd
	for i := range uint32(4 * MinRcvWnd) {
		h.input(own(i, i, streams.OwnData, 0, fmt.Sprint(i)))
		if i < most {
			require.Equal(t, Seq(i+1), h.k.rcv.nxt)
		}
	}
	require.Equal(t, Seq(most), h.k.rcv.nxt)
	require.EqualValues(t, 2*MinRcvWnd, h.k.counters.OutOfWindow)
	require.Zero(t, h.k.wndUnused())
	requireBooks(t, h.k)
	for i := range most {
		h.recv(fmt.Sprint(i))
	}
	require.Zero(t, h.k.rare.own.early)
	h.out = nil
}

// The longest message is as long with an SSN as without.
func TestLongestOwnMessage(t *testing.T) {
	t.Parallel()
	k := newHarness(t, nil).k
	const mss, head = 1300 - streams.OwnHeader, streams.OwnHeader
	require.False(t, k.tooMany(streams.MostOwn, MaxFragments*1300, mss, head))
	require.True(t, k.tooMany(streams.MostOwn, MaxFragments*1300+1, mss, head))
	require.True(t, k.tooMany(streams.MostOwn+1, 1, mss, head))
}
