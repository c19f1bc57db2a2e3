package kcp

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
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

// testHost is a host that sends numbered messages and keeps what arrives.
type testHost struct {
	k         *KCP
	queue     []uint64 // to be sent
	tags      map[uint64]*streamTag
	acked     map[uint64]int
	abandoned map[uint64]bool
	got       []uint64
	skipped   map[uint64]bool
}

func newTestHost(k *KCP) *testHost {
	h := &testHost{k: k, tags: make(map[uint64]*streamTag), acked: make(map[uint64]int), abandoned: make(map[uint64]bool), skipped: make(map[uint64]bool)}
	k.hooks.host = h
	k.startStreams()
	return h
}

func (*testHost) onSignal(signal, []byte) bool { return false }
func (*testHost) takesStreams() bool           { return true }
func (h *testHost) streamsWait() bool          { return len(h.queue) > 0 }

func (h *testHost) onStream(payload []byte) {
	s, data, ok := decodeStream(payload)
	switch {
	case !ok:
		panic("bad stream segment")
	case s.kind == streamAbandon:
		h.skipped[uint64(s.mid)] = true
	default:
		h.got = append(h.got, binary.LittleEndian.Uint64(data))
	}
}

func (h *testHost) pullStream(bool) bool {
	if len(h.queue) == 0 {
		return false
	}
	n := h.queue[0]
	h.queue = h.queue[1:]
	header := streamHeader{id: 1, kind: streamData, end: true, mid: seq(n)}
	b := header.append(nil)
	b = binary.LittleEndian.AppendUint64(b, n)
	b = append(b, make([]byte, n%700)...)
	t := h.tags[n]
	t.owner = n
	copy(h.k.queueStream(t, len(b)), b)
	return true
}

func (h *testHost) segmentAcked(t *streamTag) { h.acked[t.owner.(uint64)]++ }

func (h *testHost) abandonedUpTo(*streamTag) (seq, bool) { return 0, false }

func (h *testHost) abandonedMessage(t *streamTag) { h.abandoned[t.owner.(uint64)] = true }

// Stream segments among plain ones arrive exactly once each, or are abandoned;
// plain ones keep their order and their messages, and rcv_nxt passes all. What is
// acknowledged and not abandoned has arrived. A reader that stops for long does
// not make the queue grow with what arrives on streams.
func TestStreamSegments(t *testing.T) {
	sequential(t)
	for seed := range fewer(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		var wire [2][][]byte
		var ends [2]*KCP
		var hosts [2]*testHost
		for i := range ends {
			ends[i] = New(7, func(p []byte) { wire[i] = append(wire[i], bytes.Clone(p)) })
			require.NoError(t, ends[i].SetWindow(64, 256))
			require.NoError(t, ends[i].SetMTU(200+random.IntN(1200)))
			ends[i].SetNoDelay(NoDelayTurbo)
			ends[i].SetFastResend(2)
			hosts[i] = newTestHost(ends[i])
			ends[i].SetExtensions(Extensions{PipeWindow: seed%2 == 0, SendOrder: true, ThinAcks: seed%3 == 0, TakePieces: true, SendPieces: true, EarlyRetransmit: seed%2 == 0})
		}
		loss := random.Float64() * 0.3
		var plain, read []byte
		const streams = 300
		sent := uint64(0)
		a, b := ends[0], ends[1]
		for now := uint32(1); ; now += 5 {
			require.Less(t, now, uint32(300000), "seed %d: no end", seed)
			if random.IntN(10) == 0 && len(plain) < 40000 {
				p := content(seed+uint64(now), 1+random.IntN(2*a.cfg.mss))
				if n, err := a.Send(p); err == nil {
					plain = append(plain, p[:n]...)
				}
			}
			if random.IntN(3) == 0 && sent < streams {
				tag := &streamTag{}
				switch random.IntN(4) {
				case 0:
					tag.limit = uint32(1 + random.IntN(2))
				case 1:
					tag.deadline = int64(now+uint32(random.IntN(200))) * 1000
				}
				hosts[0].tags[sent] = tag
				hosts[0].queue = append(hosts[0].queue, sent)
				sent++
			}
			if now == 2001 {
				_ = a.shrinkMTU(120) // what is queued leaves in pieces
			}
			for i, k := range ends {
				k.SetClock(now)
				k.Flush()
				for _, p := range wire[i] {
					if random.Float64() >= loss {
						require.NoError(t, ends[1-i].Input(p), "seed %d", seed)
					}
				}
				wire[i] = nil
			}
			require.LessOrEqual(t, len(b.rcv.ring.slots), 2048)
			if now > 1500 {
				p := make([]byte, 1<<16)
				for n, err := b.Recv(p); err == nil; n, err = b.Recv(p) {
					read = append(read, p[:n]...)
				}
			}
			if now > 3000 && sent == streams && a.WaitSend() == 0 && len(hosts[0].queue) == 0 && len(read) == len(plain) {
				break
			}
		}
		require.True(t, bytes.Equal(plain, read), "seed %d", seed)
		got := make(map[uint64]bool)
		for _, n := range hosts[1].got {
			require.False(t, got[n], "seed %d: %d arrived twice", seed, n)
			got[n] = true
		}
		for n := range uint64(streams) {
			require.Equal(t, 1, hosts[0].acked[n], "seed %d: %d", seed, n)
			require.True(t, got[n] != hosts[1].skipped[n], "seed %d: %d", seed, n)
			require.True(t, got[n] || hosts[0].abandoned[n], "seed %d: %d is acknowledged, and has not arrived", seed, n)
			require.Zero(t, hosts[0].tags[n].flight)
		}
		require.Equal(t, a.snd.nxt, b.rcv.nxt)
		segments, size := a.streamLoad()
		require.Zero(t, segments+size+a.snd.bytes)
		require.Zero(t, b.rcv.void)
	}
}
