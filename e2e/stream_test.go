package e2e

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Close says ErrNotDelivered if the peer lacks something of what was written, and
// not if all that it lacks was given up, even if the peer has not learned of that.
func TestCloseAfterGivingUp(t *testing.T) {
	send := func(s *kcp.Stream, size int, o kcp.MessageOptions, done chan error) {
		o.Done = func(err error) { done <- err }
		_ = s.SendMessage(make([]byte, size), &o)
	}
	abandoned := kcp.MessageOptions{MaxRetransmits: -1, Lifetime: 300 * time.Millisecond}
	for _, tc := range []struct {
		name  string
		write func(s, other *kcp.Stream, done chan error)
		done  []error // receipts, in the order in which they come
		want  error   // of Close
	}{
		{"reset", func(s, _ *kcp.Stream, done chan error) {
			send(s, 5000, kcp.MessageOptions{}, done)
			_ = s.Reset(7)
		}, []error{&kcp.StreamError{Code: 7}}, nil},
		{"reset, and bytes", func(s, _ *kcp.Stream, _ chan error) {
			_, _ = s.Write(make([]byte, 5000))
			_ = s.Reset(7)
		}, nil, nil},
		{"bytes", func(s, _ *kcp.Stream, _ chan error) {
			_, _ = s.Write(make([]byte, 5000))
		}, nil, kcp.ErrNotDelivered},
		{"retransmissions used up", func(s, _ *kcp.Stream, done chan error) {
			send(s, 5000, kcp.MessageOptions{MaxRetransmits: -1}, done)
		}, []error{kcp.ErrMessageAbandoned}, nil},
		{"lifetime over", func(s, _ *kcp.Stream, done chan error) {
			send(s, 100, abandoned, done)
			send(s, 200000, abandoned, done) // more than the credit
			send(s, 100, abandoned, done)
		}, []error{kcp.ErrMessageAbandoned, kcp.ErrMessageAbandoned, kcp.ErrMessageAbandoned}, nil},
		{"many lifetimes over", func(s, other *kcp.Stream, done chan error) {
			for range 4 {
				send(s, 2000, kcp.MessageOptions{Lifetime: 2 * time.Second}, done)
				send(other, 100, kcp.MessageOptions{Lifetime: 2 * time.Second}, done)
			}
		}, slices.Repeat([]error{kcp.ErrMessageAbandoned}, 8), nil},
		{"lifetime not over", func(s, _ *kcp.Stream, done chan error) {
			send(s, 100, abandoned, done)
			send(s, 5000, kcp.MessageOptions{Lifetime: time.Minute}, done)
		}, []error{kcp.ErrMessageAbandoned, kcp.ErrNotDelivered}, kcp.ErrNotDelivered},
		{"another stream", func(s, other *kcp.Stream, done chan error) {
			send(s, 100, abandoned, done)
			send(other, 10, kcp.MessageOptions{}, done)
		}, []error{kcp.ErrMessageAbandoned, kcp.ErrNotDelivered}, kcp.ErrNotDelivered},
		{"beyond the credit", func(s, other *kcp.Stream, done chan error) {
			send(other, 200000, kcp.MessageOptions{}, done)
			send(s, 100, abandoned, done)
		}, []error{kcp.ErrMessageAbandoned, kcp.ErrNotDelivered}, kcp.ErrNotDelivered},
	} {
		for _, heals := range []bool{true, false} {
			inWorld(t, 20, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&kcp.Config{Linger: 3 * time.Second}, nil)
				s, _ := streamPair(t, a, b, nil)
				other, _ := streamPair(t, a, b, nil)
				time.Sleep(time.Second)
				w.net.Cut("10.0.0.1", "10.0.0.2")
				done := make(chan error, 10)
				tc.write(s, other, done)
				time.Sleep(time.Second)
				require.ErrorIs(t, a.Close(), tc.want, "%s, heals: %v", tc.name, heals)
				if heals {
					w.net.Heal("10.0.0.1", "10.0.0.2")
				}
				time.Sleep(3 * time.Minute)
				var lost *kcp.PeerLostError
				switch ended := a.Err(); {
				case tc.want != nil:
					require.ErrorIs(t, ended, tc.want, tc.name)
				case heals:
					require.Equal(t, net.ErrClosed, ended, "%s: it goes on in the background", tc.name)
				default:
					require.ErrorAs(t, ended, &lost, tc.name)
				}
				close(done)
				var got []error
				for err := range done {
					got = append(got, err)
				}
				require.Equal(t, len(tc.done), len(got), "%s, heals: %v: %v", tc.name, heals, got)
				for i, want := range tc.done {
					require.Equal(t, want.Error(), got[i].Error(), "%s, heals: %v", tc.name, heals)
				}
			})
		}
	}
}

