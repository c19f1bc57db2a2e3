package kcp

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/streams"
)

// Stream segments go in front of all that Send has queued, however many wait, and what
// waits keeps its order.
func TestStreamSegmentsGoFirst(t *testing.T) {
	t.Parallel()
	sequential(t)
	for _, plain := range []int{0, 1, 15, 16, 17, 1000} {
		var sent []uint64 // in the order in which they leave
		plainSent, most := 0, 0
		k := New(7, func(p []byte) {
			for at := 0; at < len(p); {
				h := decodeHeader(p[at:])
				if at += headerSize; h.cmd == cmdStream {
					_, data, _ := streams.Decode(p[at:][:h.len])
					sent = append(sent, binary.LittleEndian.Uint64(data))
				} else {
					require.EqualValues(t, plainSent, binary.LittleEndian.Uint64(p[at:]))
					plainSent++
				}
				at += int(h.len)
			}
		})
		require.NoError(t, k.SetWindow(8, 128))
		k.SetCongestionControl(congestion.NewNone())
		h := newTestHost(t, k)
		k.hooks.host = h
		queued := 0
		for now := uint32(1); plainSent < plain || now < 100; now++ {
			// All at once first, then more while others wait.
			for range min(plain-queued, max(plain/2, 1)) {
				_, err := k.Send(binary.LittleEndian.AppendUint64(nil, uint64(queued)))
				require.NoError(t, err)
				queued++
			}
			for range now % 6 {
				h.add(1, &streams.Tag{})
			}
			most = max(most, k.snd.queue.n)
			k.SetClock(now)
			k.Flush()
			b, err := k.recount()
			require.NoError(t, err)
			require.Equal(t, k.books(), b)
			require.NoError(t, k.Input(segment(cmdWins, 0, 0, 0, uint32(k.snd.nxt), "")))
		}
		require.GreaterOrEqual(t, most, plain/2)
		require.Greater(t, len(sent), 100)
		for i, n := range sent {
			require.EqualValues(t, i, n)
		}
		require.Zero(t, k.snd.queue.n)
		k.discardSend()
	}
}
