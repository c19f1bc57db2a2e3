package kcp

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What arrives on streams and is not read is held for no longer than the
// application can read it: on a stream that goes on, on one that is over, and on
// one that was not accepted. When the session ends without that, its endpoint holds
// nothing.
func TestUnreadStreamsAreReleased(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, a, b *Conn, streams []*Stream)
		want error // of reading afterwards
	}{
		{"closed", func(t *testing.T, _, b *Conn, _ []*Stream) { require.NoError(t, b.Close()) }, net.ErrClosed},
		{"aborted", func(t *testing.T, _, b *Conn, _ []*Stream) { require.NoError(t, b.Abort()) }, net.ErrClosed},
		{"out of memory", func(_ *testing.T, _, b *Conn, _ []*Stream) { b.shedMemory() }, ErrMemoryPressure},
		{"ended, then closed", func(t *testing.T, a, b *Conn, _ []*Stream) {
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			require.Greater(t, b.ep.Stats().Buffered, 15000-accountGrain)
			require.NoError(t, b.Close())
		}, net.ErrClosed},
		{"ended, then streams closed", func(t *testing.T, a, _ *Conn, streams []*Stream) {
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			for _, s := range streams {
				require.NoError(t, s.Close())
			}
		}, net.ErrClosed},
		{"ended, then read", func(t *testing.T, a, _ *Conn, streams []*Stream) {
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			for i, s := range streams {
				receive(t, s, content(uint64(i), 5000))
			}
		}, ErrReset},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 20, clean, func(w *world) {
				a, b, _ := w.pair(nil, nil)
				var streams []*Stream
				for i := range uint64(3) {
					s := openStream(t, a, nil)
					_, err := s.Write(content(i, 5000))
					require.NoError(t, err)
					if i < 2 || tc.want == ErrReset || tc.name == "ended, then streams closed" {
						streams = append(streams, acceptStream(t, b))
					}
					if i == 0 {
						require.NoError(t, s.Close())
						require.NoError(t, streams[0].CloseWrite())
					}
				}
				time.Sleep(time.Second)
				require.Greater(t, b.ep.Stats().Buffered, 15000-accountGrain)
				tc.end(t, a, b, streams)
				time.Sleep(time.Minute)
				require.Zero(t, b.ep.Stats().Buffered)
				require.Zero(t, b.streams.held)
				for _, s := range streams {
					_, err := s.Read(make([]byte, 1))
					if s.closed {
						require.ErrorIs(t, err, net.ErrClosed)
					} else if s.ID() > 1 {
						require.ErrorIs(t, err, tc.want)
					}
				}
				_, _ = a.Abort(), b.Abort()
			})
		})
	}
}

// What arrives on streams of a session that nobody accepts is not held after the
// listener has ended.
func TestStreamsOfUnacceptedSessions(t *testing.T) {
	inWorld(t, 21, clean, func(w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		c := w.dial(e)
		s := openStream(t, c, nil)
		_, err := s.Write(content(1, 5000))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Greater(t, l.ep.Stats().Buffered, 5000)
		require.NoError(t, c.Abort())
		time.Sleep(time.Minute)
		require.NoError(t, l.Close())
		time.Sleep(time.Minute)
		require.Zero(t, l.ep.Stats().Buffered)
	})
}

// A Close that waits for a stream without a reader goes on to its end when the
// peer closes the session meanwhile.
func TestCloseBesideUnreadStreamMeetsClose(t *testing.T) {
	inWorld(t, 22, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		s := openStream(t, a, nil)
		_, err := s.Write(make([]byte, 200000)) // more than the credit
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		time.Sleep(time.Second)
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-closed, ErrNotDelivered)
		time.Sleep(2 * time.Minute)
		require.Zero(t, a.ep.Stats().Sessions)
		require.Zero(t, b.ep.Stats().Sessions)
	})
}
