package e2e

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

var elsewhere = netip.MustParseAddr("10.0.0.3")

// lostIdle returns how many of the idle sessions with these seeds are lost within
// a minute behind a NAT whose bindings last for 3.4 s.
func lostIdle(t *testing.T, seeds uint64, cfg kcp.Config, link netsim.LinkConfig) (lost int) {
	cfg.KeepAlive, cfg.PeerTimeout = 3*time.Second, 9*time.Second
	for seed := range seeds {
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			a, b, _, pc := w.movable(&cfg)
			for i := range 17 {
				time.Sleep(3400 * time.Millisecond)
				require.NoError(t, pc.Rebind(fmt.Sprint("10.0.0.2:", 6000+i)))
			}
			if a.Err() != nil || b.Err() != nil {
				t.Logf("seed %d: %v, %v", seed, a.Err(), b.Err())
				lost++
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
	seeds := some(100, 15)
	for name, cfg := range map[string]kcp.Config{"AEAD": {Cipher: testAEAD(t)}, "TLS": {TLS: testTLS()}} {
		for loss, most := range map[float64]int{0.1: 0, 0.3: int(seeds+49) / 50} {
			link.Loss = loss
			lost := lostIdle(t, seeds, cfg, link)
			require.LessOrEqual(t, lost, most, "%s, %.0f %%: of %d", name, 100*loss, seeds)
		}
	}
}

// What the peer sends from an address that cannot be validated shows that the
// peer is alive. A copy of it shows nothing.
func TestPacketsFromNewAddressesAreSignsOfLife(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 25 * time.Millisecond}, func(t *testing.T, w *world) {
		cfg := kcp.Config{Cipher: testAEAD(t), KeepAlive: 3 * time.Second, PeerTimeout: 9 * time.Second}
		l := w.listen(&cfg)
		cfg.PeerTimeout = time.Hour
		e, pc := w.endpoint("10.0.0.2:5000", &cfg)
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("here"), []byte("here"))

		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.net.SetLink("10.0.0.1", "10.0.0.3", netsim.LinkConfig{Down: true})
		var last atomic.Pointer[[]byte]
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from.Addr() == elsewhere {
				p = bytes.Clone(p)
				last.Store(&p)
			}
			return true
		})
		time.Sleep(time.Minute)
		require.NoError(t, b.Err(), "the peer sends, and its challenges are lost")
		require.Zero(t, b.Stats().Moves)

		w.hearing()
		w.net.Cut("10.0.0.3", "")
		for i := range uint16(20) {
			time.Sleep(time.Second)
			w.net.Inject(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.4"), 7000+i), acceptorAddr, *last.Load())
		}
		isLost(t, b.Err()) // only copies have arrived
	})
}

// If the answer to a challenge is lost, the peer repeats its PING, and is
// challenged anew, at once and not with its next keep-alive.
func TestChallengeDoesNotAnswerPing(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 25 * time.Millisecond}, func(t *testing.T, w *world) {
		cfg := kcp.Config{Cipher: testAEAD(t), KeepAlive: 3 * time.Second}
		a, b, _, pc := w.movable(&cfg)
		time.Sleep(cfg.KeepAlive - time.Second)
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		var packets atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			if from.Addr() == elsewhere {
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

const (
	migratingDelay = 30 * time.Millisecond // of the path, in one direction
	// validationTime is how long a path validation takes, from the first packet
	// from the new address on.
	validationTime = 2 * migratingDelay
)

// What arrives from a new address before the challenge is answered is delivered
// then, not when it is retransmitted. Otherwise a peer whose address changes as
// often as it sends would deliver nothing. What went to a former address is retransmitted
// as soon as the new one is validated, whatever its time-outs have grown to: the move was
// an outage.
func TestDataFromNewAddress(t *testing.T) {
	inWorld(t, 441, netsim.LinkConfig{Delay: migratingDelay}, func(t *testing.T, w *world) {
		a, b, _, pc := w.movable(&kcp.Config{Cipher: testAEAD(t), KeepAlive: -1})
		for i := range 25 {
			require.NoError(t, pc.Rebind(fmt.Sprint("10.0.0.2:", 6000+i)))
			takes, want := migratingDelay+validationTime, content(uint64(i), 20_000)
			if i >= 20 {
				send(t, b, want)
				time.Sleep(10*time.Second + 123*time.Millisecond)
			}
			w.say(a, "*")
			deadline := time.Now().Add(takes + 5*time.Millisecond)
			require.NoError(t, b.SetReadDeadline(deadline))
			w.hear(b, "*")
			require.Equal(t, i+1, b.Stats().Moves)
			if i >= 20 {
				require.NoError(t, a.SetReadDeadline(deadline.Add(migratingDelay)))
				receive(t, a, want)
			}
		}
	})
}

// Without an authenticating cipher anybody could take a session over by a
// packet from another address, so nobody can.
func TestNoMoveWithoutAEAD(t *testing.T) {
	inWorld(t, 28, clean, func(t *testing.T, w *world) {
		a, b, _, pc := w.movable(&kcp.Config{PeerTimeout: 5 * time.Second})
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.say(a, "from elsewhere")
		require.NoError(t, b.SetReadDeadline(time.Now().Add(3*time.Second)))
		requireTimeout(t, end(b))
		require.Equal(t, "10.0.0.2:5000", b.RemoteAddr().String())
		// The listener does not know a session from there, and says so.
		require.ErrorIs(t, end(a), kcp.ErrReset)
	})
}

// Copies of a client's packets that arrive from another address move no handshake, and
// open no session beside it. No more is sent there than the anti-amplification limit
// allows (RFC 9000 §8.1), whichever arrives first.
func TestTLSCopiesFromElsewhereMoveNothing(t *testing.T) {
	thief := netip.MustParseAddrPort("10.0.0.66:6666")
	for _, test := range []struct {
		name  string
		late  time.Duration // after the client's
		count int           // of its packets are copied
		most  int           // bytes that are sent for each that has come
	}{{"before", 0, 100, 3}, {"after", 11 * time.Millisecond, 100, 1}, {"late", 400 * time.Millisecond, 2, 1}} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				l := w.listen(secured(kcp.Config{}))
				e, _ := w.endpoint("10.0.0.2:5000", secured(kcp.Config{}))
				copied, taken, sent := 0, 0, 0
				w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
					if to == thief {
						sent += len(p)
						return false
					}
					if to == acceptorAddr && copied < test.count {
						copied++
						taken += len(p)
						if p := bytes.Clone(p); test.late == 0 {
							w.net.Inject(thief, acceptorAddr, p)
						} else {
							time.AfterFunc(test.late, func() { w.net.Inject(thief, acceptorAddr, p) })
						}
					}
					return true
				})
				a := w.dial(e)
				b := accepted(t, l)
				time.Sleep(time.Second)
				bothWays(t, a, b, content(1, 10_000), content(2, 10_000))
				w.settle()
				w.net.SetFilter(nil)
				require.GreaterOrEqual(t, copied, 2)
				require.Positive(t, sent, "cookies and challenges")
				require.LessOrEqual(t, sent, test.most*taken)
				require.Equal(t, "10.0.0.2:5000", b.RemoteAddr().String())
				require.Equal(t, 1, l.Endpoint().Stats().Sessions)
				require.EqualValues(t, 1, l.Endpoint().Stats().Accepted)
			})
		})
	}
}
