package e2e

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

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
		require.GreaterOrEqual(t, s.PathMTU.MTU, pmtud.Base)
		packets, segments := s.PacketsSent-before.PacketsSent, s.SegmentsSent-before.SegmentsSent+s.Retransmits()-before.Retransmits()
		require.Less(t, packets, 2*segments+100)
	})
}

// path is a link of so many bytes a packet, UDP payload.
func path(mtu int) netsim.LinkConfig {
	return netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 4 << 20, Queue: 256 << 10, MTU: mtu}
}

// move sends data over c and has it compared at the other end.
func (w *world) move(from, to *kcp.Conn, seed uint64, n int) {
	w.t.Helper()
	want := content(seed, n)
	send(w.t, from, want)
	receive(w.t, to, want)
}

// A path that takes more is used, up to the limit and no further, in each
// direction by the side that sends.
func TestPathMTUIsRaised(t *testing.T) {
	long(t)
	for _, test := range []struct{ limit, path, least, most int }{
		{1472, 0, 1472, 1472},
		{1472, 1472, 1472, 1472},
		{9000, 1472, 1472, 1472},
		{9000, 0, 9000, 9000},
		{9000, 4000, 4000 - pmtud.Step, 4000},
		{65507, 0, 65507, 65507},
		{1472, 1420, 1420 - pmtud.Step, 1420},
		{1472, 1400, 1400, 1400},
		{-1, 0, 1400, 1400},
		{1000, 0, 1400, 1400},
	} {
		inWorld(t, 1, path(test.path), func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MaxMTU: test.limit}, nil)
			w.move(a, b, 1, 2<<20)
			time.Sleep(time.Minute)
			w.move(a, b, 1, 1<<20)
			s := a.Stats().PathMTU
			t.Logf("%+v %+v retransmits %d", test, s, a.Stats().Retransmits())
			require.GreaterOrEqual(t, s.MTU, test.least)
			require.LessOrEqual(t, s.MTU, test.most)
			require.Zero(t, s.BlackHoles)
			require.Equal(t, kcp.PathMTUStats{MTU: 1400}, b.Stats().PathMTU)
			if test.limit > 1400 {
				require.LessOrEqual(t, s.Sent, uint64(50))
			} else {
				require.Zero(t, s.Sent)
			}
			require.NoError(t, a.Close())
		})
	}
}

// A path that swallows packets of the size that a session begins with is found
// out, and everything arrives.
func TestPathMTUBlackHole(t *testing.T) {
	long(t)
	for name, cfg := range map[string]kcp.Config{
		"stream": {}, "messages": {MessageMode: true}, "low latency": kcp.LowLatency(),
		"FEC": {FEC: kcp.FEC{Data: 10, Parity: 3}}, "AEAD": {Cipher: testAEAD(t)}, "jumbo": {MTU: 9000},
		"cubic": {CongestionControl: congestion.NewCubic}, "AEAD and FEC": {Cipher: testAEAD(t), FEC: kcp.FEC{Data: 3, Parity: 1}},
	} {
		for _, mtu := range []int{1272, 1200, 1390}[:fewer(3)] {
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
				require.Greater(t, size, mtu-pmtud.Step-50)
				require.Equal(t, kcp.Drops{}, b.Stats().Dropped)
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
				require.Zero(t, l.Stats().Buffered)
			})
		}
	}
}

// A path that changes in mid-transfer is followed: down when it swallows what
// it had taken, and up again when the search is repeated.
func TestPathMTUFollowsThePath(t *testing.T) {
	long(t)
	inWorld(t, 1, path(1472), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxMTU: 1472}, nil)
		w.move(a, b, 1, 1<<20)
		require.Equal(t, 1472, a.Stats().PathMTU.MTU)

		w.net.At(time.Second, func() { w.net.SetLink("", "", path(1252)) })
		start := time.Now()
		w.move(a, b, 2, 8<<20)
		require.Less(t, time.Since(start), 8*time.Second)
		time.Sleep(time.Minute)
		s := a.Stats().PathMTU
		require.EqualValues(t, 1, s.BlackHoles)
		require.LessOrEqual(t, s.MTU, 1252)
		require.Greater(t, s.MTU, 1252-pmtud.Step)

		w.net.SetLink("", "", path(1472))
		time.Sleep(8 * time.Minute)
		w.move(a, b, 3, 1<<20)
		require.Equal(t, s, a.Stats().PathMTU, "it is not yet time")
		time.Sleep(time.Minute)
		w.move(a, b, 4, 1<<20)
		require.Equal(t, 1472, a.Stats().PathMTU.MTU)
		require.EqualValues(t, 1, a.Stats().PathMTU.BlackHoles)
		require.NoError(t, a.Close())
	})
}

