package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
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

// Receipts of what was not delivered say why, and Close says ErrNotDelivered only if
// something is missing that was not given up.
func TestSendMessageThatFails(t *testing.T) {
	brief, givenUp := kcp.MessageOptions{Lifetime: 100 * time.Millisecond}, kcp.ErrMessageAbandoned
	closes := func(_ *world, a, _ *kcp.Conn) error { return a.Close() }
	for _, tc := range []struct {
		name string
		send []kcp.MessageOptions
		end  func(w *world, a, b *kcp.Conn) error
		want []error
		err  error // of end
	}{
		{"close", []kcp.MessageOptions{{MaxRetransmits: -1}, brief, brief}, closes, []error{givenUp, givenUp, givenUp}, nil},
		{"close with a loss", []kcp.MessageOptions{brief, {}, brief}, closes, []error{givenUp, kcp.ErrNotDelivered, givenUp}, kcp.ErrNotDelivered},
		{"abort", []kcp.MessageOptions{{}, {Lifetime: time.Hour}}, func(_ *world, a, _ *kcp.Conn) error { return a.Abort(0, "") },
			[]error{net.ErrClosed, net.ErrClosed}, nil},
		{"peer closes", []kcp.MessageOptions{{}, {Lifetime: time.Hour}}, func(w *world, _, b *kcp.Conn) error {
			w.heal()
			return b.Close()
		}, []error{kcp.ErrPeerClosed, kcp.ErrPeerClosed}, nil},
	} {
		inWorld(t, 6, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MessageMode: true, Linger: time.Second}, nil)
			time.Sleep(time.Second)
			w.cut()
			var mu sync.Mutex
			got := make([][]error, len(tc.send))
			for i, o := range tc.send {
				o.Done = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					got[i] = append(got[i], err)
				}
				require.NoError(t, a.WriteMessage(content(uint64(i), 5000), &o))
			}
			time.Sleep(time.Second)
			require.ErrorIs(t, tc.end(w, a, b), tc.err, tc.name)
			time.Sleep(2 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			for i, want := range tc.want {
				require.True(t, len(got[i]) == 1 && errors.Is(got[i][0], want), "%s: message %d: %v", tc.name, i, got[i])
			}
		})
	}
}

// What SendMessage refuses, and that it needs message mode.
func TestSendMessageErrors(t *testing.T) {
	inWorld(t, 5, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true}, nil)
		never := func(error) { t.Error("a receipt for what was refused") }
		s := openStream(t, a, nil)
		for _, tc := range []struct {
			options kcp.MessageOptions
			want    kcp.OptionError
		}{
			{kcp.MessageOptions{Lifetime: -1}, kcp.OptionError{Option: "MessageOptions.Lifetime", Value: time.Duration(-1), Reason: "must be in [0s, 1193h2m47.295s]"}},
			{kcp.MessageOptions{Lifetime: longestLifetime + 1}, kcp.OptionError{Option: "MessageOptions.Lifetime", Value: longestLifetime + 1, Reason: "must be in [0s, 1193h2m47.295s]"}},
			{kcp.MessageOptions{MaxRetransmits: 65535}, kcp.OptionError{Option: "MessageOptions.MaxRetransmits", Value: 65535, Reason: "must be at most 65534"}},
		} {
			tc.options.Done = never
			for _, send := range []func([]byte, *kcp.MessageOptions) error{a.WriteMessage, s.WriteMessage} {
				requireOption(t, tc.want, send(nil, &tc.options))
			}
		}
		n := a.MaxMessageSize()
		err := a.WriteMessage(make([]byte, n+1), &kcp.MessageOptions{Done: never})
		require.ErrorIs(t, err, kcp.ErrMessageTooLarge)
		require.ErrorContains(t, err, fmt.Sprintf("kcp: message of %d bytes is larger than %d, the most that 127 segments take", n+1, n))
		require.ErrorIs(t, b.WriteMessage(nil, &kcp.MessageOptions{Done: never}), session.ErrNotMessageMode)
		require.ErrorIs(t, b.WriteMessage(nil, nil), session.ErrNotMessageMode)
		require.NoError(t, a.WriteMessage([]byte("x"), nil))
		require.NoError(t, a.WriteMessage(nil, &kcp.MessageOptions{}))
		receive(t, b, []byte("x"))
		n, err = b.ReadMessage(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Close())
		require.ErrorIs(t, a.WriteMessage(nil, &kcp.MessageOptions{Done: never}), net.ErrClosed)
		require.NoError(t, b.Close())
	})
}

// longestLifetime is the longest lifetime of a message.
const longestLifetime = (1<<32 - 1) * time.Millisecond

