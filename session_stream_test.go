package kcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Under memory pressure the session tells its streams that buffers may not grow.
func TestStreamsDoNotGrowUnderPressure(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, l := w.pair(nil, nil)
		load, pressure := &l.ep.shared.Load.Buffered, 2*int64(l.ep.config.Limits.MaxBuffered)
		b.mu.Lock()
		defer b.mu.Unlock()
		load.Add(pressure)
		require.True(t, b.session.Inside().StreamHost().MemoryIsShort())
		load.Add(-pressure)
		require.False(t, b.session.Inside().StreamHost().MemoryIsShort())
	})
}

// A HELLO and INFO that are forged, or of an earlier session of the peer, do not
// decide which end opens which streams: the WELCOME, and the INFO that comes with
// it, do. So no stream takes the place of another in the table; its calls would
// never return.
func TestStreamIDsAfterForgedHello(t *testing.T) {
	const smallest, largest = 1, 1<<32 - 1 // of all tokens
	server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
	for name, tc := range map[string]struct {
		quiet         bool   // the end gets HELLO before it has sent its own, and no WELCOME
		hello, answer uint32 // the peer's token in HELLO, and in WELCOME
		first, then   bool   // INFO says that the peer has dialled
		ours          uint32 // the first stream that the end opens
	}{
		"token was smaller":    {false, smallest, largest, true, true, 1},
		"token was larger":     {false, largest, smallest, true, true, 2},
		"has not dialled":      {false, smallest, smallest + 1, true, false, 1},
		"has dialled":          {false, largest, smallest, false, true, 2},
		"same token":           {false, smallest, smallest, true, true, 2},
		"quiet, smaller token": {true, smallest, 0, true, true, 2},
		"quiet, larger token":  {true, largest, 0, true, true, 1},
	} {
		inWorld(t, 20, netsim.LinkConfig{}, func(t *testing.T, w *world) {
			const conv = 5
			greet := func(s wire.Signal, dialled bool) {
				info := session.InfoSignal()
				if info.TS |= session.CapStreams; dialled {
					info.TS |= session.CapDialled
				}
				w.net.Inject(server, client, packetOf(conv, bytesOf(s), bytesOf(info)))
			}
			e, _ := w.endpoint("10.0.0.2:5000", nil)
			time.AfterFunc(time.Millisecond, func() { greet(wire.Signal{Code: wire.Hello, SN: 0, TS: tc.hello}, tc.first) })
			c := w.dialWith(e, serverAddr, DialOptions{Conv: id(conv), Quiet: tc.quiet})
			time.Sleep(2 * time.Millisecond)
			open := func() (*Stream, error) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return c.OpenStream(ctx, nil)
			}
			s, err := open()
			require.Equal(t, tc.quiet, err == nil, "%s: before WELCOME", name)
			if !tc.quiet {
				greet(wire.Signal{Code: wire.Welcome, SN: tc.answer, TS: ourToken(c)}, tc.then)
				s, err = open()
			}
			require.NoError(t, err)
			require.Equal(t, tc.ours, s.ID(), name)
			message := (&streams.Header{ID: 3 - tc.ours, Kind: streams.Data, Opens: true, End: true}).Append(nil)
			w.net.Inject(server, client, packetOf(conv, segment(wire.CmdStream, 0, 0, 0, 0, string(message)+"x")))
			r := acceptStream(t, c)
			require.Equal(t, 3-tc.ours, r.ID(), name)
			receive(t, r, []byte("x"))
			time.AfterFunc(time.Second, func() { _ = c.Abort(0, "") })
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed, name)
		})
	}
}

func openStream(t *testing.T, c *Conn, options *StreamOptions) *Stream {
	t.Helper()
	s, err := c.OpenStream(context.Background(), options)
	require.NoError(t, err)
	return s
}

// ignoreLimit makes c open streams whatever its peer tells, as an old peer would.
func ignoreLimit(c *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*c.session.Inside().Capabilities() &= 1<<session.CapLimitShift - 1
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
		for m := 1; m > 0; n += m {
			m, _ = s.TryWrite(data[n:])
		}
		require.Same(t, ErrWouldBlock, s.WriteMessage(nil, &MessageOptions{NoWait: true}))
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
		require.Same(t, ErrWouldBlock, s.WriteMessage(nil, &MessageOptions{NoWait: true}))
		require.NoError(t, s.Reset(5))
		require.ErrorIs(t, <-written, net.ErrClosed)
		_, err = s.TryWrite(nil)
		require.ErrorIs(t, err, net.ErrClosed)
		require.NotEqual(t, net.ErrClosed, err, "it is an OpError")
	})
}

// Messages that were taken arrive whole, and those that were refused do not: Done
// is called for the former alone, and late ones make room for new ones.
func TestWriteMessageNoWait(t *testing.T) {
	for _, ofStream := range []bool{true, false} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &Config{MessageMode: true, StreamWriteBuffer: 64 << 10, WriteBuffer: 64 << 10, SendWindow: 8}
			a, b, _ := w.pair(config, config)
			s, r := streamPair(t, a, b, nil)
			send, read := s.WriteMessage, r.ReadMessage
			if !ofStream {
				send, read = a.WriteMessage, b.ReadMessage
			}
			w.settle()
			w.deaf()
			results := make(chan error, 1000)
			var taken, refused int
			fill := func(lifetime time.Duration) (n int) {
				for {
					o := &MessageOptions{NoWait: true, Lifetime: lifetime, Done: func(err error) { results <- err }}
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
		writeAll(t, a, []byte{1})
		time.Sleep(time.Second)
		s, err := a.TryOpenStream(nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.ID())
		b := take(t, g)[0].Conn
		r, err := b.TryOpenStream(&StreamOptions{Priority: 3})
		require.NoError(t, err)
		require.Equal(t, 3, r.Options().Priority)
		require.NoError(t, r.WriteMessage([]byte("here"), nil))
		require.NoError(t, r.CloseWrite())
		got, err := io.ReadAll(acceptStream(t, a))
		require.NoError(t, err)
		require.Equal(t, "here", string(got))
		require.NoError(t, a.Abort(0, ""))
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
		first := admission.First{Initial: admission.Initial{Hello: wire.Signal{Code: wire.Hello, SN: 0, TS: 7}}}
		accepted := func() *Conn {
			c := newConn(e, first.Key, remote, false)
			c.session.Accept(&first, &session.InPacket{}, true)
			return c
		}
		_, err := accepted().TryOpenStream(nil)
		require.ErrorIs(t, err, errKindUnknown, "nothing says that the peer takes streams")
		first.Info = e.shared.InfoSignal()
		c := accepted()
		s, err := c.TryOpenStream(nil)
		require.NoError(t, err)
		require.NoError(t, s.WriteMessage([]byte("state"), &MessageOptions{NoWait: true}))
		first.Info.TS &^= session.CapStreams
		_, err = accepted().TryOpenStream(nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}
