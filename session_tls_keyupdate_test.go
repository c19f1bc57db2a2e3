package kcp

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Both directions go on across many key updates, with loss and reordering, while
// packets of earlier phases come again, and come back to their senders.
func TestTLSKeyUpdate(t *testing.T) {
	for seed := range fewer(6) {
		inWorld(t, seed, lossy, func(w *world) {
			a, b, l := w.pair(secured(Config{}), secured(Config{FEC: FEC{Data: 4, Parity: 1}}))
			random := rand.New(rand.NewPCG(seed, 6))
			var mu sync.Mutex // guards random and kept
			var kept []keptPacket
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				kept = append(kept, keptPacket{from, to, bytes.Clone(p)})
				old := kept[random.IntN(len(kept))]
				w.net.Inject(old.from, old.to, bytes.Clone(old.data))
				w.net.Inject(old.to, old.from, bytes.Clone(old.data))
				return true
			})
			for _, c := range []*Conn{a, b} {
				c.tls.app.Keys.SetUpdateAfter(10)
			}
			bothWays(t, a, b, content(seed, 100_000), content(seed+9, 100_000))
			sendOnce(t, a, b)
			for _, c := range []*Conn{a, b} {
				sent, received := c.tls.app.Keys.Generations()
				require.Greater(t, sent, uint32(5))
				require.Greater(t, received, uint32(5))
				require.Zero(t, c.Stats().Dropped.Total())
				require.NotZero(t, c.ep.Stats().DropReplay)
				require.NotZero(t, c.ep.Stats().DropCipher)
			}
			w.net.SetFilter(nil)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			require.Zero(t, l.Stats().Sessions)
		})
	}
}

// A session whose peer changes its keys again before this end has followed ends,
// with an error that says so.
func TestTLSKeyUpdateTooFast(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, _ := w.pair(secured(Config{}), secured(Config{}))
		time.Sleep(time.Second)
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from.String() != serverAddr })
		keys := &a.tls.app.Keys
		_, before := b.tls.app.Keys.Generations()
		b.mu.Lock() // so that b does not answer in between
		require.NoError(t, keys.Update())
		require.NoError(t, keys.Update())
		b.mu.Unlock()
		require.NoError(t, a.SendDatagram([]byte("of the generation after the next")))
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := b.Read(make([]byte, 1))
		requireTimeout(t, err) // to b it is forged: it cannot know those keys
		_, after := b.tls.app.Keys.Generations()
		require.Equal(t, before, after)
	})
	inWorld(t, 2, clean, func(w *world) {
		a, b, _ := w.pair(secured(Config{}), secured(Config{}))
		time.Sleep(time.Second)
		keys := &a.tls.app.Keys
		for range 2 { // nothing of b's is sent in between
			require.NoError(t, keys.Update())
			require.NoError(t, a.SendDatagram([]byte("under new keys")))
		}
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrKeyUpdate)
	})
}
