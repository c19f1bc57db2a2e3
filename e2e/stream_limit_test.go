package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bothEnds are both ends of a session and of its only stream, which leaves no room.
type bothEnds struct {
	a, b   *kcp.Conn
	s, r   *kcp.Stream
	cancel func()
}

func endByReading(e *bothEnds) {
	_, _ = e.s.CloseWrite(), e.r.CloseWrite()
	time.Sleep(time.Second)
	_, _ = e.r.Read(make([]byte, 1))
}

// endByData is endByReading, of which the last bytes are enough.
func endByData(e *bothEnds) {
	_, _ = e.s.Write([]byte("x"))
	endByReading(e)
}

func endByError(e *bothEnds) {
	_, _ = e.r.CloseWrite(), e.s.Reset(1)
	time.Sleep(time.Second)
	_, _ = e.r.Read(make([]byte, 1))
}

func endByCloseWrite(e *bothEnds) {
	_ = e.s.Reset(1)
	time.Sleep(time.Second)
	_, _ = e.r.Read(make([]byte, 1))
	_ = e.r.CloseWrite()
}

// OpenStream waits while the peer has as many streams as it takes. Room, the end of its
// context, and the end of the session in each way end that.
func TestOpenStreamWaits(t *testing.T) {
	for name, v := range map[string]struct {
		do      func(e *bothEnds)
		want    error // nil: a stream
		timeout time.Duration
		within  time.Duration
	}{
		"room":             {do: func(e *bothEnds) { _, _ = e.s.Close(), e.r.Close() }, within: time.Second / 10},
		"read to the end":  {do: endByReading, within: 11 * time.Millisecond},
		"all is read":      {do: endByData, within: 11 * time.Millisecond},
		"an error is read": {do: endByError, within: 11 * time.Millisecond},
		"CloseWrite fails": {do: endByCloseWrite, within: 11 * time.Millisecond},
		"deadline":         {do: func(*bothEnds) {}, want: context.DeadlineExceeded, timeout: 3 * time.Second, within: 4 * time.Second},
		"context":          {do: func(e *bothEnds) { e.cancel() }, want: context.Canceled, within: time.Millisecond},
		"Close":            {do: func(e *bothEnds) { _ = e.a.Close() }, want: net.ErrClosed, within: time.Second / 10},
		"Abort":            {do: func(e *bothEnds) { _ = e.a.Abort(0, "") }, want: net.ErrClosed, within: time.Second / 10},
		"the peer closes":  {do: func(e *bothEnds) { _ = e.b.Close() }, want: kcp.ErrPeerClosed, within: time.Second / 10},
		"the peer aborts":  {do: func(e *bothEnds) { _ = e.b.Abort(0, "") }, want: kcp.ErrReset, within: time.Second / 10},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, &kcp.Config{Limits: kcp.Limits{MaxStreams: 1}})
				e := &bothEnds{a: a, b: b}
				e.s, e.r = streamPair(t, a, b, nil)
				_, err := a.TryOpenStream(nil)
				require.ErrorIs(t, err, session.ErrNoStreamYet)
				ctx, cancel := context.WithCancel(t.Context())
				if v.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, v.timeout)
				}
				defer cancel()
				e.cancel = cancel
				var s *kcp.Stream
				returned := make(chan error, 1)
				go func() {
					var err error
					s, err = a.OpenStream(ctx, nil)
					returned <- err
				}()
				time.Sleep(2 * time.Second)
				require.Empty(t, returned)
				v.do(e)
				begin := time.Now()
				err = <-returned
				require.LessOrEqual(t, time.Since(begin), v.within)
				require.ErrorIs(t, err, v.want)
				if v.want == nil {
					send(t, s, []byte("more"))
					receive(t, acceptStream(t, b), []byte("more"))
					require.Zero(t, b.Endpoint().Totals().Streams.Refused)
				} else {
					require.Nil(t, s)
					_, err = a.OpenStream(ctx, nil)
					require.Error(t, err, "also where it need not wait")
				}
				_, _ = a.Abort(0, ""), b.Abort(0, "")
			})
		})
	}
}

// Lifetimes run while the peer reads nothing, and there is no credit: calls and groups
// have room then, and Done is called.
func TestStreamLifetimeWithoutCredit(t *testing.T) {
	const lifetime = 100 * time.Millisecond
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(nil)
		s := openStream(t, b, &kcp.StreamOptions{MaxLifetime: lifetime})
		var abandoned []time.Duration // ages; at most one at a time calls Done
		for range 100 {
			begin := time.Now()
			require.NoError(t, s.WriteMessage(content(1, 10000), &kcp.MessageOptions{Done: func(err error) {
				if err != nil { // nil: there was credit
					assert.Equal(t, kcp.ErrMessageAbandoned, err)
					abandoned = append(abandoned, time.Since(begin))
				}
			}}))
			require.LessOrEqual(t, time.Since(begin), lifetime+session.PurgeInterval)
		}
		for s.WriteMessage(content(1, 10000), &kcp.MessageOptions{NoWait: true}) == nil {
		}
		begin := time.Now()
		for len(take(t, g)) == 0 {
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(begin), lifetime+session.PurgeInterval)
		require.NoError(t, s.WriteMessage(content(1, 10000), &kcp.MessageOptions{NoWait: true}))
		time.Sleep(time.Second)
		require.Zero(t, s.Stats().WriteQueued)
		require.Greater(t, len(abandoned), 50)
		for _, age := range abandoned {
			require.InDelta(t, lifetime+session.PurgeInterval/2, age, float64(session.PurgeInterval/2+time.Millisecond))
		}

		last := acceptStream(t, a) // which has all that it had credit for
		time.Sleep(time.Second)
		begin = time.Now()
		require.NoError(t, s.WriteMessage([]byte("last"), nil))
		require.NoError(t, s.CloseWrite())
		buf := make([]byte, 10000)
		for n, err := 0, error(nil); err == nil; {
			if n, err = last.ReadMessage(buf); err == nil && n == 4 {
				require.Equal(t, "last", string(buf[:n]))
				require.Less(t, time.Since(begin), lifetime)
				return
			}
		}
		require.Fail(t, "the last message has not arrived")
	})
}

