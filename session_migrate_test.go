package kcp

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

func testAEAD(t *testing.T) crypt.Cipher {
	c, err := crypt.AESGCM(bytes.Repeat([]byte{5}, 16))
	require.NoError(t, err)
	return c
}

// A peer whose address changes goes on, whoever sends, with and without FEC.
func TestRebinding(t *testing.T) {
	long(t)
	for _, f := range []FEC{{}, {Data: 10, Parity: 3}} {
		for _, up := range []bool{true, false} {
			inWorld(t, 28, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.02, Rate: 4 << 20, Queue: 256 << 10}, func(w *world) {
				cfg := &Config{Cipher: testAEAD(t), FEC: f}
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
func migrating(t *testing.T, cfg *Config, f func(a, b *Conn, rebind func())) {
	inWorld(t, 441, netsim.LinkConfig{Delay: migratingDelay}, func(w *world) {
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
	migrating(t, &Config{}, func(a, b *Conn, rebind func()) {
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
	migrating(t, &Config{KeepAlive: -1}, func(a, b *Conn, rebind func()) {
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
	inWorld(t, 28, clean, func(w *world) {
		l := w.listen(nil)
		e, pc := w.endpoint("10.0.0.2:5000", &Config{PeerTimeout: 5 * time.Second})
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
		require.ErrorIs(t, err, ErrReset)
	})
}

// Packets of a peer that somebody else delivers, from another address and
// before the peer's own, do not move the session.
func TestSpoofedMove(t *testing.T) {
	long(t)
	inWorld(t, 28, netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 4 << 20, Queue: 256 << 10}, func(w *world) {
		cfg := &Config{Cipher: testAEAD(t)}
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

// A session whose new address is taken by another session of the same
// conversation id stays where it is.
func TestMoveDoesNotCollide(t *testing.T) {
	inWorld(t, 28, clean, func(w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		at := func(port int) net.Addr { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: port} }
		x, err := e.Dial(context.Background(), at(1))
		require.NoError(t, err)
		key := x.entry.Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		_, err = e.openSession(key, at(2), false)
		require.NoError(t, err)
		require.False(t, e.rekey(x, key))
		require.Equal(t, x, e.table.Get(x.entry.Key()))
	})
}

// The same over sockets of the system: a new socket takes over behind a NAT.
func TestRebindingOverSockets(t *testing.T) {
	cfg := &Config{Cipher: testAEAD(t)}
	l, err := Listen("udp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	nat := newNAT(t, l.Addr().String())
	a, err := Dial("udp", nat.inside(), cfg)
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

// The conversation id may be asked for while the session moves.
func TestConvWhileMoving(t *testing.T) {
	inWorld(t, 28, clean, func(w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		c, err := e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: 1})
		require.NoError(t, err)
		conv := c.Conv()
		done := make(chan uint32)
		go func() { done <- c.Conv() }()
		key := c.entry.Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		require.True(t, e.rekey(c, key))
		require.Equal(t, conv, <-done)
		require.Equal(t, c, e.table.Get(key))
	})
}