// Losses by chance, and outages, are not taken for a black hole, nor do they
// make a session probe that has no reason to.
func TestPathMTULossIsNoBlackHole(t *testing.T) {
	long(t)
	for seed := range fewer(20) {
		link := path(0)
		link.Loss, link.Jitter = 0.1, 10*time.Millisecond
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MaxMTU: 1472, SendWindow: 256}, nil)
			for i := range 3 {
				w.net.At(time.Duration(i+1)*time.Second, func() { w.net.Cut("10.0.0.1", "10.0.0.2") })
				w.net.At(time.Duration(i+1)*time.Second+700*time.Millisecond, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
			}
			w.move(a, b, seed, 4<<20)
			s := a.Stats().PathMTU
			require.Zero(t, s.BlackHoles)
			require.Equal(t, 1472, s.MTU)
			require.Zero(t, b.Stats().PathMTU.Sent)
			require.LessOrEqual(t, s.Sent, uint64(20), "the search, and some in the outages")
		})
	}
}

// In an outage nothing is concluded, however long it is.
func TestPathMTUOutage(t *testing.T) {
	long(t)
	for _, back := range []bool{false, true} { // whether the way back is open meanwhile
		inWorld(t, 1, path(0), func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MaxMTU: 1472, PeerTimeout: time.Hour, KeepAlive: -1}, &kcp.Config{PeerTimeout: time.Hour})
			w.move(a, b, 1, 1<<20)
			probes := a.Stats().PathMTU.Sent
			down := path(0)
			down.Down = true
			w.net.SetLink("10.0.0.2", "10.0.0.1", down)
			if !back {
				w.net.SetLink("10.0.0.1", "10.0.0.2", down)
			}
			want := content(2, 1<<20)
			send(t, a, want)
			time.Sleep(5 * time.Minute)
			s := a.Stats().PathMTU
			require.Zero(t, s.BlackHoles)
			require.Less(t, s.Sent-probes, uint64(200), "one in two seconds")
			w.net.SetLink("10.0.0.2", "10.0.0.1", path(0))
			w.net.SetLink("10.0.0.1", "10.0.0.2", path(0))
			receive(t, b, want)
			require.Equal(t, 1472, a.Stats().PathMTU.MTU)
			require.Zero(t, a.Stats().PathMTU.BlackHoles)
		})
	}
}

// Who sends little, or little at a time, sends no probes.
func TestPathMTUThinSessions(t *testing.T) {
	for _, size := range []int{30, 1000, 1376} {
		inWorld(t, 1, path(0), func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MaxMTU: 1472, MessageMode: true}, &kcp.Config{MessageMode: true})
			count := 1000
			if size == 1376 {
				count = pmtud.SearchAfter - 1
			}
			for i := range count {
				want := content(uint64(i), size)
				require.NoError(t, a.WriteMessage(want))
				receive(t, b, want)
			}
			time.Sleep(time.Minute)
			require.Equal(t, kcp.PathMTUStats{MTU: 1400}, a.Stats().PathMTU)
			require.NoError(t, a.WriteMessage(make([]byte, 1376)))
			time.Sleep(time.Minute)
			require.Equal(t, size == 1376, a.Stats().PathMTU.MTU == 1472)
		})
	}
}

