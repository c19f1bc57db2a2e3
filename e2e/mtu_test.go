package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// path is a link of so many bytes a packet, UDP payload.
func path(mtu int) netsim.LinkConfig {
	return netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 4 << 20, Queue: 256 << 10, MTU: mtu}
}

// Once a path has taken packets of the base size, what was lost leaves in pieces
// as large, however small those are that the session has begun with. Else each
// loss would cost a packet for every few bytes.
func TestPiecesAreAsLargeAsTheBase(t *testing.T) {
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MTU: 58, MaxMTU: 1472}, nil)
		w.move(a, b, 1, 100<<10)
		require.Equal(t, 1472, a.Stats().PathMTU.MTU)
		before := a.Stats()
		w.net.SetLink("", "", path(1272))
		w.move(a, b, 2, 1<<20)
		time.Sleep(3 * time.Second) // all was there before the verdict
		s := a.Stats()
		require.EqualValues(t, 1, s.PathMTU.BlackHoles)
		require.GreaterOrEqual(t, s.PathMTU.MTU, netpath.BaseMTU)
		packets, segments := s.PacketsSent-before.PacketsSent, s.SegmentsSent-before.SegmentsSent+s.Retransmits()-before.Retransmits()
		require.Less(t, packets, 2*segments+100)
	})
}

// A path that takes more is used, up to the limit and no further, in each
// direction by the side that sends.
func TestPathMTUIsRaised(t *testing.T) {
	long(t)
	for _, test := range []struct{ limit, path, least, most int }{
		{1472, 0, 1472, 1472},
		{9000, 1472, 1472, 1472},
		{9000, 4000, 4000 - netpath.Step, 4000},
		{65507, 0, 65507, 65507},
		{1472, 1420, 1420 - netpath.Step, 1420},
		{-1, 0, 1400, 1400},
		{1000, 0, 1400, 1400},
	} {
		inWorld(t, 1, path(test.path), func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MaxMTU: test.limit}, nil)
			w.move(a, b, 1, 1<<20)
			time.Sleep(time.Minute)
			w.move(a, b, 1, 100<<10)
			s := a.Stats().PathMTU
			require.GreaterOrEqual(t, s.MTU, test.least, "%+v", test)
			require.LessOrEqual(t, s.MTU, test.most, "%+v", test)
			require.Zero(t, s.BlackHoles)
			require.Equal(t, stats.PathMTU{MTU: 1400}, b.Stats().PathMTU)
			if test.limit > 1400 {
				require.LessOrEqual(t, s.Sent, uint64(50))
			} else {
				require.Zero(t, s.Sent)
			}
		})
	}
}

// A path that swallows packets of the size that a session begins with is found
// out, in both directions, and everything arrives.
func TestPathMTUBlackHole(t *testing.T) {
	long(t)
	for name, cfg := range map[string]kcp.Config{
		"stream": {}, "messages": {MessageMode: true}, "low latency": kcp.LowLatency(),
		"FEC": {FEC: kcp.FEC{Data: 10, Parity: 3}}, "jumbo": {MTU: 9000},
		"cubic": {CongestionControl: congestion.NewCubic}, "AEAD and FEC": {Cipher: testAEAD(t), FEC: kcp.FEC{Data: 3, Parity: 1}},
	} {
		for _, mtu := range []int{1272, 1200, 1390}[:some(3, 1)] {
			inWorld(t, 1, path(mtu), func(t *testing.T, w *world) {
				start := time.Now()
				a, b, l := w.pair(&cfg, &cfg)
				w.move(a, b, 1, 1<<20)
				took := time.Since(start)
				time.Sleep(time.Second) // all was there before the verdict
				s := a.Stats()
				t.Logf("%s %d: %v %+v retransmits %d", name, mtu, took, s.PathMTU, s.Retransmits())
				require.EqualValues(t, 1, s.PathMTU.BlackHoles)
				require.Less(t, took, 2*time.Second)
				require.Less(t, s.Retransmits(), uint64(2600), "not all is retransmitted again and again, before that is known")
				w.move(b, a, 1, 1<<20)
				time.Sleep(time.Minute) // the search comes to its end
				tap := testenv.NewTap(w.net)
				w.move(a, b, 1, 1<<20)
				size := tap.Largest(2, 1)
				require.LessOrEqual(t, size, mtu)
				require.Greater(t, size, mtu-netpath.Step-50)
				require.Equal(t, stats.Drops{}, b.Stats().Dropped)
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
				require.Zero(t, l.Endpoint().Stats().Buffered)
			})
		}
	}
	for seed := range some(20, 3) { // both at once, though packets are lost by chance too
		link := path(1272)
		link.Loss, link.Jitter, link.Reorder = 0.05, 10*time.Millisecond, 0.05
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			start := time.Now()
			bothWays(t, a, b, content(seed, 1<<20), content(seed+1, 1<<20))
			require.Less(t, time.Since(start), 15*time.Second)
			time.Sleep(5 * time.Second)
			for _, c := range []*kcp.Conn{a, b} {
				require.EqualValues(t, 1, c.Stats().PathMTU.BlackHoles)
			}
		})
	}
}

