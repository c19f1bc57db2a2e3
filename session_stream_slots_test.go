package kcp

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// hostileEnds are ways in which a peer ends its streams at once, with something written
// and without, and what an application does with each of them for 20 s, before it closes
// it.
var hostileEnds = map[string]struct{ end, work func(s *Stream) }{
	"Close":        {func(s *Stream) { _ = s.Close() }, func(*Stream) {}},
	"Write, Close": {func(s *Stream) { _, _ = s.Write([]byte("x")); _ = s.Close() }, func(s *Stream) { _, _ = io.ReadAll(s) }},
	"Reset": {func(s *Stream) { _ = s.Reset(7) }, func(s *Stream) {
		_ = s.CancelWrite(3)
		time.Sleep(time.Second) // and comes to read later
	}},
	"Write, Reset": {
		func(s *Stream) { _, _ = s.Write([]byte("x")); time.Sleep(time.Second / 50); _ = s.Reset(0) },
		func(s *Stream) { _ = s.CancelRead(0) },
	},
	"CancelWrite, CancelRead": {
		func(s *Stream) { _ = s.CancelWrite(1); _ = s.CancelRead(2) },
		func(s *Stream) { _, _ = s.Write([]byte("welcome")); _, _ = s.Write([]byte("and more")) },
	},
	"CloseWrite, CancelRead": {func(s *Stream) { _ = s.CloseWrite(); _ = s.CancelRead(0) }, func(s *Stream) { _, _ = io.ReadAll(s) }},
	"against the rules": {func(s *Stream) {
		for _, n := range []machine.Seq{5, 6} {
			s.conn.sendRaw((&streams.Header{ID: s.ID(), Opens: true, Kind: streams.Fin, MID: n}).Append(nil))
		}
	}, func(s *Stream) { _, _ = io.ReadAll(s) }},
	"refused, although it is not": {func(s *Stream) {
		s.conn.sendRaw((&streams.Header{ID: s.ID(), Opens: true, Kind: streams.Reset, Code: StreamRefused}).Append(nil))
	}, func(*Stream) {}},
}

// Whatever the peer does to its streams, at most Limits.MaxStreams are worked on at a
// time: until the application has closed one, it counts (compare CVE-2023-44487). When
// it has closed all, there is room for as many.
func TestStreamsWorkedOnAreBounded(t *testing.T) {
	for name, ways := range hostileEnds {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				const most = 8
				a, b, _ := w.pair(nil, &Config{Limits: Limits{MaxStreams: most}})
				ignoreLimit(a)
				var working atomic.Int64
				var peak testenv.Peak
				var all sync.WaitGroup
				all.Go(func() {
					for {
						s, err := b.AcceptStream(t.Context())
						if err != nil {
							return
						}
						all.Go(func() {
							peak.Saw(working.Add(1))
							ways.work(s)
							time.Sleep(20 * time.Second)
							working.Add(-1)
							_ = s.Close()
						})
					}
				})
				for range 20 {
					for range most {
						ways.end(openStream(t, a, nil))
					}
					time.Sleep(100 * time.Millisecond)
				}
				require.EqualValues(t, most, peak.Load())
				require.Equal(t, most, figuresOf(b).fromPeer)
				time.Sleep(time.Minute)
				require.Zero(t, working.Load())
				require.Zero(t, figuresOf(b).fromPeer)
				refused := b.Endpoint().Totals().Streams.Refused
				require.Positive(t, refused)
				for range most {
					send(t, openStream(t, a, nil), []byte("room again"))
				}
				time.Sleep(time.Second)
				require.EqualValues(t, most, working.Load())
				require.Equal(t, refused, b.Endpoint().Totals().Streams.Refused)
				_, _ = a.Abort(0, ""), b.Abort(0, "")
				all.Wait()
			})
		})
	}
}

// A peer that claims to take more than any default receive buffer grows to is believed as
// far as this end's Config has as much.
func TestShownCreditIsBelievedWithinLimits(t *testing.T) {
	for _, tc := range []struct {
		config Config
		most   int
	}{
		{Config{}, 16 << 20},
		{Config{StreamReceiveBuffer: 64 << 10}, 16 << 20},
		{Config{StreamReceiveBuffer: 32 << 20}, 32 << 20},
		{Config{StreamWriteBuffer: 24 << 20}, 24 << 20},
	} {
		inWorld(t, 5, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&tc.config, nil)
			s, _ := streamPair(t, a, b, nil)
			for _, limit := range []machine.Seq{1 << 30, 1<<31 - 1, 1<<31 + 65535, 1<<32 - 1} {
				b.sendRaw((&streams.Header{ID: s.ID(), Kind: streams.Credit, Limit: limit}).Append(nil))
				time.Sleep(time.Second)
				require.LessOrEqual(t, s.MaxMessageSize(), tc.most)
			}
			require.Greater(t, s.MaxMessageSize(), tc.most/10*9)
			require.ErrorIs(t, s.WriteMessage(make([]byte, tc.most), nil), ErrMessageTooLarge)
		})
	}
}

