package kcp

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/opening"
	"github.com/stretchr/testify/require"
)

// streamFigures is what a session holds because of streams.
type streamFigures struct{ streams, held, fromPeer, refused, ahead, awaited int }

func figuresOf(c *Conn) streamFigures {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.streams
	f := t.Figures()
	return streamFigures{f.Streams, f.Held, f.FromPeer, f.Refused, f.IDs, receiptsToCome(c)}
}

// receiptsToCome returns how many messages await a receipt. c.mu is held.
func receiptsToCome(c *Conn) (n int) {
	if c.rare != nil {
		n += c.rare.awaiting.Len() + c.rare.receipts.Len()
	}
	if c.streams != nil {
		n += c.streams.Figures().Awaiting
	}
	return n
}

// wantReset checks that err says that the stream was reset.
func wantReset(t *testing.T, err error, code uint64, remote bool) {
	t.Helper()
	var reset *StreamError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, StreamError{Code: code, Remote: remote}, *reset)
}

// Messages keep their boundaries and their order, whatever their size, over a bad
// link and in small packets.
func TestStreamMessages(t *testing.T) {
	for _, mtu := range []int{50, 1400} {
		inWorld(t, 3, lossy, func(t *testing.T, w *world) {
			config := &Config{MTU: mtu, MaxMTU: -1}
			a, b, _ := w.pair(config, config)
			s, r := streamPair(t, a, b, nil)
			sizes := []int{0, 1, 1354, 1355, 1356, 1359, 1360, 0, 0, 70000 * mtu / 1400, 400000 * mtu / 1400, 3}
			go func() {
				for i, size := range sizes {
					if err := s.WriteMessage(bytes.Repeat([]byte{byte(i + 1)}, size)); err != nil {
						t.Error(err)
					}
				}
				_ = s.CloseWrite()
			}()
			buf := make([]byte, 1<<20)
			for i, size := range sizes {
				if size > 0 {
					_, err := r.ReadMessage(nil)
					if err != nil {
						require.ErrorIs(t, err, io.ErrShortBuffer)
						next, ok := r.NextMessageSize()
						require.True(t, ok)
						require.Equal(t, size, next)
					}
				}
				n, err := r.ReadMessage(buf)
				require.NoError(t, err, "message %d", i)
				require.True(t, bytes.Equal(buf[:n], bytes.Repeat([]byte{byte(i + 1)}, size)), "message %d: %d bytes, want %d", i, n, size)
			}
			_, err := r.ReadMessage(buf)
			require.Equal(t, io.EOF, err)
			_, ok := r.NextMessageSize()
			require.False(t, ok)
		})
	}
}

// A peer without signals takes no streams, nor does one that is set so: both are
// known at once, and the session goes on.
func TestPeersWithoutStreams(t *testing.T) {
	inWorld(t, 11, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &Config{MaxStreams: -1})
		_, err := a.OpenStream(context.Background(), nil)
		require.ErrorIs(t, err, ErrNoStreams)
		require.ErrorContains(t, err, "kcp: the peer takes no streams, as with a negative Config.MaxStreams")
		bothWays(t, a, b, []byte("up"), []byte("down"))
		a.mu.Lock()
		a.hs.Peer, a.hs.capabilities, a.hs.version = opening.Legacy, 0, 0
		a.mu.Unlock()
		begin := time.Now()
		_, err = a.OpenStream(context.Background(), nil)
		require.ErrorIs(t, err, ErrLegacyPeer)
		require.Zero(t, time.Since(begin))
		for _, tc := range []struct {
			options StreamOptions
			want    OptionError
		}{
			{StreamOptions{Priority: 8}, OptionError{"StreamOptions.Priority", 8, "must be in [-8, 7]"}},
			{StreamOptions{Priority: -9}, OptionError{"StreamOptions.Priority", -9, "must be in [-8, 7]"}},
			{StreamOptions{MaxLifetime: -1}, OptionError{"StreamOptions.MaxLifetime", time.Duration(-1), "must be in [0s, 1193h2m47.295s]"}},
			{StreamOptions{MaxLifetime: time.Microsecond}, OptionError{"StreamOptions.MaxLifetime", time.Microsecond, "must be at least 1ms, or 0 for no limit"}},
			{StreamOptions{MaxLifetime: maxLifetime + 1}, OptionError{"StreamOptions.MaxLifetime", maxLifetime + 1, "must be in [0s, 1193h2m47.295s]"}},
			{StreamOptions{MaxRetransmits: 65535}, OptionError{"StreamOptions.MaxRetransmits", 65535, "must be at most 65534"}},
		} {
			_, err = a.OpenStream(context.Background(), &tc.options)
			requireOption(t, tc.want, err)
			_, err = a.TryOpenStream(&tc.options)
			requireOption(t, tc.want, err)
		}
		_, err = a.OpenStream(context.Background(), &StreamOptions{Priority: 99})
		require.ErrorContains(t, err, "kcp: StreamOptions.Priority is 99: must be in [-8, 7]")
		_, err = a.OpenStream(context.Background(), &StreamOptions{Priority: 7, MaxLifetime: maxLifetime, MaxRetransmits: 65534})
		require.ErrorIs(t, err, ErrLegacyPeer, "the options are right")
	})
}

