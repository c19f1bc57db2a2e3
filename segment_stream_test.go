package kcp

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// Each kind of stream segment survives its encoding, at the extremes of every
// field, and nothing that is shorter decodes.
func TestStreamHeaders(t *testing.T) {
	for _, h := range []streamHeader{
		{id: 1, kind: streamData, end: true, mid: math.MaxUint32},
		{id: math.MaxUint32, kind: streamData, part: true, mid: 1, fsn: math.MaxUint32},
		{id: 2, kind: streamData, part: true, end: true, opens: true, params: streamParams{true, -128, 65535, math.MaxUint32}},
		{id: 3, kind: streamAbandon, mid: 7, size: noSegment},
		{id: 3, kind: streamAbandon, opens: true, params: streamParams{priority: 127}, mid: 7, size: 3},
		{id: 3, kind: streamAbandon, end: true, mid: math.MaxUint32, size: 3},
		{id: 4, kind: streamFin, mid: 1 << 31},
		{id: 5, kind: streamReset, code: math.MaxUint64},
		{id: 6, kind: streamStop, code: 1},
		{id: 7, kind: streamCredit, limit: math.MaxUint32},
		{id: 8, kind: streamOpen, opens: true},
	} {
		b := h.append(nil)
		require.LessOrEqual(t, len(b), maxStreamHeader)
		data := "payload"
		if h.kind != streamData {
			data = ""
			_, _, ok := decodeStream(append(bytes.Clone(b), 1))
			require.False(t, ok, "%+v with payload", h)
		}
		got, rest, ok := decodeStream(append(bytes.Clone(b), data...))
		require.True(t, ok, "%+v", h)
		require.Equal(t, h, got)
		require.Equal(t, data, string(rest))
		for n := range len(b) {
			_, _, ok := decodeStream(b[:n])
			require.False(t, ok, "%d bytes of %+v", n, h)
		}
	}
	for _, bad := range [][]byte{
		{0, 0, 0, 0, streamEnd, 1, 0, 0, 0},                          // id 0
		{1, 0, 0, 0, 0, 1, 0, 0, 0},                                  // neither an end nor a fragment
		{1, 0, 0, 0, 7, 1, 0, 0, 0},                                  // unknown kind
		{1, 0, 0, 0, streamEnd | 0x40, 1, 0, 0, 0},                   // unknown flag
		{1, 0, 0, 0, byte(streamFin) | streamEnd, 1, 0, 0, 0},        // a FIN that ends a message
		{1, 0, 0, 0, byte(streamFin) | streamFragment, 1, 0, 0, 0},   // or is a fragment
		{1, 0, 0, 0, 0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},             // a fragment that is given up
		{1, 0, 0, 0, byte(streamOpen)},                               // options without options
		{1, 0, 0, 0, byte(streamOpen) | streamOptions, 0, 0, 0, 0},   // half of them
		{1, 0, 0, 0, byte(streamAbandon), 0, 0, 0, 0},                // without size
		{1, 0, 0, 0, byte(streamReset), 0, 0, 0, 0},                  // half a code
		{1, 0, 0, 0, byte(streamEnd | streamFragment), 0, 0, 0, 0},   // without fsn
		{1, 0, 0, 0, byte(streamEnd | streamOptions), 0, 0, 0, 0, 0}, // without mid
	} {
		_, _, ok := decodeStream(bad)
		require.False(t, ok, "%x", bad)
	}
}

// movesHost counts how many waiting segments queueStream moves in the ring.
type movesHost struct {
	*testHost
	moves int
}

func (h *movesHost) pullStream(plain bool) bool {
	before := places(&h.k.snd.ring)
	pulled := h.testHost.pullStream(plain)
	after := places(&h.k.snd.ring)
	for i, s := range before {
		if s != nil && (len(after) != len(before) || after[i] != s) {
			h.moves++
		}
	}
	return pulled
}

// places returns what is in every place of a ring.
func places(r *sendRing) (all []*sendSegment) {
	for i := range r.Len() {
		all = append(all, r.at(seq(i)))
	}
	return all
}

// Stream segments go in front of all that Send has queued. However many wait,
// that costs at most two moves in the ring for each segment that was queued; and
// what waits keeps its order.
func TestQueueStreamIsConstant(t *testing.T) {
	sequential(t)
	for _, plain := range []int{0, 1, 15, 16, 17, 1000} {
		var sent []uint64 // in the order in which they leave
		plainSent, most := 0, 0
		k := New(7, func(p []byte) {
			for at := 0; at < len(p); {
				h := decodeHeader(p[at:])
				if at += headerSize; h.cmd == cmdStream {
					_, data, _ := decodeStream(p[at:][:h.len])
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
		h := &movesHost{testHost: newTestHost(t, k)}
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
				h.add(1, &streamTag{})
			}
			most = max(most, k.unsent())
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
		require.LessOrEqual(t, h.moves, 2*(queued+len(sent)), "%d waiting, %d of streams", plain, len(sent))
		require.Zero(t, k.unsent())
		require.Zero(t, k.rare.gap)
		k.discardSend()
	}
}