// Messages with a lifetime: through an outage nothing is delivered that was older
// when it left, receipts say so, and what is fresh arrives soon after.
func TestStreamLifetime(t *testing.T) {
	const rtt, lifetime, messages = 80 * time.Millisecond, 100 * time.Millisecond, 360
	for seed := range fewer(8) {
		inWorld(t, seed, netsim.LinkConfig{Delay: rtt / 2, Loss: 0.02 * float64(seed%3)}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s, r := streamPair(t, a, b, &kcp.StreamOptions{Unordered: seed%2 == 0, MaxLifetime: lifetime})
			time.Sleep(time.Second)
			begin := time.Now()
			done := make(chan [2]int, messages) // the message, and 1 if it was delivered
			go func() {
				for i := range messages {
					p := append(binary.LittleEndian.AppendUint64(nil, uint64(i)), make([]byte, 92)...)
					_ = s.WriteMessage(p, &kcp.MessageOptions{Done: func(err error) {
						delivered := 1
						if err != nil {
							assert.ErrorIs(t, err, kcp.ErrMessageAbandoned)
							delivered = 0
						}
						done <- [2]int{i, delivered}
					}})
					time.Sleep(time.Second / 60)
				}
				_ = s.CloseWrite()
			}()
			time.AfterFunc(time.Second, func() { w.net.Cut("10.0.0.1", "10.0.0.2") })
			healed := begin.Add(4 * time.Second)
			time.AfterFunc(4*time.Second, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
			got := make(map[int]bool)
			var first time.Duration
			for buf := make([]byte, 200); ; {
				if _, err := r.ReadMessage(buf); err != nil {
					require.Equal(t, io.EOF, err)
					break
				}
				i := int(binary.LittleEndian.Uint64(buf))
				if got[i] = true; seed%2 == 0 { // else it may wait for those before it to be given up
					age := time.Since(begin) - time.Duration(i)*(time.Second/60)
					require.LessOrEqual(t, age, lifetime+rtt/2+time.Millisecond, "message %d", i)
				}
				if time.Now().After(healed) && first == 0 {
					first = time.Since(healed)
				}
			}
			require.Greater(t, len(got), messages/3)
			require.LessOrEqual(t, first, rtt*3)
			time.Sleep(10 * time.Second)
			require.Len(t, done, messages)
			for range messages {
				if d := <-done; d[1] == 1 {
					require.True(t, got[d[0]], "the receipt of %d says delivered", d[0])
				}
			}
		})
	}
}

// Messages keep their boundaries and their order, whatever their size, over a bad
// link and in small packets.
func TestStreamMessages(t *testing.T) {
	for _, mtu := range []int{50, 1400} {
		inWorld(t, 3, lossy, func(t *testing.T, w *world) {
			config := &kcp.Config{MTU: mtu, MaxMTU: -1}
			a, b, _ := w.pair(config, config)
			s, r := streamPair(t, a, b, nil)
			sizes := []int{0, 1, 1354, 1355, 1356, 1359, 1360, 0, 0, 70000 * mtu / 1400, 400000 * mtu / 1400, 3}
			go func() {
				for i, size := range sizes {
					if err := s.WriteMessage(bytes.Repeat([]byte{byte(i + 1)}, size), nil); err != nil {
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

// An end that takes no streams opens none either, and both calls say so at once.
func TestEndWithoutStreams(t *testing.T) {
	inWorld(t, 11, clean, func(t *testing.T, w *world) {
		_, b, _ := w.pair(nil, &kcp.Config{Limits: kcp.Limits{MaxStreams: -1}})
		begin := time.Now()
		_, err := b.OpenStream(context.Background(), nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = b.TryOpenStream(nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err = b.AcceptStream(ctx)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "kcp: this end takes no streams: Limits.MaxStreams is negative")
		require.Zero(t, time.Since(begin))
		require.NoError(t, b.Close())
		_, err = b.AcceptStream(ctx)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// requireOption requires that err has want in it.
func requireOption(t *testing.T, want kcp.OptionError, err error) {
	t.Helper()
	var got *kcp.OptionError
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
			require.ErrorIs(t, err, kcp.ErrPeerClosed)
			_, err = b.AcceptStream(context.Background())
			require.ErrorIs(t, err, kcp.ErrPeerClosed)
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
		require.Same(t, kcp.ErrWouldBlock, err)
		require.LessOrEqual(t, n, 3*session.BulkAhead) // a window of them has left
		require.Greater(t, n, session.BulkAhead/2)
		require.InDelta(t, n, a.Stats().WriteBufferUsed, float64(n)/10)
	})
}

// withStreams returns the two ends of a session, of which the second is in a group
// that has the events of streams.
func (w *world) withStreams(config *kcp.Config) (a, b *kcp.Conn, g *kcp.Group) {
	w.t.Helper()
	a, b, _ = w.pair(config, config)
	g = kcp.NewGroup()
	g.ReportStreams()
	require.NoError(w.t, g.Add(b))
	return a, b, g
}
