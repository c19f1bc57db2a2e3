package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// readsMessage reads a message, which has to be want.
func readsMessage(t *testing.T, c interface{ ReadMessage([]byte) (int, error) }, want []byte) {
	t.Helper()
	buf := make([]byte, 200_000)
	n, err := c.ReadMessage(buf)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, buf[:n]), "%d bytes, not the %d sent", n, len(want))
}

// Messages keep their boundaries, empty ones included, over a bad link.
func TestConnMessages(t *testing.T) {
	inWorld(t, 3, lossy, func(t *testing.T, w *world) {
		cfg := kcp.LowLatency()
		cfg.MessageMode = true
		a, b, _ := w.pair(&cfg, &cfg)
		sizes := []int{0, 1, 1375, 1376, 1377, 0, 0, 50000, 127 * 1376, 3}
		go func() {
			for i, size := range sizes {
				if err := a.WriteMessage(content(uint64(i), size), nil); err != nil {
					t.Error(err)
				}
			}
		}()
		next := func(want int) {
			t.Helper()
			size, ok := b.NextMessageSize()
			require.True(t, ok)
			require.Equal(t, want, size)
		}
		for i, size := range sizes {
			if size > 1 {
				_, err := b.ReadMessage(make([]byte, size-1))
				require.ErrorIs(t, err, io.ErrShortBuffer)
				next(size)
			}
			readsMessage(t, b, content(uint64(i), size))
		}
		require.Equal(t, 127*1376, a.MaxMessageSize())
		require.ErrorIs(t, a.WriteMessage(make([]byte, 127*1376+1), nil), kcp.ErrMessageTooLarge)
		require.NoError(t, a.SetMessageMode(false))
		require.Zero(t, a.MaxMessageSize())
		require.NoError(t, a.SetMessageMode(true))

		// Read goes through boundaries; ReadMessage then gives what is left.
		require.NoError(t, a.WriteMessage([]byte("hello world"), nil))
		require.NoError(t, a.WriteMessage([]byte("next"), nil))
		w.hear(b, "hello ")
		next(len("world"))
		readsMessage(t, b, []byte("world"))
		readsMessage(t, b, []byte("next"))
		_, ok := b.NextMessageSize()
		require.False(t, ok)
		require.NoError(t, a.WriteMessage(nil, nil))
		time.Sleep(time.Second)
		next(0)
		require.NoError(t, b.Abort(0, ""))
		_, ok = b.NextMessageSize()
		require.False(t, ok)
	})
}

// In stream mode ReadMessage returns segments as the peer has cut them.
func TestReadMessageOfStream(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.WriteMessage([]byte("x"), nil), errors.ErrUnsupported)
		for range 5 {
			w.say(a, "abc")
		}
		time.Sleep(time.Second)
		_, err := b.ReadMessage(make([]byte, 2))
		require.ErrorIs(t, err, io.ErrShortBuffer)
		for range 3 {
			readsMessage(t, b, []byte("abc"))
		}
		w.hear(b, "a")
		readsMessage(t, b, []byte("bc")) // the rest of what Read has begun
		require.NoError(t, a.SetLinger(0))
		require.NoError(t, a.Close())
		readsMessage(t, b, []byte("abc"))
		_, err = b.ReadMessage(make([]byte, 10))
		require.Equal(t, io.EOF, err)
	})
}

// MaxSessions bounds what one endpoint holds, dialled and accepted.
func TestMaxSessions(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxSessions: 3}})
		e := w.client(&kcp.Config{Limits: kcp.Limits{MaxSessions: 5}, DialTimeout: -1})
		for range 5 {
			w.say(w.dial(e), "x")
		}
		_, err := e.Dial(context.Background(), l.Addr(), nil)
		require.ErrorIs(t, err, kcp.ErrTooManySessions)
		require.ErrorContains(t, err, "kcp: too many sessions: this endpoint has 5, as Limits.MaxSessions allows")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 3, l.Endpoint().Stats().Sessions)
		require.Positive(t, l.Endpoint().Stats().DropSessions)
	})
}
