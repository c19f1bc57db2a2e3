package kcp

import (
	"io"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// carries returns the bytes a second that w carries to r, of n.
func carries(t *testing.T, w io.Writer, r io.Reader, n int) float64 {
	start, want := time.Now(), content(1, n)
	send(t, w, want)
	receive(t, r, want)
	return float64(n) / time.Since(start).Seconds()
}

// One stream carries as much as its session does, at the defaults: its receive
// buffer grows with what the path takes and the application reads. A run over a
// lossy path has between 0.86 and 1.07 of its session, without growth a third.
func TestStreamIsAsFastAsItsSession(t *testing.T) {
	long(t)
	for loss, least := range map[float64]float64{0: 0.9, 0.01: 0.8} {
		link := netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: loss}
		var session, stream float64
		for seed := range fewer(4) {
			inWorld(t, seed, link, func(w *world) {
				a, b, _ := w.pair(nil, nil)
				session += carries(t, a, b, 20<<20)
			})
			inWorld(t, seed, link, func(w *world) {
				a, b, _ := w.pair(nil, nil)
				s, r := streamPair(t, a, b, nil)
				stream += carries(t, s, r, 20<<20)
			})
		}
		t.Logf("%.0f %%: stream %.3f of its session", 100*loss, stream/session)
		require.Greater(t, stream, least*session)
	}
}

// Of a buffer that does not grow, nearly all is used in a round trip.
func TestStreamCreditIsInTime(t *testing.T) {
	long(t)
	inWorld(t, 1, netsim.LinkConfig{Delay: 40 * time.Millisecond}, func(w *world) {
		size := 1 << 20
		a, b, _ := w.pair(nil, &Config{StreamReceiveBuffer: size})
		s, r := streamPair(t, a, b, nil)
		carries(t, s, r, 4<<20)
		full := segmentCost(a)
		require.Greater(t, carries(t, s, r, 20<<20)/full, 0.9*float64(size)/(80*time.Millisecond).Seconds())
		require.Zero(t, grownOf(b))
	})
}

// segmentCost returns which part of the credit of full segments is payload.
func segmentCost(c *Conn) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := float64(c.kcp.segmentPayload())
	return (n - maxStreamHeader) / (n + streamCost)
}

// Only what the application reads, and fast, lets buffers grow, and all of a
// session by so much. What a stream had is there for others once it is over.
func TestStreamGrowthIsBounded(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 40 * time.Millisecond, Rate: 200 << 20, Queue: 64 << 20}, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		window := func(s *Stream) int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return s.in.window
		}
		unread, stuck := streamPair(t, a, b, nil)
		go func() {
			_, _ = unread.Write(content(1, 2<<20)) // it ends with the session
		}()
		slow, reader := streamPair(t, a, b, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			send(t, slow, content(2, 4<<20))
			for range 4 << 10 {
				_, _ = io.ReadFull(reader, make([]byte, 1<<10))
				time.Sleep(2 * time.Millisecond)
			}
		}()
		var streams [4][2]*Stream
		for i := range streams {
			streams[i][0], streams[i][1] = streamPair(t, a, b, nil)
		}
		for i := range streams {
			carries(t, streams[i][0], streams[i][1], 8<<20)
		}
		<-done
		require.Equal(t, initialCredit, window(stuck))
		require.Equal(t, defaultStreamReceive, window(reader))
		sum := 0
		for _, s := range streams {
			require.LessOrEqual(t, window(s[1]), maxStreamReceive)
			sum += window(s[1]) - defaultStreamReceive
		}
		require.Positive(t, sum)
		require.LessOrEqual(t, sum, maxStreamGrowth)
		require.Equal(t, sum, grownOf(b))
		for _, s := range streams {
			require.NoError(t, s[0].Close())
			require.NoError(t, s[1].Close())
		}
		time.Sleep(time.Second)
		require.Zero(t, grownOf(b))
	})
}

// grownOf returns by how much receive buffers of c's streams have grown.
func grownOf(c *Conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams.grown
}

// Under memory pressure buffers do not grow.
func TestStreamsDoNotGrowUnderPressure(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, l := w.pair(nil, nil)
		s, r := streamPair(t, a, b, nil)
		carries(t, s, r, 100<<10)
		load, pressure := &l.ep.load.buffered, 2*int64(l.ep.config.MaxBuffered)
		b.mu.Lock()
		defer b.mu.Unlock()
		load.Add(pressure)
		for range 4 {
			r.growLocked(defaultStreamReceive)
		}
		require.Equal(t, defaultStreamReceive, r.in.window)
		load.Add(-pressure)
		r.growLocked(defaultStreamReceive)
		require.Equal(t, 2*defaultStreamReceive, r.in.window)
	})
}