// Close after both ends have used CloseWrite ends the session at the peer, too, if
// there were streams, even if the first CLOSE is lost: FIN ends no streams.
func TestCloseAfterBothFINs(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s, r := streamPair(t, a, b, nil)
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
		require.NoError(t, a.CloseWrite())
		require.NoError(t, b.CloseWrite())
		time.Sleep(time.Second)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		time.AfterFunc(100*time.Millisecond, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
		begin := time.Now()
		require.NoError(t, a.Close())
		_, err := b.AcceptStream(context.Background())
		require.ErrorIs(t, err, kcp.ErrPeerClosed)
		require.Less(t, time.Since(begin), time.Second)
		require.NoError(t, b.Close())
	})
}

// The end of a stream says whose end it was, and Close of the peer is not what Reset
// with code 0 is.
func TestStreamErrorTexts(t *testing.T) {
	for _, tc := range []struct {
		end  func(s *kcp.Stream) error
		text string
	}{
		{(*kcp.Stream).Close, "kcp: stream closed by the peer"},
		{func(s *kcp.Stream) error { return s.Reset(0) }, "kcp: stream reset by the peer with code 0"},
		{func(s *kcp.Stream) error { return s.Reset(7) }, "kcp: stream reset by the peer with code 7"},
		{func(s *kcp.Stream) error { return s.Reset(1<<62 | 7) }, "kcp: stream reset by the peer with code 7"},
	} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s, err := a.OpenStream(context.Background(), nil)
			require.NoError(t, err)
			_, err = s.Write([]byte("x"))
			require.NoError(t, err)
			r, err := b.AcceptStream(context.Background())
			require.NoError(t, err)
			require.NoError(t, tc.end(r))
			time.Sleep(time.Second)
			_, err = s.Write([]byte("late"))
			var reset *kcp.StreamError
			require.ErrorAs(t, err, &reset)
			require.Equal(t, tc.text, reset.Error())
		})
	}
	for err, text := range map[kcp.StreamError]string{
		{}:                                      "kcp: stream reset locally with code 0",
		{Code: kcp.StreamRefused, Remote: true}: "kcp: stream refused by the peer: as many are open as MaxStreams allows",
		{Code: kcp.StreamViolation, Remote: true}: "kcp: stream reset by the peer: protocol violation",
		{Code: kcp.StreamTooLarge, Remote: false}: "kcp: stream reset locally: message larger than the receive buffer",
	} {
		require.Equal(t, text, err.Error())
	}
}

// modeWriter writes on a session, and changes its mode from time to time.
type modeWriter struct {
	c      *kcp.Conn
	random *rand.Rand
	mode   bool
	wrote  []modeItem
}

// modeItem is a message, or a run of bytes without boundaries.
type modeItem struct {
	message bool
	data    []byte
}

// step changes the mode, or writes something.
func (m *modeWriter) step(t *testing.T) {
	if m.random.IntN(4) == 0 {
		m.mode = !m.mode
		require.NoError(t, m.c.SetMessageMode(m.mode))
	}
	size := 1 + m.random.IntN(3000)
	if m.mode && m.random.IntN(4) == 0 {
		size = 0
	}
	p := content(m.random.Uint64(), size)
	last := len(m.wrote) - 1
	switch {
	case m.mode:
		require.NoError(t, m.c.WriteMessage(p))
		m.wrote = append(m.wrote, modeItem{true, p})
		return
	case last >= 0 && !m.wrote[last].message:
		m.wrote[last].data = append(m.wrote[last].data, p...)
	default:
		m.wrote = append(m.wrote, modeItem{false, p})
	}
	require.ErrorIs(t, m.c.WriteMessage(p), kcp.ErrNotMessageMode)
	_, err := m.c.Write(p)
	require.NoError(t, err)
}

// check holds what ReadMessage has returned against what was written: messages as
// they are, and runs of bytes in any parts.
func (m *modeWriter) check(t *testing.T, read [][]byte) {
	for i, item := range m.wrote {
		for rest := item.data; ; {
			require.NotEmpty(t, read, "before item %d", i)
			p := read[0]
			read = read[1:]
			if item.message {
				require.True(t, bytes.Equal(rest, p), "message %d: %d bytes, want %d", i, len(p), len(rest))
				break
			}
			require.True(t, bytes.HasPrefix(rest, p), "run %d", i)
			if rest = rest[len(p):]; len(rest) == 0 {
				break
			}
		}
	}
	require.Empty(t, read)
}

// readMessages reads c to its end.
func readMessages(t *testing.T, c *kcp.Conn) (read [][]byte) {
	buf := make([]byte, 1<<16)
	for {
		n, err := c.ReadMessage(buf)
		if err != nil {
			require.Equal(t, io.EOF, err)
			return read
		}
		read = append(read, bytes.Clone(buf[:n]))
	}
}

