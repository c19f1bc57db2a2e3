package kcp

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/stretchr/testify/require"
)

// TryWrite of a stream queues what the write buffer of the stream has room for; the
// peer reads just that.
func TestStreamTryWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		const size = 64 << 10
		a, b, _ := w.pair(&Config{StreamWriteBuffer: size}, nil)
		s, r := streamPair(t, a, b, nil)
		w.settle()
		w.deaf()
		data := content(1, 3*size)
		n, err := s.TryWrite(data)
		require.Same(t, ErrWouldBlock, err)
		require.InDelta(t, size, n, size/4)
		for {
			m, err := s.TryWrite(data[n:])
			if n += m; m == 0 {
				require.Same(t, ErrWouldBlock, err)
				break
			}
		}
		require.Same(t, ErrWouldBlock, s.TryWriteMessage(nil))
		m, err := s.TryWrite(nil)
		require.NoError(t, err, "as Write")
		require.Zero(t, m)
		w.net.SetFilter(nil)
		receive(t, r, data[:n])
		w.settle()
		m, err = s.TryWrite(data[n : n+10])
		require.NoError(t, err)
		require.Equal(t, 10, m)
		receive(t, r, data[n:n+10])
	})
}

// A write that does not wait comes after a Write that does.
func TestStreamTryWriteBesideWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s, _ := streamPair(t, a, b, nil)
		written := make(chan error, 1)
		go func() {
			_, err := s.Write(make([]byte, 8<<20)) // which b does not read
			written <- err
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		_, err := s.TryWrite([]byte{1})
		require.Same(t, ErrWouldBlock, err)
		require.Same(t, ErrWouldBlock, s.TryWriteMessage(nil))
		require.NoError(t, s.Reset(5))
		require.ErrorIs(t, <-written, net.ErrClosed)
		_, err = s.TryWrite(nil)
		require.ErrorIs(t, err, net.ErrClosed)
		require.NotEqual(t, net.ErrClosed, err, "it is an OpError")
	})
}

// Messages that were taken arrive whole, and those that were refused do not: Done
// is called for the former alone, and late ones make room for new ones.
func TestTrySendMessage(t *testing.T) {
	for _, ofStream := range []bool{true, false} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &Config{MessageMode: true, StreamWriteBuffer: 64 << 10, WriteBuffer: 64 << 10, SendWindow: 8}
			a, b, _ := w.pair(config, config)
			s, r := streamPair(t, a, b, nil)
			send, read := s.TrySendMessage, r.ReadMessage
			if !ofStream {
				send, read = a.TrySendMessage, b.ReadMessage
			}
			w.settle()
			w.deaf()
			results := make(chan error, 1000)
			var taken, refused int
			fill := func(lifetime time.Duration) (n int) {
				for {
					o := &MessageOptions{Lifetime: lifetime, Done: func(err error) { results <- err }}
					err := send(content(uint64(taken+n), 3000), o)
					if err != nil {
						require.Same(t, ErrWouldBlock, err)
						refused++
						return n
					}
					n++
				}
			}
			require.Error(t, send(nil, &MessageOptions{Lifetime: -1}))
			late := fill(100 * time.Millisecond)
			require.Greater(t, late, 10)
			taken += late
			time.Sleep(101 * time.Millisecond)
			if !ofStream { // what follows a message that has begun waits for it
				w.net.SetFilter(nil)
				time.Sleep(time.Second)
			}
			fresh := fill(time.Hour)
			require.Greater(t, fresh, late/2, "late ones make room; of streams: %v", ofStream)
			taken += fresh
			w.net.SetFilter(nil)
			got := make([]byte, 3000)
			for i := late; i < taken; i++ {
				n, err := read(got)
				require.NoError(t, err)
				require.Equal(t, content(uint64(i), 3000), got[:n])
			}
			time.Sleep(time.Second)
			abandoned := 0
			require.Len(t, results, taken)
			for range taken {
				if err := <-results; err != nil {
					require.ErrorIs(t, err, ErrMessageAbandoned)
					abandoned++
				}
			}
			require.Equal(t, late, abandoned)
		})
	}
}

// TryOpenStream does not wait: of a peer that has not answered it is not known
// whether it takes streams.
func TestTryOpenStream(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		g := NewGroup()
		require.NoError(t, l.AcceptInto(g))
		e, _ := w.endpoint("10.0.0.2:0", &Config{DialTimeout: -1})
		a := w.dial(e)
		_, err := a.TryOpenStream(nil)
		require.ErrorIs(t, err, errKindUnknown)
		_, err = a.Write([]byte{1})
		require.NoError(t, err)
		time.Sleep(time.Second)
		s, err := a.TryOpenStream(nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.ID())
		b := take(t, g)[0].Conn
		r, err := b.TryOpenStream(&StreamOptions{Priority: 3})
		require.NoError(t, err)
		require.Equal(t, 3, r.Options().Priority)
		require.NoError(t, r.WriteMessage([]byte("here")))
		require.NoError(t, r.CloseWrite())
		got, err := io.ReadAll(acceptStream(t, a))
		require.NoError(t, err)
		require.Equal(t, "here", string(got))
		require.NoError(t, a.Abort())
		_, err = a.TryOpenStream(nil)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// A session that is accepted with its first packet, as that shows a cookie, can open
// streams at once: what accepts it may be quicker than what feeds the packet to it.
func TestTryOpenStreamOfFirstPacket(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e := w.listen(nil).Endpoint()
		remote := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1}
		first := admission.First{Initial: admission.Initial{Hello: signal{sigHello, 0, 7}.toHandshake()}}
		_, err := newAccepted(e, &first, remote, &inPacket{}, true).TryOpenStream(nil)
		require.ErrorIs(t, err, errKindUnknown, "nothing says that the peer takes streams")
		first.Info = e.infoSignal().toHandshake()
		c := newAccepted(e, &first, remote, &inPacket{}, true)
		s, err := c.TryOpenStream(nil)
		require.NoError(t, err)
		require.NoError(t, s.TryWriteMessage([]byte("state")))
		first.Info.TS &^= capStreams
		_, err = newAccepted(e, &first, remote, &inPacket{}, true).TryOpenStream(nil)
		require.ErrorIs(t, err, ErrNoStreams)
	})
}
