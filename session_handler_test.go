package kcp

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A handler gets the datagrams in place of ReceiveDatagram, and may answer them,
// whoever reads the socket and whatever is around the packets.
func TestHandleDatagrams(t *testing.T) {
	for seed, cfg := range []Config{{}, {FEC: FEC{Data: 2, Parity: 1}}, {Cipher: testAEAD(t)}, {MessageMode: true}} {
		for reads := range 2 {
			inWorld(t, uint64(seed), clean, func(w *world) {
				w.leads = reads == 1
				a, b, _ := w.pair(&cfg, &cfg)
				require.NoError(t, a.SendDatagram([]byte("early")))
				time.Sleep(time.Second)
				var mu sync.Mutex
				var got []string
				b.HandleDatagrams(func(p []byte) {
					mu.Lock()
					got = append(got, string(p))
					mu.Unlock()
					for i := range p {
						p[i]++ // the memory may be changed
					}
					if err := b.SendDatagram(p); err != nil {
						t.Error(err)
					}
				})
				if reads == 1 { // a blocked Read reads the socket, and calls the handler
					go func() { _, _ = b.Read(make([]byte, 1)) }()
				}
				for _, s := range []string{"abc", "bcd", ""} {
					require.NoError(t, a.SendDatagram([]byte(s)))
				}
				for _, want := range []string{"bcd", "cde", ""} {
					p, err := a.ReceiveDatagram(context.Background())
					require.NoError(t, err)
					require.Equal(t, want, string(p))
				}
				mu.Lock()
				require.Equal(t, []string{"abc", "bcd", ""}, got)
				mu.Unlock()
				p, err := b.ReceiveDatagram(context.Background())
				require.NoError(t, err)
				require.Equal(t, "early", string(p))
				require.NoError(t, b.SetReadDeadline(time.Now().Add(-1)))
				_, err = b.ReceiveDatagram(context.Background())
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.NoError(t, b.SetReadDeadline(time.Time{}))
				require.Equal(t, DatagramStats{Received: 4, Sent: 3}, b.Stats().Datagrams)

				b.HandleDatagrams(nil)
				b.HandleDatagrams(nil)
				require.NoError(t, a.SendDatagram([]byte("late")))
				p, err = b.ReceiveDatagram(context.Background())
				require.NoError(t, err)
				require.Equal(t, "late", string(p))
			})
		}
	}
}

// A handler may be replaced by itself, and gets nothing after Close. Datagrams
// keep a session from being idle.
func TestHandlerEnds(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, _ := w.pair(nil, &Config{IdleTimeout: 3 * time.Second, Linger: -1})
		var calls atomic.Int32
		b.HandleDatagrams(func([]byte) {
			calls.Add(1)
			b.HandleDatagrams(func([]byte) { calls.Add(10) })
		})
		for range 3 {
			require.NoError(t, a.SendDatagram([]byte("x")))
			time.Sleep(2 * time.Second)
		}
		require.NoError(t, b.Err())
		require.EqualValues(t, 21, calls.Load())
		require.NoError(t, b.Close())
		require.NoError(t, a.SendDatagram([]byte("x")))
		time.Sleep(time.Second)
		require.EqualValues(t, 21, calls.Load())
	})
}

// The handler of a session in a group comes before the group's events.
func TestHandlerInGroup(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, g := w.grouped(nil)
		var calls atomic.Int32
		b.HandleDatagrams(func(p []byte) {
			calls.Add(1)
			_ = b.Abort() // does not wait
		})
		require.NoError(t, a.SendDatagram([]byte("x")))
		require.NoError(t, a.SendDatagram([]byte("y")))
		time.Sleep(time.Second)
		require.EqualValues(t, 1, calls.Load(), "dropped after Abort")
		for _, e := range take(t, g) {
			require.NotEqual(t, EventDatagram, e.Kind)
		}
	})
}

// What arrived in the batch in which the session was closed is dropped.
func TestHandlerOfClosedSession(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		_, b, _ := w.pair(nil, nil)
		b.HandleDatagrams(func([]byte) { t.Error("called after Abort") })
		require.NoError(t, b.Abort())
		b.handleDatagram([]byte("x"))
		require.Equal(t, DatagramStats{Received: 1, Dropped: 1}, b.Stats().Datagrams)
	})
}
