package e2e

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// lostIdle returns how many of the idle sessions with these seeds are lost within
// a minute behind a NAT whose bindings last for 3.4 s.
func lostIdle(t *testing.T, seeds uint64, cfg kcp.Config, link netsim.LinkConfig) (lost int) {
	for seed := range seeds {
		inWorld(t, seed, link, func(t *testing.T, w *world) {
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
			for _, c := range []*kcp.Conn{a, b} {
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
	for name, cfg := range map[string]kcp.Config{"AEAD": {Cipher: testAEAD(t)}, "TLS": {TLS: testTLS()}} {
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
		var lost *kcp.PeerLostError
		require.ErrorAs(t, b.Err(), &lost, "only copies have arrived")
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

// A peer whose address changes goes on, whoever sends, with and without FEC.
func TestRebinding(t *testing.T) {
	long(t)
	for _, f := range []kcp.FEC{{}, {Data: 10, Parity: 3}} {
		for _, up := range []bool{true, false} {
			inWorld(t, 28, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.02, Rate: 4 << 20, Queue: 256 << 10}, func(t *testing.T, w *world) {
				cfg := &kcp.Config{Cipher: testAEAD(t), FEC: f}
				l := w.listen(cfg)
				e, pc := w.endpoint("10.0.0.2:5000", cfg)
				a := w.dial(e)
				b, err := l.AcceptKCP(context.Background())
				require.NoError(t, err)
				from, to := a, b
				if !up {
					from, to = b, a
				}
				size := int(fewer(4)) << 21
				want := content(28, size)
				w.net.At(time.Second*time.Duration(size)/(8<<20), func() { require.NoError(t, pc.Rebind("10.0.0.3:6000")) })
				send(t, from, want)
				start := time.Now()
				receive(t, to, want)
				require.Less(t, time.Since(start), 20*time.Second)
				require.Equal(t, "10.0.0.3:6000", b.RemoteAddr().String())
				require.Equal(t, 1, l.Stats().Sessions)
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			})
		}
	}
}

// migrating runs f with a session whose dialling end gets another address with
// each call of rebind. Delay is the delay of the path, in one direction.
func migrating(t *testing.T, cfg *kcp.Config, f func(a, b *kcp.Conn, rebind func())) {
	inWorld(t, 441, netsim.LinkConfig{Delay: migratingDelay}, func(t *testing.T, w *world) {
		cfg.Cipher = testAEAD(t)
		l := w.listen(cfg)
		e, pc := w.endpoint("10.0.0.2:5000", cfg)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		port := 6000
		f(a, b, func() {
			port++
			require.NoError(t, pc.Rebind(net.JoinHostPort("10.0.0.2", strconv.Itoa(port))))
		})
	})
}

const (
	migratingDelay = 30 * time.Millisecond
	// validationTime is how long a path validation takes, from the first packet
	// from the new address on.
	validationTime = 2 * migratingDelay
)

// What arrives from a new address before the challenge is answered is delivered
// then, not when it is retransmitted. Otherwise a peer whose address changes as
// often as it sends would deliver nothing.
func TestDataFromNewAddress(t *testing.T) {
	migrating(t, &kcp.Config{}, func(a, b *kcp.Conn, rebind func()) {
		for i := range 20 {
			rebind()
			_, err := a.Write([]byte{byte(i)})
			require.NoError(t, err)
			require.NoError(t, b.SetReadDeadline(time.Now().Add(migratingDelay+validationTime+5*time.Millisecond)))
			receive(t, b, []byte{byte(i)})
			require.Equal(t, i+1, b.Stats().Moves)
		}
	})
}

// What went to a former address is retransmitted as soon as the peer's new one is
// validated, whatever its time-outs have grown to: the move was an outage.
func TestMigrationRetransmits(t *testing.T) {
	migrating(t, &kcp.Config{KeepAlive: -1}, func(a, b *kcp.Conn, rebind func()) {
		want := content(441, 20_000)
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		receive(t, b, []byte{1})
		for range 5 {
			rebind()
			send(t, b, want)
			time.Sleep(10*time.Second + 123*time.Millisecond)
			_, err = a.Write([]byte{2})
			require.NoError(t, err)
			require.NoError(t, a.SetReadDeadline(time.Now().Add(2*migratingDelay+validationTime+5*time.Millisecond)))
			receive(t, a, want)
			receive(t, b, []byte{2})
		}
	})
}

// Without an authenticating cipher anybody could take a session over by a
// packet from another address, so nobody can.
func TestNoMoveWithoutAEAD(t *testing.T) {
	inWorld(t, 28, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, pc := w.endpoint("10.0.0.2:5000", &kcp.Config{PeerTimeout: 5 * time.Second})
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		_, err = a.Write([]byte("from here"))
		require.NoError(t, err)
		receive(t, b, []byte("from here"))
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		_, err = a.Write([]byte("from elsewhere"))
		require.NoError(t, err)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = b.Read(make([]byte, 1))
		requireTimeout(t, err)
		require.Equal(t, "10.0.0.2:5000", b.RemoteAddr().String())
		// The listener does not know a session from there, and says so.
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, kcp.ErrReset)
	})
}

// Packets of a peer that somebody else delivers, from another address and
// before the peer's own, do not move the session.
func TestSpoofedMove(t *testing.T) {
	long(t)
	inWorld(t, 28, netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 4 << 20, Queue: 256 << 10}, func(t *testing.T, w *world) {
		cfg := &kcp.Config{Cipher: testAEAD(t)}
		l := w.listen(cfg)
		e, _ := w.endpoint("10.0.0.2:5000", cfg)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		server, thief := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.66:6666")
		taken, answers := 0, 0
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if to == thief {
				answers++
				require.LessOrEqual(t, len(p), 64, "more than a challenge goes to an address that is not proven")
				return false
			}
			if from.Addr() == netip.MustParseAddr("10.0.0.2") {
				if taken++; taken%3 == 0 {
					w.net.Inject(thief, server, p) // and it is first
				}
			}
			return true
		})
		want := content(28, 4<<20)
		send(t, a, want)
		receive(t, b, want)
		synctest.Wait()
		require.Positive(t, answers)
		require.Equal(t, "10.0.0.2:5000", b.RemoteAddr().String())
		require.Equal(t, 1, l.Stats().Sessions)
	})
}

