package kcp

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// small is a session whose write buffer is soon full, because its peer reads
// nothing.
func small(messages bool) *Config {
	return &Config{MessageMode: messages, WriteBuffer: minWriteBuffer, ReceiveWindow: 128, SendWindow: 4}
}

// TryWrite queues what there is room for, WriteAvailable says how much that is,
// and WriteReady when there is more.
func TestTryWrite(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, _ := w.pair(small(false), nil)
		time.Sleep(time.Second)
		w.deaf()
		data := content(1, 3*minWriteBuffer)
		n, err := a.TryWrite(data[:10])
		require.NoError(t, err)
		require.Equal(t, 10, n)
		room := a.WriteAvailable()
		require.Equal(t, minWriteBuffer-a.Stats().WriteBufferUsed, a.room())
		require.Greater(t, room, 2000)
		m, err := a.TryWrite(data[n : n+room])
		require.NoError(t, err, "of all that is available")
		require.Equal(t, room, m)
		require.LessOrEqual(t, a.Stats().WriteBufferUsed, minWriteBuffer)
		n += m
		for { // what shares a segment costs less
			m, err := a.TryWrite(data[n:])
			n += m
			if err != nil {
				require.Same(t, ErrWouldBlock, err)
				break
			}
		}
		require.Zero(t, a.WriteAvailable())
		require.GreaterOrEqual(t, a.Stats().WriteBufferUsed, minWriteBuffer)
		again, err := a.TryWrite(data[n:])
		require.Same(t, ErrWouldBlock, err)
		require.Zero(t, again)
		ready := a.WriteReady()
		require.Equal(t, ready, a.WriteReady())
		require.False(t, isDone(ready))
		w.net.SetFilter(nil)
		for n < len(data) {
			<-a.WriteReady()
			require.NotZero(t, a.WriteAvailable())
			m, err := a.TryWrite(data[n:])
			require.NotZero(t, m)
			if n += m; n < len(data) {
				require.Same(t, ErrWouldBlock, err)
			}
		}
		require.True(t, isDone(ready))
		receive(t, b, data)
	})
}

// deaf makes all packets be lost.
func (w *world) deaf() { w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) }

// A message that is refused is not queued in part: what the peer reads are the
// messages that were taken, whole, and no others. So it is for a WriteMessage
// whose deadline passes.
func TestRefusedMessagesQueueNothing(t *testing.T) {
	for _, try := range []bool{true, false} {
		inWorld(t, 1, clean, func(w *world) {
			a, b, _ := w.pair(small(true), small(true))
			var read [][]byte
			done := make(chan struct{})
			go func() {
				defer close(done)
				for got := make([]byte, 4000); ; {
					n, err := b.ReadMessage(got)
					if err != nil {
						return
					}
					read = append(read, bytes.Clone(got[:n]))
				}
			}()
			var taken [][]byte
			refused := 0
			for i := range 100 {
				m := content(uint64(i), 3000) // of three segments
				var err error
				if try {
					err = a.TryWriteMessage(m)
				} else {
					require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Microsecond)))
					err = a.WriteMessage(m)
				}
				switch {
				case err == nil:
					taken = append(taken, m)
					continue
				case try:
					require.Same(t, ErrWouldBlock, err)
				default:
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}
				refused++
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Minute)
			require.Greater(t, len(taken), 10)
			require.Greater(t, refused, 10)
			require.NoError(t, b.Close())
			<-done
			require.Equal(t, taken, read)
		})
	}
}

// Neither of them waits for a Write that does, nor comes between its segments.
func TestTryWriteBesideWrite(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, _, _ := w.pair(small(true), nil)
		w.deaf()
		go func() { _, _ = a.Write(make([]byte, 100000)) }()
		synctest.Wait()
		require.Same(t, ErrWouldBlock, a.TryWriteMessage(nil))
		_, err := a.TryWrite([]byte{1})
		require.Same(t, ErrWouldBlock, err)
		require.Zero(t, a.WriteAvailable())
	})
}

// After the end there is nothing to wait for, and the errors are those of Write.
func TestTryWriteAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(a, b *Conn)
		want error
	}{
		"closed":      {func(a, _ *Conn) { _ = a.Close() }, net.ErrClosed},
		"half-closed": {func(a, _ *Conn) { _ = a.CloseWrite() }, net.ErrClosed},
		"aborted":     {func(_, b *Conn) { _ = b.Abort() }, ErrReset},
		"peer closed": {func(_, b *Conn) { _ = b.Close() }, ErrPeerClosed},
		"deadline":    {func(a, _ *Conn) { _ = a.SetWriteDeadline(time.Now().Add(time.Second)) }, os.ErrDeadlineExceeded},
	} {
		inWorld(t, 1, clean, func(w *world) {
			config := small(true)
			config.Linger = -1
			a, b, _ := w.pair(config, config)
			for a.TryWriteMessage(make([]byte, 1000)) == nil {
			}
			ready := a.WriteReady()
			require.False(t, isDone(ready), name)
			if name != "peer closed" && name != "aborted" {
				w.deaf()
			}
			c.end(a, b)
			<-ready
			require.ErrorIs(t, a.TryWriteMessage(nil), c.want, name)
			_, err := a.TryWrite(nil)
			require.ErrorIs(t, err, c.want)
			var oe *net.OpError
			require.ErrorAs(t, err, &oe)
			require.Zero(t, a.WriteAvailable())
			require.True(t, isDone(a.WriteReady()))
		})
	}
	inWorld(t, 1, clean, func(w *world) {
		a, _, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.TryWriteMessage(nil), ErrNotMessageMode)
	})
}

// A session in a group has EventWritable after a TryWrite without room.
func TestTryWriteInGroup(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, _ := w.pair(small(true), nil)
		g := NewGroup()
		defer g.Close()
		require.NoError(t, g.Add(a))
		for a.TryWriteMessage(make([]byte, 1000)) == nil {
		}
		go func() {
			buf := make([]byte, 1000)
			for {
				if _, err := b.Read(buf); err != nil {
					return
				}
			}
		}()
		events := make([]Event, 1)
		n, err := g.Wait(context.Background(), events)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, EventWritable, events[0].Kind)
		require.NoError(t, a.TryWriteMessage(nil))
	})
}