// streamWriter is a way to write to a stream for ever.
type streamWriter struct {
	name  string
	write func(s *Stream) error
	size  int // bytes of a message
}

var streamWriters = []streamWriter{
	{name: "bytes", size: 1536, write: func(s *Stream) error { _, err := s.Write(make([]byte, 1<<20)); return err }},
	{name: "a few bytes", size: 1536, write: func(s *Stream) error { _, err := s.Write([]byte{1}); return err }},
	{name: "empty messages", write: func(s *Stream) error { return s.WriteMessage(nil, nil) }},
	{name: "messages", size: 1000, write: func(s *Stream) error { return s.WriteMessage(make([]byte, 1000), nil) }},
	{name: "long messages", size: 1 << 20, write: func(s *Stream) error { return s.WriteMessage(make([]byte, 1<<20), nil) }},
}

// blockedStreams has n streams of a write as much as they can. b takes nothing.
// It returns what waits in them.
func blockedStreams(t *testing.T, a *Conn, n int, write func(s *Stream) error) int {
	var all []*Stream
	for range n {
		all = append(all, openStream(t, a, nil))
	}
	var wg sync.WaitGroup
	for _, s := range all {
		require.NoError(t, s.SetWriteDeadline(time.Now().Add(time.Second)))
		wg.Go(func() {
			for write(s) == nil {
			}
		})
	}
	wg.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session.Inside().Streams().Queued()
}

// writerStack is the most that the stack of a goroutine takes that waits in Write. On
// Windows the least stack is 8 KB, four times that of other systems.
const writerStack = 16 << 10

// A peer that takes nothing on many streams makes the other end hold no more
// than a write buffer, as allocated, and but for the last message: 4 MiB, and
// 256 KiB when memory is short. All of it is counted, and released.
func TestStreamWriteBuffersAreBounded(t *testing.T) {
	t.Parallel()
	sequential(t)
	if !alone(t) {
		return
	}
	require.LessOrEqual(t, int(unsafe.Sizeof(Stream{})), streams.BytesHeld)
	for i, tc := range streamWriters {
		pressed := i%2 == 1
		inWorld(t, 70, clean, func(t *testing.T, w *world) {
			const many = 128
			a, _, _ := w.pair(nil, nil)
			openStream(t, a, nil)
			w.net.Cut("10.0.0.1", "10.0.0.2")
			time.Sleep(time.Second)
			a.mu.Lock()
			at := a.session.Inside().Machine().Position()
			shut := make([]byte, wire.HeaderSize) // as the peer has said last
			(&wire.Header{Conv: a.Conv(), Cmd: wire.CmdWins, Una: at.Acked}).Encode(shut)
			require.NoError(t, a.session.Inside().Machine().Input(shut))
			a.mu.Unlock()
			all, size, others := &a.ep.shared.Load.Written, session.DefaultWriteBuffer, int64(0)
			if pressed {
				size, others = session.ScarceWriteBuffer, session.WritePressure+1
			}
			all.Add(others)
			empty := memoryInUse()
			held := blockedStreams(t, a, many, tc.write)
			grown := memoryInUse() - empty
			last := 2*tc.size + 4*streams.MessageBytesQueued
			require.Greater(t, held, size/2-last, tc.name)
			require.Less(t, held, size+size/8+last, tc.name)                           // the segments of bytes take an eighth more than they count
			require.Less(t, grown, int64(held+held/2+1<<20+many*writerStack), tc.name) // with the streams themselves
			require.InDelta(t, held/session.WriteGrain, all.Load()-others, 5)
			require.EqualValues(t, all.Load()*session.WriteGrain, a.Endpoint().Stats().WriteBuffered)
			require.NoError(t, a.Abort(0, ""))
			require.Equal(t, others, all.Load())
			require.Zero(t, a.session.Inside().Streams().Queued())
		})
	}
}
