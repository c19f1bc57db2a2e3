package machine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

func takesPieces(k *KCP) { k.SetExtensions(Extensions{TakePieces: true}) }

// However a segment is cut and in whatever order its pieces come, some of them
// twice and of different cuts, it is whole when all bytes have come and not
// before, and then acknowledged.
func TestPieces(t *testing.T) {
	t.Parallel()
	for seed := range fewer(300) {
		random := rand.New(rand.NewPCG(seed, 5))
		size := []int{1, 2, 63, 64, 65, 100, 1376, 1 + random.IntN(3000), 65535}[seed%9]
		want := string(content(seed, size))
		unit := recovery.PieceUnit(size)
		var pieces [][]byte
		missing := make(map[int]bool)
		for range 1 + random.IntN(3) {
			for at := 0; at < size; {
				n := min(unit*(1+random.IntN(20)), size-at)
				pieces = append(pieces, piece(0, 0, at, size, want[at:at+n]))
				at += n
			}
		}
		for at := range size {
			missing[at] = true
		}
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		h := newHarness(t, takesPieces)
		for _, p := range pieces {
			got, ok := recovery.DecodePiece(p[wire.HeaderSize:])
			require.True(t, ok)
			before := len(missing)
			for i := range got.Data {
				delete(missing, got.At+i)
			}
			h.input(p)
			require.Equal(t, len(missing) == 0, h.k.PeekSize() == size, "seed %d", seed)
			if len(missing) > 0 {
				require.Zero(t, h.k.Counters().SegmentsReceived)
				require.LessOrEqual(t, h.k.rcv.assembly.Bytes(), max(4*size, 128)+2*recovery.PieceOverhead)
				requireBooks(t, h.k)
				h.advance(10)
				h.want()
			} else if before > 0 {
				h.advance(10)
				h.want("ack 0 ts=0 una=1 wnd=127")
			}
		}
		require.Zero(t, h.k.rcv.assembly.Len())
		require.Zero(t, h.k.rcv.assembly.Bytes())
		h.recv(want)
		require.Zero(t, h.k.rcv.held)
		h.advance(10)
		h.out = nil // acknowledgements of what came again
	}
}

// What fits nowhere is an error, takes no effect, and costs nothing.
func TestMalformedPieces(t *testing.T) {
	body := strings.Repeat("x", 100)
	for name, payload := range map[string]string{
		"empty":                "",
		"short":                "\x00\x00\x10",
		"no data":              "\x00\x00\x10\x00",
		"of nothing":           "\x00\x00\x00\x00x",
		"larger":               "\x00\x00\x10\x00" + body,
		"beyond":               "\x10\x00\x10\x00x",
		"far beyond":           "\xff\xff\x10\x00x",
		"over the end":         "\x0f\x00\x10\x00xx",
		"begins within a unit": "\x01\x00\xc8\x00" + body[:3], // units of 4
		"ends within a unit":   "\x04\x00\xc8\x00" + body[:3],
	} {
		h := newHarness(t, takesPieces)
		require.Equal(t, ErrPiece, h.k.Input(segment(wire.CmdPiece, 0, 0, 0, 0, payload)), name)
		require.Zero(t, h.k.rcv.held, name)
		require.Zero(t, h.k.rcv.assembly.Len(), name)
		h.advance(10)
	}
	h := newHarness(t, nil)
	require.Equal(t, ErrCommand, h.k.Input(piece(0, 0, 0, 1, "x")), "without the extension")
}

// Pieces that contradict each other discard the segment; who sends it again
// gets through.
func TestContradictoryPieces(t *testing.T) {
	for name, other := range map[string][]byte{
		"size": piece(0, 0, 4, 201, "xxxx"), "frg": piece(0, 1, 4, 200, "xxxx"),
	} {
		h := newHarness(t, takesPieces)
		want := strings.Repeat("abcd", 50)
		h.input(piece(0, 0, 0, 200, want[:196]))
		require.Equal(t, ErrPiece, h.k.Input(other), name)
		require.Zero(t, h.k.rcv.held, name)
		h.input(piece(0, 0, 196, 200, want[196:]))
		require.Equal(t, -1, h.k.PeekSize(), name)
		h.input(piece(0, 0, 0, 200, want[:196]))
		h.recv(want)
		h.advance(10)
		h.want("ack 0 ts=0 una=1 wnd=128")
	}
}

