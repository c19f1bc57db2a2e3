package kcp

import (
	"encoding/binary"
	"math"
	"testing"

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
					checkSeqOrder(t, seq(p+i-near), seq(q+j-near))
				}
			}
		}
	}
}

func checkSeqOrder(t *testing.T, a, b seq) {
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
		for size := range seq(9) {
			for start := range seq(9) {
				from := seq(p) - 4 + start
				for i := -20; i <= 20; i++ {
					want := i >= 0 && i < int(size)
					require.Equal(t, want, (from+seq(i)).Within(from, from+size), "%d in [%d, +%d)", i, from, size)
				}
			}
		}
	}
}

// A ring without room has no segment of any number.
func TestEmptyRing(t *testing.T) {
	for _, p := range seqPoints {
		require.Nil(t, new(sendRing).at(seq(p)))
	}
}

// The layout is little-endian at fixed offsets, on every machine.
func TestSegmentGolden(t *testing.T) {
	h := header{
		conv: 0x11223344, cmd: cmdPush, frg: 0x7e, wnd: 0xa1b2,
		ts: 0xc1c2c3c4, sn: 0xd1d2d3d4, una: 0xe1e2e3e4, len: 0xf1f2f3f4,
	}
	want := [headerSize]byte{
		0x44, 0x33, 0x22, 0x11, // conv
		81,         // cmd
		0x7e,       // frg
		0xb2, 0xa1, // wnd
		0xc4, 0xc3, 0xc2, 0xc1, // ts
		0xd4, 0xd3, 0xd2, 0xd1, // sn
		0xe4, 0xe3, 0xe2, 0xe1, // una
		0xf4, 0xf3, 0xf2, 0xf1, // len
	}
	var got [headerSize]byte
	h.encode(got[:])
	require.Equal(t, want, got)
	require.Equal(t, h, decodeHeader(want[:]))
}

// FuzzSegment decodes and encodes any bytes: the codec loses nothing, and the
// payload is what the header says or is refused. What is shorter than a header
// is never decoded: Input refuses it, as it does a una beyond what was sent.
func FuzzSegment(f *testing.F) {
	for _, n := range []int{0, 1, headerSize - 1} {
		f.Add(make([]byte, n)) // short datagrams
	}
	f.Add(push(0, 0, ""))                             // 1: no payload
	f.Add(push(0xffffffff, 255, "part"))              // 6 and 13
	f.Add(ack(0xfffffff0, 0xffffffff, 0x80000000))    // 3 and 13
	f.Add(append(push(1, 0, "a"), push(2, 0, "")...)) // 1: two in a packet
	for _, distance := range []uint32{1, 128, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 1} {
		for cmd := uint8(cmdPush); cmd <= cmdPiece; cmd++ {
			f.Add(segment(cmd, 0, 0, 0, distance, "")) // una
			f.Add(segment(cmd, 0, 0, distance, 0, "")) // sn
			f.Add(segment(cmd, 0, distance, 0, 0, "")) // ts
		}
	}
	for code := sigHello; code <= sigTiebreak+1; code++ {
		for _, cmd := range []uint8{cmdWask, cmdWins} {
			f.Add(segment(cmd, uint8(code), 5, 6, 0, ""))
			f.Add(segment(cmd, uint8(code|sigAnswer), 1<<32-1, 1<<31, 0, ""))
		}
	}
	for _, size := range []uint32{1, 2, 0x7fffffff, 0x80000000, 0xffffffff} {
		p := push(0, 0, "x") // 2: len beyond the packet
		binary.LittleEndian.PutUint32(p[20:], size)
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			k := New(0, func([]byte) { t.Fatal("output") })
			require.Equal(t, ErrPacketShort, k.Input(b))
			require.Equal(t, Counters{}, k.Counters())
			return
		}
		h := decodeHeader(b)
		var again [headerSize]byte
		h.encode(again[:])
		require.Equal(t, b[:headerSize], again[:])
		rest := b[headerSize:]
		payload, ok := h.payload(rest)
		require.Equal(t, uint64(h.len) <= uint64(len(rest)), ok)
		if ok {
			require.Equal(t, rest[:h.len], payload)
		}
		// A machine that has sent nothing takes no una ahead of it.
		k := New(h.conv, func([]byte) {})
		err := k.Input(b)
		if ahead := h.una-1 < 1<<31; ahead && ok && knownCmd(h.cmd) {
			require.Equal(t, ErrForgedUna, err)
		}
		require.Zero(t, k.snd.una)
	})
}