// A session that begins small is raised no further than its segments could be
// sent in pieces that are as small again.
func TestPathMTUFromSmall(t *testing.T) {
	long(t)
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MTU: 100, MaxMTU: 65507}, nil)
		w.move(a, b, 1, 100<<10)
		require.InDelta(t, 64*72, a.Stats().PathMTU.MTU, 100)
		want := content(2, 1<<20)
		w.net.At(w.net.Elapsed()+100*time.Millisecond, func() { w.net.SetLink("", "", path(110)) })
		send(t, a, want)
		receive(t, b, want)
		time.Sleep(time.Second)
		require.LessOrEqual(t, a.Stats().PathMTU.MTU, 110)
	})
}

// Small messages that share large packets are lost in a black hole too.
func TestPathMTUBlackHoleOfSmallMessages(t *testing.T) {
	long(t)
	inWorld(t, 1, path(1300), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true}, &kcp.Config{MessageMode: true})
		random := rand.New(rand.NewPCG(1, 2))
		go func() {
			for i := range 4000 {
				_ = a.WriteMessage(content(uint64(i), 200+i%200)) // its end shows at the reader
				if random.IntN(40) == 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}()
		start := time.Now()
		for i := range 4000 {
			receive(t, b, content(uint64(i), 200+i%200))
		}
		t.Logf("%v %+v", time.Since(start), a.Stats().PathMTU)
		require.Less(t, time.Since(start), 10*time.Second)
		require.EqualValues(t, 1, a.Stats().PathMTU.BlackHoles)
	})
}

// A lost probe is not given back by forward error correction, which would make
// it pass for one that the path takes.
func TestPathMTUProbesPastFEC(t *testing.T) {
	long(t)
	for _, aead := range []bool{false, true} {
		inWorld(t, 1, path(1410), func(t *testing.T, w *world) {
			cfg := &kcp.Config{MaxMTU: 1472, FEC: kcp.FEC{Data: 2, Parity: 2}}
			if aead {
				cfg.Cipher = testAEAD(t)
			}
			a, b, _ := w.pair(cfg, cfg)
			tap := testenv.NewTap(w.net)
			w.move(a, b, 1, 1<<20)
			s := a.Stats()
			require.Equal(t, 1472, tap.Largest(2, 1), "the probe is of the size probed")
			require.Equal(t, 1400, s.PathMTU.MTU)
			require.Zero(t, s.PathMTU.BlackHoles)
			time.Sleep(time.Minute)
			tap.Largest(2, 1)
			w.move(a, b, 1, 1<<20)
			require.Equal(t, 1400, tap.Largest(2, 1))
			require.Zero(t, b.Stats().Dropped.FEC)

			w.net.SetLink("", "", path(0))
			time.Sleep(pmtud.RaiseAfter)
			w.move(a, b, 2, 1<<20)
			require.Equal(t, 1472, a.Stats().PathMTU.MTU)
			tap.Largest(2, 1)
			w.move(a, b, 3, 1<<20)
			require.Equal(t, 1472, tap.Largest(2, 1))
		})
	}
}

// A session that moves begins anew with what Config says.
func TestPathMTUAfterMove(t *testing.T) {
	long(t)
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		cfg := &kcp.Config{Cipher: testAEAD(t), MaxMTU: 1472}
		l := w.listen(cfg)
		e, pc := w.endpoint("10.0.0.2:5000", cfg)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		w.move(b, a, 1, 1<<20)
		require.Equal(t, 1472, b.Stats().PathMTU.MTU)
		w.net.SetLink("10.0.0.1", "10.0.0.3", path(1404))
		tap := testenv.NewTap(w.net)
		w.net.At(w.net.Elapsed()+500*time.Millisecond, func() { require.NoError(t, pc.Rebind("10.0.0.3:6000")) })
		w.move(b, a, 2, 8<<20)
		require.EqualValues(t, 1, b.Stats().Moves)
		require.Equal(t, 1400, b.Stats().PathMTU.MTU)
		time.Sleep(time.Minute)
		tap.Largest(1, 3)
		w.move(b, a, 3, 1<<20)
		require.Equal(t, 1400, tap.Largest(1, 3))
		require.NoError(t, b.Close())
	})
}

// narrow is a socket whose system refuses packets that the interface does not
// take.
type narrow struct {
	*netsim.PacketConn
	mtu, refused int
}