// Pieces keep to the window, and to what may be held of them.
func TestPiecesAreBounded(t *testing.T) {
	h := newHarness(t, takesPieces)
	size := 60000
	unit := strings.Repeat("x", recovery.PieceUnit(size))
	h.input(piece(MinRcvWnd, 0, 0, size, unit), piece(1<<31+1, 0, 0, size, unit))
	require.EqualValues(t, 2, h.k.Counters().OutOfWindow)
	for sn := range uint32(MinRcvWnd) {
		h.input(piece(MinRcvWnd-1-sn, 0, 0, size, unit))
	}
	require.LessOrEqual(t, h.k.rcv.assembly.Bytes(), maxAssembly+size)
	require.True(t, h.k.rcv.assembly.Has(0), "the next one always finds room")
	require.Zero(t, h.k.rcv.held)

	// A whole one replaces what has come of it.
	h.input(push(0, 0, "whole"))
	require.False(t, h.k.rcv.assembly.Has(0))
	h.recv("whole")
	require.Zero(t, h.k.rcv.held)
	h.k.CloseReceive()
	require.Zero(t, h.k.rcv.held)
	require.Zero(t, h.k.rcv.assembly.Len())
	h.advance(10)
	h.out = nil

	// Who is not proven to exist has no reason to cut anything, and one that is
	// short of memory takes what can be read at once.
	for spares, want := range map[Pressure]int{PressureNone: 2, PressureHigh: 1, PressureReserved: 0} {
		h := newHarness(t, takesPieces)
		h.k.rcv.pressure = spares
		h.input(piece(0, 0, 0, size, unit), piece(1, 0, 0, size, unit))
		require.Equal(t, want, h.k.rcv.assembly.Len(), "%v", spares)
	}
}

// What is larger than the MTU leaves in pieces that are not, and is one segment
// to everything else.
func TestSendPieces(t *testing.T) {
	for _, mtu := range []int{50, 100, 1000, 1399} {
		h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{SendPieces: true}) })
		var packets [][]byte
		h.k.hooks.Output = func(p []byte) { packets = append(packets, bytes.Clone(p)) }
		big := string(content(1, 1376))
		h.send(big)
		h.send("small")
		require.NoError(t, h.k.SetMTU(mtu))
		h.advance(10)
		h.send((big + big)[:mtu]) // of segments that fit
		h.advance(10)
		other := newHarness(t, takesPieces)
		for _, p := range packets {
			require.LessOrEqual(t, len(p), mtu)
			require.NoError(t, other.k.Input(p))
		}
		other.recv(big)
		other.recv("small")
		other.recv((big + big)[:mtu])
		require.EqualValues(t, 4, h.k.Counters().SegmentsSent)
		require.EqualValues(t, 4, other.k.Counters().SegmentsReceived)
		other.advance(10)
		other.out = nil
	}

	// Without the extension, and where 64 pieces are not enough, it leaves whole.
	for _, x := range []Extensions{{}, {SendPieces: true}} {
		h := newHarness(t, func(k *KCP) {
			k.SetExtensions(x)
			require.NoError(t, k.SetMTU(9000))
		})
		big := strings.Repeat("x", 8976)
		h.send(big)
		require.NoError(t, h.k.SetMTU(MinMTU))
		h.advance(10)
		h.want(fmt.Sprintf("push 0 frg=0 %q", big))
	}
}

// A retransmission, whole or in pieces, alone or beside others, is in no packet
// larger than what has arrived, or than what nearly every path takes.
func TestRetransmissionsAreNoLargerThanWhatArrived(t *testing.T) {
	h := newHarness(t, func(k *KCP) {
		k.SetExtensions(Extensions{SendPieces: true})
		k.snd.blackHole.Watch(1200, 0, 1200)
	})
	largest := 0
	h.k.hooks.Output = func(p []byte) { largest = max(largest, len(p)) }
	wait := func(ms, want int) {
		t.Helper()
		largest = 0
		h.advance(uint32(ms))
		require.Equal(t, want, largest)
	}
	h.send(strings.Repeat("x", 1276))
	wait(10, wire.HeaderSize+recovery.PieceHeader+1276)
	require.EqualValues(t, largest, h.k.snd.ring.at(0).packet, "the size that left")
	h.send(strings.Repeat("x", 1276))
	wait(10, wire.HeaderSize+1276)
	h.send(strings.Repeat("x", 640))
	wait(10, wire.HeaderSize+640)
	h.send(strings.Repeat("x", 640))
	wait(10, wire.HeaderSize+640)
	wait(500, wire.HeaderSize+recovery.PieceHeader+1160) // the largest multiple of 20 that fits into 1200
	h.input(ack(1, h.now, 0))
	require.EqualValues(t, 1188, h.k.snd.blackHole.Taken, "any transmission may be the one that has arrived")
	require.EqualValues(t, 2, h.k.WatchedSizes().Lost, "one packet each")
	h.k.BlackHole().Probed(1300)
	wait(2000, wire.HeaderSize+recovery.PieceHeader+1260)
	require.Zero(t, h.k.WatchedSizes().Lost)
	h.input(ack(3, h.now, 4))
}