// The mode of the session changes while streams are open and busy. What the
// session sends keeps exactly the boundaries of its messages, and the streams are
// not concerned.
func TestSetMessageModeBesideStreams(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{SendWindow: 2 + int(seed)*8}, nil)
			random := rand.New(rand.NewPCG(seed, 6))
			m := &modeWriter{c: a, random: random}
			bytesOf, readsBytes := streamPair(t, a, b, nil)
			messages, readsMessages := streamPair(t, a, b, &kcp.StreamOptions{Priority: 1})
			up := content(seed, 60000)
			var wg sync.WaitGroup
			wg.Go(func() { receive(t, readsBytes, up) })
			wg.Go(func() {
				buf := make([]byte, 10000)
				for i := range 60 {
					n, err := readsMessages.ReadMessage(buf)
					require.NoError(t, err)
					require.True(t, bytes.Equal(up[i:i*100], buf[:n]), "message %d", i)
				}
			})
			var read [][]byte
			wg.Go(func() { read = readMessages(t, b) })
			for i := range 60 {
				_, err := bytesOf.Write(up[i*1000 : (i+1)*1000])
				require.NoError(t, err)
				m.step(t)
				require.NoError(t, messages.WriteMessage(up[i:max(i, i*100)]))
				m.step(t)
				if random.IntN(4) == 0 {
					time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
				}
			}
			require.NoError(t, a.CloseWrite())
			wg.Wait()
			m.check(t, read)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

func openStream(t *testing.T, c *kcp.Conn, options *kcp.StreamOptions) *kcp.Stream {
	t.Helper()
	s, err := c.OpenStream(context.Background(), options)
	require.NoError(t, err)
	return s
}

func acceptStream(t *testing.T, c *kcp.Conn) *kcp.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := c.AcceptStream(ctx)
	require.NoError(t, err)
	return s
}

// streamPair returns the two ends of a stream of the session of a and b.
func streamPair(t *testing.T, a, b *kcp.Conn, options *kcp.StreamOptions) (*kcp.Stream, *kcp.Stream) {
	t.Helper()
	s := openStream(t, a, options)
	return s, acceptStream(t, b)
}

// What is lost on one stream delays no other.
func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	inWorld(t, 4, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s1, r1 := streamPair(t, a, b, nil)
		s2, r2 := streamPair(t, a, b, nil)
		time.Sleep(time.Second)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		_, err := s1.Write([]byte("lost"))
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		w.net.Heal("10.0.0.1", "10.0.0.2")
		begin := time.Now()
		_, err = s2.Write([]byte("next"))
		require.NoError(t, err)
		receive(t, r2, []byte("next"))
		require.Equal(t, 50*time.Millisecond, time.Since(begin))
		receive(t, r1, []byte("lost"))
		require.Greater(t, time.Since(begin), 100*time.Millisecond)
	})
}

// A stream of which both ends have called CloseWrite no longer counts for MaxStreams once
// all of it was read, with io.EOF or without. Until then none can be opened.
func TestCloseWriteAtBothEndsFreesTheStream(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{MaxStreams: 1})
		for i := range 3 {
			s, err := a.OpenStream(t.Context(), nil)
			require.NoError(t, err)
			_, err = s.Write([]byte("x"))
			require.NoError(t, err)
			require.NoError(t, s.CloseWrite())
			r, err := b.AcceptStream(t.Context())
			require.NoError(t, err)
			require.NoError(t, r.CloseWrite())
			time.Sleep(time.Second)
			_, err = a.TryOpenStream(nil)
			require.ErrorIs(t, err, kcp.ErrWouldBlock)
			require.ErrorContains(t, err, "open kcp 10.0.0.2:")
			require.ErrorContains(t, err, "kcp: the peer takes no more streams now")
			got := make([]byte, 1)
			_, err = io.ReadFull(r, got)
			require.NoError(t, err)
			require.Equal(t, "x", string(got))
			if i == 1 {
				_, err = r.Read(got)
				require.Equal(t, io.EOF, err)
			}
		}
		require.Zero(t, b.Endpoint().Totals().Streams.Refused)
	})
}

// Bytes of the session itself that are not read hold up all streams, and AcceptStream,
// once they fill the receive window.
func TestUnreadSessionHoldsUpStreams(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		_, err := a.Write(make([]byte, 3<<20)) // the receive window takes 2048 segments
		require.NoError(t, err)
		time.Sleep(time.Second)
		s, err := a.OpenStream(t.Context(), nil)
		require.NoError(t, err)
		_, err = s.Write([]byte("x"))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = b.AcceptStream(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = io.ReadFull(b, make([]byte, 3<<20))
		require.NoError(t, err)
		_, err = b.AcceptStream(t.Context())
		require.NoError(t, err)
	})
}

// AcceptStream waits for a peer that takes no streams until its context or the session
// ends.
func TestAcceptStreamOfAPeerWithoutStreams(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{MaxStreams: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := a.AcceptStream(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.AfterFunc(time.Minute, func() { _ = b.Abort() })
		_, err = a.AcceptStream(t.Context())
		require.ErrorIs(t, err, kcp.ErrReset)
	})
}