// A lost probe is not given back by forward error correction, which would make
// it pass for one that the path takes.
func TestPathMTUProbesPastFEC(t *testing.T) {
	long(t)
	for _, cipher := range []string{"no-cipher", "aes-gcm"} {
		inWorld(t, 1, path(1410), func(t *testing.T, w *world) {
			cfg := &kcp.Config{MaxMTU: 1472, FEC: kcp.FEC{Data: 2, Parity: 2}, Cipher: testCiphers(t, 1)[cipher]}
			a, b, _ := w.pair(cfg, cfg)
			tap := testenv.NewTap(w.net)
			largest := func() int {
				tap.Largest(2, 1)
				w.move(a, b, 1, 1<<20)
				return tap.Largest(2, 1)
			}
			require.Equal(t, 1472, largest(), "the probe is of the size probed")
			require.Equal(t, 1400, a.Stats().PathMTU.MTU)
			require.Zero(t, a.Stats().PathMTU.BlackHoles)
			time.Sleep(time.Minute)
			require.Equal(t, 1400, largest())
			require.Zero(t, b.Stats().Dropped.FEC)

			w.net.SetLink("", "", path(0))
			time.Sleep(netpath.RaiseAfter)
			w.move(a, b, 2, 1<<20)
			require.Equal(t, 1472, a.Stats().PathMTU.MTU)
			require.Equal(t, 1472, largest())
		})
	}
}

// A session that moves begins anew with what Config says.
func TestPathMTUAfterMove(t *testing.T) {
	long(t)
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		a, b, _, pc := w.movable(&kcp.Config{Cipher: testAEAD(t), MaxMTU: 1472})
		w.move(b, a, 1, 1<<20)
		require.Equal(t, 1472, b.Stats().PathMTU.MTU)
		w.net.SetLink("10.0.0.1", "10.0.0.3", path(1404))
		tap := testenv.NewTap(w.net)
		w.after(500*time.Millisecond, func() { require.NoError(t, pc.Rebind("10.0.0.3:6000")) })
		w.move(b, a, 2, 4<<20)
		require.EqualValues(t, 1, b.Stats().Moves)
		require.Equal(t, 1400, b.Stats().PathMTU.MTU)
		time.Sleep(time.Minute)
		tap.Largest(1, 3)
		w.move(b, a, 3, 1<<20)
		require.Equal(t, 1400, tap.Largest(1, 3))
	})
}

// A path that takes fewer than 1200 bytes of UDP payload, and drops what is larger
// without a word. Sessions work without Config.MTU: each suspicion of a black hole has
// segments leave in pieces that pass. With Config.MTU nothing is lost. docs/settings.md
// says so.
func TestPathBelowTheBase(t *testing.T) {
	size := int(some(4, 1)) << 20
	for _, mtu := range []int{548, 972, 1100} {
		for name, config := range map[string]kcp.Config{
			"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "FEC": {FEC: kcp.FEC{Data: 10, Parity: 3}},
		} {
			for _, set := range []int{0, mtu} {
				if !inFull() && name != "plain" && mtu != 548 {
					continue
				}
				t.Run(fmt.Sprintf("%d, %s, MTU %d", mtu, name, set), func(t *testing.T) {
					link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 2 << 20, Queue: 200_000, MTU: mtu}
					config := config
					if config.MTU = set; set > 0 {
						config.MaxMTU = -1
					}
					inWorld(t, 1, link, func(t *testing.T, w *world) {
						a, b, _ := w.pair(&config, &config)
						start := time.Now()
						bothWays(t, a, b, content(1, size), content(2, size))
						took, s := time.Since(start), a.Stats()
						t.Logf("%v, %d segments, %d again", took, s.SegmentsSent, s.Retransmits())
						require.Less(t, took, 20*time.Second)
						if set > 0 {
							require.Less(t, s.Retransmits(), s.SegmentsSent/100)
						} else {
							require.Less(t, s.Retransmits(), 2*s.SegmentsSent/5) // 0.12 to 0.3, as goroutines run
						}
					})
				})
			}
		}
	}
}

