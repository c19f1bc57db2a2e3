package streams

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
)

// A stream that is read as it arrives needs no new memory. What it keeps for reuse
// counts until Compact, and holds nothing of what was read.
func TestBuffersAreUsedAgain(t *testing.T) {
	const segments, size = 100, 1400
	host := newHost(2, Limits{Streams: 4, WriteBuffer: 1 << 20, ReceiveBuffer: 1 << 20, MostReceiveBuffer: 1 << 20})
	host.payload = size
	mid, fill := container.Serial(0), byte(0)
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