func (n *narrow) WriteToAddrPort(p []byte, to netip.AddrPort) (int, error) {
	if len(p) > n.mtu {
		n.refused++
		return 0, os.NewSyscallError("sendto", syscall.EMSGSIZE)
	}
	return n.PacketConn.WriteToAddrPort(p, to)
}

// What the system refuses is not waited for.
func TestPathMTUOfInterface(t *testing.T) {
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		l := w.listen(nil)
		pc, err := w.net.Listen("10.0.0.2:0")
		require.NoError(t, err)
		socket := &narrow{PacketConn: pc, mtu: 4000}
		e, err := kcp.NewEndpoint(socket, &kcp.Config{MaxMTU: 9000})
		require.NoError(t, err)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		start := time.Now()
		want := content(1, 100<<10)
		send(t, a, want)
		receive(t, b, want)
		for a.Stats().PathMTU.MTU < 3980 {
			require.Less(t, time.Since(start), 2*time.Second)
			time.Sleep(10 * time.Millisecond)
		}
		require.LessOrEqual(t, a.Stats().PathMTU.MTU, 4000)
		require.Less(t, socket.refused, 12, "no size is tried again")
		require.NoError(t, a.Close())
		require.NoError(t, e.Close())
		require.NoError(t, pc.Close())
	})
}

// What the peer says of itself it says once and for all.
func TestPathMTUForgedInfo(t *testing.T) {
	long(t)
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxMTU: 1472}, nil)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		time.Sleep(time.Second)
		p := make([]byte, headerSize)
		signal{sigInfo, 9, 0}.encode(header{conv: a.Conv(), wnd: 128}, p)
		w.net.Inject(from, to, p)
		w.move(a, b, 1, 1<<20)
		require.Equal(t, kcp.PeerInfo{Known: true, Version: signalVersion}, a.Peer())
		require.Equal(t, 1472, a.Stats().PathMTU.MTU)
	})
}

// Answers to probes that were not sent change nothing.
func TestPathMTUForgedAnswers(t *testing.T) {
	long(t)
	inWorld(t, 1, path(1472), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MaxMTU: 9000}, nil)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		stop := make(chan struct{})
		go func() {
			for nonce := uint32(0); ; nonce++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				for _, size := range []uint32{0, 9000, 1472, 1<<32 - 1} {
					p := make([]byte, headerSize)
					signal{sigProbe | sigAnswer, nonce, size}.encode(header{conv: a.Conv(), wnd: 128}, p)
					w.net.Inject(from, to, p)
				}
			}
		}()
		w.move(a, b, 1, 4<<20)
		time.Sleep(time.Minute)
		close(stop)
		require.Equal(t, 1472, a.Stats().PathMTU.MTU)
	})
}

// Both ends find out at once, though packets are lost by chance too, and all
// arrives.
func TestPathMTUBlackHoleBothWays(t *testing.T) {
	long(t)
	for seed := range fewer(20) {
		link := path(1272)
		link.Loss, link.Jitter, link.Reorder = 0.05, 10*time.Millisecond, 0.05
		inWorld(t, seed, link, func(t *testing.T, w *world) {
			cfg := &kcp.Config{}
			if seed%2 == 1 {
				cfg.FEC = kcp.FEC{Data: 10, Parity: 2}
			}
			a, b, l := w.pair(cfg, cfg)
			up, down := content(seed, 1<<20), content(seed+1, 1<<20)
			start := time.Now()
			send(t, a, up)
			send(t, b, down)
			done := make(chan struct{})
			go func() {
				defer close(done)
				got := make([]byte, len(up))
				if n, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, up) {
					t.Errorf("after %d bytes: %v", n, err)
				}
			}()
			receive(t, a, down)
			<-done
			require.Less(t, time.Since(start), 15*time.Second)
			time.Sleep(5 * time.Second)
			for _, c := range []*kcp.Conn{a, b} {
				require.EqualValues(t, 1, c.Stats().PathMTU.BlackHoles)
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			require.Zero(t, l.Stats().Buffered)
		})
	}
}
