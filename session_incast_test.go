package kcp

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/simsocket"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// An answer takes as long beside sessions of the same socket that carry little as it
// takes alone.
func TestAnswerBesideAnotherSession(t *testing.T) {
	t.Parallel()
	link := netsim.LinkConfig{Delay: 50 * time.Millisecond, Rate: 12_500_000}
	answer := bytes.Repeat([]byte("x"), 40_000)
	took := func(beside int) (d time.Duration) {
		inWorld(t, 3, link, func(t *testing.T, w *world) {
			pc, err := simsocket.Listen(w.net, "10.0.0.2:5000", 4<<20, time.Microsecond)
			require.NoError(t, err)
			client, err := NewEndpoint(pc, nil)
			require.NoError(t, err)
			defer func() { _, _ = client.Close(), pc.Close() }()
			l := w.listen(nil)
			var all []*Conn
			var tickers sync.WaitGroup
			pair := func() (a, b *Conn) {
				a = w.dial(client)
				_, err := a.Write([]byte("hello"))
				require.NoError(t, err)
				b = accepted(t, l)
				receive(t, b, []byte("hello"))
				all = append(all, a, b)
				return a, b
			}
			a, b := pair()
			for range beside {
				_, other := pair()
				tickers.Go(func() {
					for {
						time.Sleep(50 * time.Millisecond)
						if _, err := other.Write([]byte("tick")); err != nil {
							return
						}
					}
				})
			}
			_, err = b.Write([]byte("hello"))
			require.NoError(t, err)
			receive(t, a, []byte("hello"))
			time.Sleep(3 * time.Second)
			begin := time.Now()
			_, err = b.Write(answer)
			require.NoError(t, err)
			receive(t, a, answer)
			d = time.Since(begin)
			for _, c := range all {
				_ = c.Abort()
			}
			tickers.Wait()
		})
		return d
	}
	alone := took(0)
	require.Less(t, took(1), alone+5*time.Millisecond)
	require.Less(t, took(10), alone+5*time.Millisecond)
}
