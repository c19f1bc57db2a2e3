package streams

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/serial"
)

// A stream that is read as it arrives needs no new memory. What it keeps for reuse
// counts until Compact, and holds nothing of what was read.
func TestBuffersAreUsedAgain(t *testing.T) {
	const segments, size = 100, 1400
	host := newHost(2, Limits{Streams: 4, WriteBuffer: 1 << 20, ReceiveBuffer: 1 << 20, MostReceiveBuffer: 1 << 20})
	host.payload = size
	mid, fill := serial.Number(0), byte(0)
	packet, got := make([]byte, 0, size+MaxHeader), make([]byte, segments*size)
	arrive := func() *Stream {
		for range segments {
			h := Header{ID: 1, Opens: true, End: true, MID: mid}
			packet = append(h.Append(packet[:0]), bytes.Repeat([]byte{fill}, size)...)
			host.table.Input(packet, false)
			in := &host.table.streams[1].in
			in.limit = in.freed + 1<<20
			mid++
			fill++
		}
		return host.table.streams[1]
	}
	read := func(s *Stream) {
		for n, first := 0, fill-segments; n < len(got); n += size {
			require.Equal(t, size, s.Read(got[n:n+size]))
			require.Equal(t, bytes.Repeat([]byte{first + byte(n/size)}, size), got[n:n+size])
		}
	}
	s := arrive()
	before := host.table.Memory()
	require.GreaterOrEqual(t, before, segments*size)
	read(s)
	require.GreaterOrEqual(t, host.table.Memory(), segments*size, "kept, and not counted")
	require.Zero(t, host.table.Held())
	fresh := testing.AllocsPerRun(1, func() { // of the test itself, which makes two slices a segment
		for range segments {
			_, _ = bytes.Repeat([]byte{fill}, size), packet
		}
	})
	require.Less(t, testing.AllocsPerRun(20, func() {
		arrive()
		for s.Read(got) > 0 {
		}
	}), fresh+5)
	arrive()
	read(s)
	host.table.Compact()
	require.Less(t, host.table.Memory(), 4<<10)
}

// Bytes, and messages, are sent from the buffers in which they wait, and what a piece
// takes beside it is used again.
func TestPiecesAreUsedAgain(t *testing.T) {
	host := newHost(1, Limits{Streams: 4, WriteBuffer: 1 << 20, ReceiveBuffer: 1 << 20})
	s, err := host.table.Open(Params{})
	require.NoError(t, err)
	s.out.limit = 1 << 30
	for round := range 6 {
		s.out.known = round >= 3 // until then the segments carry the options, too
		data := bytes.Repeat([]byte{byte(round)}, 3*host.payload+1)
		if round%3 == 0 {
			s.Write(data)
		} else {
			s.Send(data[:len(data)/(round%3)/4], 0, 0, nil)
			s.Send(data, 0, 0, nil)
		}
		var want, got [][]byte
		for p := s.out.first; p != nil; p = p.next {
			want = append(want, p.data[p.head:])
		}
		had := len(host.queued)
		for host.pull(false) {
		}
		for _, sent := range host.queued[had:] {
			_, data, ok := Decode(sent.payload)
			require.True(t, ok)
			got = append(got, data)
		}
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i], got[i])
			require.Same(t, unsafe.SliceData(want[i]), unsafe.SliceData(got[i]), "round %d: a copy", round)
		}
		require.GreaterOrEqual(t, host.table.sparePieces, 4, "round %d", round)
		require.LessOrEqual(t, host.table.sparePieces, 5, "round %d", round)
		require.Zero(t, host.table.Queued())
	}
	host.table.Compact()
	require.Zero(t, host.table.Memory())
	s.Write([]byte{1}) // a few bytes do not take a whole segment
	require.Less(t, host.table.Queued(), host.payload)
}