// Parity names no session, so that of an address with two sessions is not used:
// recovery would make packets of it that were never sent. Once one of the two
// has ended, the other has the benefit again.
func TestFECOfTwoSessions(t *testing.T) {
	t.Parallel()
	long(t)
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.05, Reorder: 0.1}
	inWorld(t, 6, link, func(t *testing.T, w *world) {
		config := kcp.LowLatency()
		config.FEC = kcp.FEC{Data: 9, Parity: 4}
		a1, b1, l := w.pair(&config, &config)
		a2 := w.dial(a1.Endpoint())
		go func() { _, _ = a2.Write([]byte{42}) }()
		b2 := accepted(t, l)
		receive(t, b2, []byte{42})
		time.Sleep(time.Second) // what came before the second session is dealt with
		before := [2]stats.FEC{b1.Stats().FEC, b2.Stats().FEC}
		up := [2][]byte{content(7, 1<<20), content(8, 1<<20)}
		send(t, a1, up[0])
		send(t, a2, up[1])
		receive(t, b1, up[0])
		receive(t, b2, up[1])
		for i, b := range []*kcp.Conn{b1, b2} {
			s := b.Stats()
			require.Zero(t, s.Dropped.Total(), "%+v", s.Dropped)
			require.Equal(t, before[i].Recovered, s.FEC.Recovered)
		}
		go func() { _ = a2.Close() }()
		require.NoError(t, b2.Close())
		time.Sleep(10 * time.Second) // until both have drained
		require.Equal(t, 1, l.Endpoint().Stats().Sessions)
		send(t, a1, up[1])
		receive(t, b1, up[1])
		require.Greater(t, b1.Stats().FEC.Recovered, before[0].Recovered+10)
	})
}

// ReceiveDatagram ends with its context, the read deadline and the session; its
// queue is bounded and keeps the newest.
func TestDatagramLimits(t *testing.T) {
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := b.ReceiveDatagram(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = b.ReceiveDatagram(context.Background())
		requireTimeout(t, err)
		require.NoError(t, b.SetReadDeadline(time.Time{}))

		const n = 3 * streams.MostDatagrams
		for i := range n {
			require.NoError(t, a.SendDatagram([]byte{byte(i >> 8), byte(i)}))
		}
		time.Sleep(time.Second)
		s := b.Stats().Datagrams
		require.Equal(t, uint64(n), s.Received)
		require.Equal(t, uint64(n-streams.MostDatagrams), s.Dropped)
		for i := n - streams.MostDatagrams; i < n; i++ {
			got, err := b.ReceiveDatagram(context.Background())
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i >> 8), byte(i)}, got)
		}

		errs := make(chan error)
		go func() {
			_, err := b.ReceiveDatagram(context.Background())
			errs <- err
		}()
		synctest.Wait()
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-errs, net.ErrClosed)
		require.ErrorIs(t, b.SendDatagram(nil), net.ErrClosed)
	})
}

// The errors of Flush, and that several calls go on by themselves.
func TestFlushErrors(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w *world, a, b *kcp.Conn)
		want error
	}{
		"closed":      {func(_ *world, a, _ *kcp.Conn) { _ = a.Close() }, net.ErrClosed},
		"abort":       {func(_ *world, a, _ *kcp.Conn) { _ = a.Abort(0, "") }, net.ErrClosed},
		"endpoint":    {func(_ *world, a, _ *kcp.Conn) { _ = a.Endpoint().Close() }, net.ErrClosed},
		"peer aborts": {func(_ *world, _, b *kcp.Conn) { _ = b.Abort(0, "") }, kcp.ErrReset},
		"peer closes": {func(_ *world, _, b *kcp.Conn) { _ = b.Close() }, kcp.ErrPeerClosed},
		"peer dies":   {func(w *world, _, _ *kcp.Conn) { w.deaf() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&kcp.Config{PeerTimeout: 3 * time.Second, Linger: -1}, &kcp.Config{ReceiveWindow: 128, Linger: -1})
				require.NoError(t, a.Flush(context.Background()))
				w.say(a, string(make([]byte, 1<<20))) // more than b takes without reading
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				require.ErrorIs(t, a.Flush(ctx), context.DeadlineExceeded)
				errs := make(chan error, 2)
				for range 2 {
					go func() { errs <- a.Flush(context.Background()) }()
				}
				time.Sleep(time.Second)
				require.Empty(t, errs)
				c.end(w, a, b)
				for range 2 {
					err := <-errs
					var oe *net.OpError
					require.ErrorAs(t, err, &oe)
					if c.want != nil {
						require.ErrorIs(t, err, c.want)
					} else {
						isLost(t, err)
					}
				}
				require.Error(t, a.Flush(context.Background()), "afterwards")
				require.LessOrEqual(t, a.Stats().BytesAcked, b.Stats().BytesReceived, "what was dropped was not delivered")
			})
		})
	}
}

// Flush does not return before what was written is delivered because streams have
// overtaken it, nor does it wait for messages that were given up. A session that ends
// after all was delivered has flushed.
func TestFlushBesideOthers(t *testing.T) {
	inWorld(t, 3, lossy, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{SendWindow: 8}, nil)
		s, r := streamPair(t, a, b, &kcp.StreamOptions{Priority: 1})
		data, up := content(1, 50000), content(2, 200000)
		w.say(a, string(data))
		send(t, s, up)
		go receive(t, r, up)
		require.NoError(t, a.Flush(context.Background()))
		begin := time.Now()
		receive(t, b, data)
		require.Zero(t, time.Since(begin), "it had arrived")
		_, _ = a.Abort(0, ""), b.Abort(0, "")
	})
	inWorld(t, 4, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true, SendWindow: 4}, nil)
		w.cut()
		for range 20 {
			require.NoError(t, a.WriteMessage(make([]byte, 2000), &kcp.MessageOptions{Lifetime: 100 * time.Millisecond}))
		}
		w.after(time.Second, w.heal)
		start := time.Now()
		require.NoError(t, a.Flush(context.Background()))
		require.Less(t, time.Since(start), 10*time.Second)
		require.NoError(t, b.Close())
		<-a.Done()
		require.NoError(t, a.Flush(context.Background()))
	})
}
