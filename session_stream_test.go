package kcp

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func openStream(t *testing.T, c *Conn, options *StreamOptions) *Stream {
	t.Helper()
	s, err := c.OpenStream(context.Background(), options)
	require.NoError(t, err)
	return s
}

func acceptStream(t *testing.T, c *Conn) *Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := c.AcceptStream(ctx)
	require.NoError(t, err)
	return s
}

// streamPair returns the two ends of a stream of the session of a and b.
func streamPair(t *testing.T, a, b *Conn, options *StreamOptions) (*Stream, *Stream) {
	t.Helper()
	s := openStream(t, a, options)
	return s, acceptStream(t, b)
}

// Bytes go both ways over many streams at once, opened by both ends, and over
// the session itself, each in order and to its end, whatever is lost.
func TestStreams(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(w *world) {
			a, b, _ := w.pair(nil, nil)
			var wg sync.WaitGroup
			for i := range 10 {
				from, to := a, b
				if i%2 == 1 {
					from, to = b, a
				}
				s, r := streamPair(t, from, to, nil)
				require.Equal(t, s.ID(), r.ID())
				up, down := content(seed+uint64(i), 40000+i), content(seed+100+uint64(i), 10000)
				wg.Go(func() {
					bothWays(t, s, r, up, down)
					require.NoError(t, s.CloseWrite())
					_, err := r.Read(make([]byte, 1))
					require.Equal(t, io.EOF, err)
					require.NoError(t, r.Close())
					_, err = s.Read(make([]byte, 1))
					require.Equal(t, io.EOF, err)
					require.NoError(t, s.Close())
				})
			}
			bothWays(t, a, b, content(seed, 100000), content(seed+1, 100000))
			wg.Wait()
			time.Sleep(5 * time.Second)
			for _, c := range []*Conn{a, b} {
				c.mu.Lock()
				require.Empty(t, c.streams.streams)
				require.Zero(t, c.streams.held)
				require.Zero(t, c.streams.fromPeer)
				c.mu.Unlock()
				require.Zero(t, c.Stats().Dropped.Total())
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}
