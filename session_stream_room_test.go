package kcp

import (
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// streamWriter is a way to write to a stream for ever.
type streamWriter struct {
	name  string
	write func(s *Stream) error
	size  int // bytes of a message
}

var streamWriters = []streamWriter{
	{name: "bytes", size: 1536, write: func(s *Stream) error { _, err := s.Write(make([]byte, 1<<20)); return err }},
	{name: "a few bytes", size: 1536, write: func(s *Stream) error { _, err := s.Write([]byte{1}); return err }},
	{name: "empty messages", write: func(s *Stream) error { return s.WriteMessage(nil) }},
	{name: "messages", size: 1000, write: func(s *Stream) error { return s.WriteMessage(make([]byte, 1000)) }},
	{name: "long messages", size: 1 << 20, write: func(s *Stream) error { return s.WriteMessage(make([]byte, 1<<20)) }},
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
	return a.streams.Queued()
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
	for _, tc := range streamWriters {
		for _, pressed := range []bool{false, true} {
			inWorld(t, 70, clean, func(t *testing.T, w *world) {
				a, _, _ := w.pair(nil, nil)
				openStream(t, a, nil)
				w.net.Cut("10.0.0.1", "10.0.0.2")
				time.Sleep(time.Second)
				a.mu.Lock()
				a.kcp.peer.wnd = 0 // as the peer has said last
				a.mu.Unlock()
				all, size, others := &a.ep.load.written, defaultWriteBuffer, int64(0)
				if pressed {
					size, others = scarceWriteBuffer, writePressure+1
				}
				all.Add(others)
				empty := memoryInUse()
				held := blockedStreams(t, a, 255, tc.write)
				grown := memoryInUse() - empty
				last := 2*tc.size + 4*streams.MessageBytesQueued
				require.Greater(t, held, size/2-last, tc.name)
				require.Less(t, held, size+size/8+last, tc.name)                          // the segments of bytes take an eighth more than they count
				require.Less(t, grown, int64(held+held/2+1<<20+255*writerStack), tc.name) // with the streams themselves
				require.InDelta(t, held/writeGrain, all.Load()-others, 5)
				require.EqualValues(t, all.Load()*writeGrain, a.Endpoint().Stats().WriteBuffered)
				require.NoError(t, a.Abort())
				require.Equal(t, others, all.Load())
				require.Zero(t, a.streams.Queued())
			})
		}
	}
}

// Streams that nobody reads leave room to the others, and to those to come:
// they run as if alone, with bytes and with messages, also when memory is
// short.
func TestBlockedStreamsLeaveRoom(t *testing.T) {
	t.Parallel()
	long(t)
	link := netsim.LinkConfig{Delay: 5 * time.Millisecond, Rate: 4 << 20, Queue: 1 << 20}
	run := func(blocked int, pressed bool, message int) (took time.Duration) {
		inWorld(t, 71, link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			if pressed {
				a.ep.load.written.Add(writePressure + 1)
			}
			for range blocked {
				s := openStream(t, a, nil)
				go func() { _, _ = s.Write(make([]byte, 1<<20)) }()
				acceptStream(t, b)
			}
			time.Sleep(20 * time.Second)
			if blocked > 0 {
				a.mu.Lock()
				require.Greater(t, a.streams.Queued(), min((*streamHost)(&a.session).WriteBuffer()/4, 150<<10*blocked))
				a.mu.Unlock()
			}
			s, r := streamPair(t, a, b, nil)
			want := content(1, 2<<20)
			start := time.Now()
			go func() {
				for rest := want; len(rest) > 0; {
					n := min(len(rest), 1<<20)
					if message > 0 {
						n = min(n, message)
						if s.WriteMessage(rest[:n]) != nil {
							return
						}
					} else if _, err := s.Write(rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
			}()
			require.NoError(t, r.SetReadDeadline(time.Now().Add(time.Minute)))
			receive(t, r, want)
			took = time.Since(start)
			require.NoError(t, a.Abort())
		})
		return took
	}
	for _, message := range []int{0, 1000, 32 << 10} {
		alone := run(0, false, message)
		for _, blocked := range []int{20, 200} {
			require.Less(t, run(blocked, false, message), alone*3/2, "%d, message %d", blocked, message)
			require.Less(t, run(blocked, true, message), alone*3/2, "%d, message %d", blocked, message)
		}
	}
}

// Every call that waits for room of the session gets it in turn, however small
// the room is.
func TestStreamsShareLittleRoom(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, 72+seed, lossy, func(t *testing.T, w *world) {
			config := &Config{WriteBuffer: minWriteBuffer, StreamWriteBuffer: minWriteBuffer}
			a, b, _ := w.pair(config, config)
			var wg sync.WaitGroup
			for i := range 40 {
				s, r := streamPair(t, a, b, nil)
				want := content(seed+uint64(i), 20000)
				wg.Go(func() {
					for rest, n := want, 1; len(rest) > 0; n = n*7%5001 + 1 {
						n = min(n, len(rest))
						if i%2 == 0 {
							_, err := s.Write(rest[:n])
							require.NoError(t, err)
						} else {
							require.NoError(t, s.WriteMessage(rest[:n]))
						}
						rest = rest[n:]
					}
				})
				wg.Go(func() { receive(t, r, want) })
			}
			wg.Wait()
			a.mu.Lock()
			require.Zero(t, a.streams.Queued())
			f := a.streams.Figures()
			require.Zero(t, f.Ready)
			require.Zero(t, f.Writers)
			a.mu.Unlock()
		})
	}
}
