package kcp

import (
	"bytes"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// lostIdle returns how many of the idle sessions with these seeds are lost within
// a minute behind a NAT whose bindings last for 3.4 s.
func lostIdle(t *testing.T, seeds uint64, cfg Config, link netsim.LinkConfig) (lost int) {
	for seed := range seeds {
		inWorld(t, seed, link, func(w *world) {
			cfg.KeepAlive, cfg.PeerTimeout = 3*time.Second, 9*time.Second
			l := w.listen(&cfg)
			e, pc := w.endpoint("10.0.0.2:5000", &cfg)
			a := w.dial(e)
			b := accepted(t, l)
			bothWays(t, a, b, []byte("here"), []byte("here"))
			for i := range 17 {
				time.Sleep(3400 * time.Millisecond)
				require.NoError(t, pc.Rebind(net.JoinHostPort("10.0.0.2", strconv.Itoa(6000+i))))
			}
			for _, c := range []*Conn{a, b} {
				if err := c.Err(); err != nil {
					t.Logf("seed %d: %v", seed, err)
					lost++
					return
				}
			}
		})
	}
	return lost
}

// An idle session outlives bindings of a NAT that are little older than the
// exchange that validates the path, with many packets lost.
func TestIdleSessionBehindShortBindings(t *testing.T) {
	simulated(t)
	link := netsim.LinkConfig{Delay: 25 * time.Millisecond, Jitter: 10 * time.Millisecond}
	seeds := fewer(100)
	for name, cfg := range map[string]Config{"AEAD": {Cipher: testAEAD(t)}, "TLS": {TLS: testTLS()}} {
		t.Run(name, func(t *testing.T) {
			for loss, most := range map[float64]int{0.1: 0, 0.3: int(seeds) / 50} {
				link.Loss = loss
				lost := lostIdle(t, seeds, cfg, link)
				t.Logf("%.0f %%: %d of %d lost", 100*loss, lost, seeds)
				require.LessOrEqual(t, lost, most)
			}
		})
	}
}

// What the peer sends from an address that cannot be validated shows that the
// peer is alive. A copy of it shows nothing.
func TestPacketsFromNewAddressesAreSignsOfLife(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 25 * time.Millisecond}, func(w *world) {
		cfg := Config{Cipher: testAEAD(t), KeepAlive: 3 * time.Second, PeerTimeout: 9 * time.Second}
		l := w.listen(&cfg)
		cfg.PeerTimeout = time.Hour
		e, pc := w.endpoint("10.0.0.2:5000", &cfg)
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("here"), []byte("here"))

		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.net.SetLink("10.0.0.1", "10.0.0.3", netsim.LinkConfig{Down: true})
		type recorded struct {
			to netip.AddrPort
			p  []byte
		}
		var last atomic.Pointer[recorded]
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if from.Addr() == netip.MustParseAddr("10.0.0.3") {
				last.Store(&recorded{to, bytes.Clone(p)})
			}
			return true
		})
		time.Sleep(time.Minute)
		require.NoError(t, b.Err(), "the peer sends, and its challenges are lost")
		require.Zero(t, b.Stats().Moves)

		w.net.SetFilter(nil)
		w.net.Cut("10.0.0.3", "")
		for i := range 20 {
			time.Sleep(time.Second)
			w.net.Inject(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.4"), uint16(7000+i)), last.Load().to, last.Load().p)
		}
		var lost *PeerLostError
		require.ErrorAs(t, b.Err(), &lost, "only copies have arrived")
	})
}

// If the answer to a challenge is lost, the peer repeats its PING, and is
// challenged anew, at once and not with its next keep-alive.
func TestChallengeDoesNotAnswerPing(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 25 * time.Millisecond}, func(w *world) {
		cfg := Config{Cipher: testAEAD(t), KeepAlive: 3 * time.Second}
		a, b, _, pc := w.movable(&cfg)
		time.Sleep(cfg.KeepAlive - time.Second)
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		var packets atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			if from.Addr() == netip.MustParseAddr("10.0.0.3") {
				n := packets.Add(1)
				return n != 2 && n != 4
			}
			return true
		})
		time.Sleep(time.Second + 2*time.Second)
		require.Equal(t, 1, b.Stats().Moves)
		require.LessOrEqual(t, packets.Load(), int32(8), "no more once it is answered")
		require.NoError(t, a.Err())
	})
}