// An end that takes no streams opens none either, and both calls say so at once.
func TestEndWithoutStreams(t *testing.T) {
	inWorld(t, 11, clean, func(t *testing.T, w *world) {
		_, b, _ := w.pair(nil, &Config{MaxStreams: -1})
		begin := time.Now()
		_, err := b.OpenStream(context.Background(), nil)
		require.ErrorIs(t, err, ErrNoStreams)
		_, err = b.TryOpenStream(nil)
		require.ErrorIs(t, err, ErrNoStreams)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err = b.AcceptStream(ctx)
		require.ErrorIs(t, err, ErrNoStreams)
		require.ErrorContains(t, err, "kcp: this end takes no streams: Config.MaxStreams is negative")
		require.Zero(t, time.Since(begin))
		require.NoError(t, b.Close())
		_, err = b.AcceptStream(ctx)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// requireOption requires that err has want in it.
func requireOption(t *testing.T, want OptionError, err error) {
	t.Helper()
	var got *OptionError
	require.ErrorAs(t, err, &got)
	require.Equal(t, want, *got)
}

// Close of a session delivers what was written to its streams, and the end of those of
// which nothing was refused. CloseWrite ends what the session itself sends, and no
// stream.
func TestCloseWithStreams(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s, r := streamPair(t, a, b, nil)
			s2, r2 := streamPair(t, b, a, nil)
			if seed%2 == 0 {
				_, err := a.Write([]byte("bye"))
				require.NoError(t, err)
				require.NoError(t, a.CloseWrite())
				receive(t, b, []byte("bye"))
				_, err = b.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
				bothWays(t, s2, r2, content(seed, 50000), content(seed, 60000))
				require.NoError(t, b.CloseWrite())
				_, err = a.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			}
			up := content(seed+2, 1<<20)
			var wg sync.WaitGroup
			wg.Go(func() { receive(t, r, up) })
			_, err := s.Write(up)
			require.NoError(t, err)
			require.NoError(t, a.Close())
			wg.Wait()
			_, err = r.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			_, err = r.Write([]byte{1})
			require.ErrorIs(t, err, ErrPeerClosed)
			_, err = b.AcceptStream(context.Background())
			require.ErrorIs(t, err, ErrPeerClosed)
			_, err = s.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed)
			_, err = a.OpenStream(context.Background(), nil)
			require.ErrorIs(t, err, net.ErrClosed)
			require.NoError(t, b.Close())
		})
	}
}

// An open stream lets the session itself write less ahead, which takes no more of the
// write buffer.
func TestWriteBufferBesideStreams(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		openStream(t, a, nil)
		time.Sleep(time.Second)
		require.Zero(t, a.Stats().WriteBufferUsed)
		w.net.Cut("10.0.0.1", "")
		n, err := a.TryWrite(make([]byte, 1<<20))
		require.Same(t, ErrWouldBlock, err)
		require.LessOrEqual(t, n, 3*bulkAhead) // a window of them has left
		require.Greater(t, n, bulkAhead/2)
		require.InDelta(t, n, a.Stats().WriteBufferUsed, float64(n)/10)
	})
}