// The same over sockets of the system: a new socket takes over behind a NAT.
func TestRebindingOverSockets(t *testing.T) {
	cfg := &kcp.Config{Cipher: testAEAD(t)}
	l, err := kcp.Listen("udp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	nat := newNAT(t, l.Addr().String())
	a, err := kcp.Dial("udp", nat.inside(), cfg)
	require.NoError(t, err)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(t, err)
	before := b.RemoteAddr().String()

	size := 50 << 20
	if raceEnabled || testing.Short() {
		size = 8 << 20
	}
	want := content(28, size)
	send(t, a, want)
	receive(t, b, want[:size/3])
	nat.rebind()
	receive(t, b, want[size/3:])
	require.NotEqual(t, before, b.RemoteAddr().String())
	require.Equal(t, nat.outside(), b.RemoteAddr().String())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// nat forwards packets of one client on loopback to a server, and can change
// the address that the server sees.
type nat struct {
	t      *testing.T
	in     *net.UDPConn
	server string

	mu     sync.Mutex
	out    *net.UDPConn
	client net.Addr
}

func newNAT(t *testing.T, server string) *nat {
	in, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	n := &nat{t: t, in: in, server: server}
	n.rebind()
	go n.forward()
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		n.mu.Lock()
		defer n.mu.Unlock()
		require.NoError(t, n.out.Close())
	})
	return n
}

func (n *nat) inside() string { return n.in.LocalAddr().String() }

func (n *nat) outside() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out.LocalAddr().String()
}

// rebind opens a new socket towards the server in place of the old one.
func (n *nat) rebind() {
	out, err := net.Dial("udp", n.server)
	require.NoError(n.t, err)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out != nil {
		require.NoError(n.t, n.out.Close())
	}
	n.out = out.(*net.UDPConn)
	go n.back(n.out)
}

// forward takes packets from the client to the server until the end.
func (n *nat) forward() {
	buf := make([]byte, 1<<16)
	for {
		size, from, err := n.in.ReadFrom(buf)
		if err != nil {
			return
		}
		n.mu.Lock()
		n.client = from
		_, _ = n.out.Write(buf[:size]) // loss is allowed
		n.mu.Unlock()
	}
}

// back takes packets that come to out to the client.
func (n *nat) back(out *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		size, err := out.Read(buf)
		if err != nil {
			return
		}
		n.mu.Lock()
		client := n.client
		n.mu.Unlock()
		_, _ = n.in.WriteTo(buf[:size], client)
	}
}