// Whatever is added to a segment, it gets through any path that takes the size
// to fall back to: nothing is retransmitted for ever in packets larger than those
// that have arrived.
func TestEachSegmentPassesItsPath(t *testing.T) {
	t.Parallel()
	mtus := []int{1300, 1400, 1400, 576, 1200, 1201, 1228, 1472}
	for seed := range fewer(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		var ends [2]*kcp.Config
		protection, messages := random.IntN(5), random.IntN(2) == 0
		for i := range ends {
			c := &kcp.Config{MTU: mtus[random.IntN(len(mtus))], MessageMode: messages, PeerTimeout: 30 * time.Second}
			switch protection {
			case 1:
				c.FEC = kcp.FEC{Data: 3, Parity: 1}
			case 2:
				c.Cipher = testAEAD(t)
			case 3:
				c.Cipher, c.FEC = testAEAD(t), kcp.FEC{Data: 10, Parity: 3}
			case 4:
				c.TLS, c.MTU = testTLS(), max(c.MTU, 1200)
			}
			ends[i] = c
		}
		size, count, beyond := 1+random.IntN(1500), 1+random.IntN(20), random.IntN(49)-8
		if seed%2 == 0 { // the first segment leaves in pieces, and so is 4 bytes larger than others
			size = 1276 - random.IntN(int(seed%4*90)+1)
		}
		limit := max(min(1200, max(ends[0].MTU, ends[1].MTU)), size+beyond+session.OverheadOf(ends[0].Cipher, ends[0].TLS != nil, ends[0].FEC).Total)
		link := netsim.LinkConfig{Delay: 10 * time.Millisecond, MTU: limit}
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(ends[0], ends[1])
			start := time.Now()
			for _, to := range [][2]*kcp.Conn{{a, b}, {b, a}} {
				for range count {
					writeAll(t, to[0], content(seed, size))
				}
				for range count {
					receive(t, to[1], content(seed, size))
				}
			}
			require.Less(t, time.Since(start), 12*time.Second, "seed %d", seed)
		})
	}
}

// Datagrams may be as large as the path takes, and messages as before.
func TestPathMTUAndSizes(t *testing.T) {
	long(t)
	inWorld(t, 1, path(1472), func(t *testing.T, w *world) {
		cfg := &kcp.Config{MessageMode: true, MaxMTU: 1472, MTU: 1300}
		a, b, _ := w.pair(cfg, cfg)
		longest := machine.MaxFragments * (1300 - wire.HeaderSize)
		write := func(n int) error {
			want := content(uint64(n), n)
			if err := a.WriteMessage(want, nil); err != nil {
				return err
			}
			got := make([]byte, n)
			m, err := b.ReadMessage(got)
			require.NoError(t, err)
			require.True(t, m == n && bytes.Equal(got, want))
			return nil
		}
		require.Equal(t, longest, a.MaxMessageSize())
		require.ErrorIs(t, write(longest+1), kcp.ErrMessageTooLarge)
		require.NoError(t, write(longest))
		time.Sleep(time.Second)
		require.Equal(t, 1472-session.DatagramHeader, a.MaxDatagramSize())
		require.NoError(t, a.SendDatagram(make([]byte, 1472-session.DatagramHeader)))
		got, err := b.ReceiveDatagram(context.Background())
		require.NoError(t, err)
		require.Len(t, got, 1472-session.DatagramHeader)

		w.net.SetLink("", "", path(1200))
		require.NoError(t, write(longest))
		time.Sleep(time.Minute)
		require.Equal(t, 1200, a.Stats().PathMTU.MTU)
		require.Equal(t, 1200-session.DatagramHeader, a.MaxDatagramSize())
		err = a.SendDatagram(make([]byte, 1472-session.DatagramHeader))
		require.ErrorIs(t, err, kcp.ErrMessageTooLarge)
		require.ErrorContains(t, err, fmt.Sprintf("kcp: datagram of %d bytes is larger than %d, what fits into a packet of 1200 bytes", 1472-session.DatagramHeader, a.MaxDatagramSize()))
		require.NoError(t, write(longest))
		longest = machine.MaxFragments * (1472 - wire.HeaderSize) // as was possible in between
		require.Equal(t, longest, a.MaxMessageSize())
		require.NoError(t, write(longest))
		require.ErrorIs(t, write(longest+1), kcp.ErrMessageTooLarge)
		require.NoError(t, a.Close())
	})
}

// With the least MTU a HELLO that shows a cookie is still one of a peer that dials too, and
// goes to no listener.
func TestSimultaneousOpenSmallMTU(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
		addrs := [2]netip.AddrPort{netip.MustParseAddrPort(peerA), netip.MustParseAddrPort(peerB)}
		var ends [2]*kcp.Endpoint
		for i := range ends {
			ends[i], _ = w.endpoint(addrs[i].String(), &kcp.Config{MTU: 4 * wire.HeaderSize})
			_, err := ends[i].Listen()
			require.NoError(t, err)
			w.net.At(10*time.Millisecond, func() { // half open: the next HELLO needs a cookie
				w.net.Inject(addrs[1-i], addrs[i], packetOf(7, segment(83, 1, 7, 0, 0, ""), segment(84, 15, 1<<32-1, 1<<32-1, 0, "")))
			})
		}
		x, y := openBoth(ends[0], ends[1], []string{peerA}, []string{peerB}, 0)
		requireOneSession(t, ends[0], ends[1], x, y)
		require.NotZero(t, ends[0].Stats().CookiesSent+ends[1].Stats().CookiesSent)
	})
}
