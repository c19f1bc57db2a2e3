package e2e

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/stretchr/testify/require"
)

// A closing session still gets input, and an endpoint gets anything.
func TestInputWhileClosing(t *testing.T) {
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		random := rand.New(rand.NewPCG(9, 9))
		ends := []netip.AddrPort{
			a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort(),
		}
		inject := func() {
			for range 2000 {
				p := make([]byte, random.IntN(120))
				for i := range p {
					p[i] = byte(random.Uint32())
				}
				if len(p) > 6 && random.IntN(2) == 0 {
					h := header{conv: a.Conv()}
					full := make([]byte, headerSize)
					h.encode(full)
					copy(p, full[:4])
					p[4] = byte(cmdPush + random.IntN(4))
				}
				i := random.IntN(2)
				w.net.Inject(ends[i], ends[1-i], p)
			}
			synctest.Wait()
		}
		inject()
		// What was injected may have poisoned this session, which has no
		// cipher; it must end all the same.
		go func() { _ = a.Close() }()
		synctest.Wait()
		inject()
		_ = b.Close()
		inject()
		time.Sleep(time.Minute)
		inject()
		require.Positive(t, l.Stats().DropShort)
		require.Positive(t, l.Stats().DropUnknown)
		require.Zero(t, l.Stats().Sessions)
	})
}

// A bad packet is counted by reason and leaves other sessions alone.
func TestBadPacketsAreCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort()
		good := header{conv: a.Conv(), cmd: cmdWins, wnd: 100}
		bad := func(change func(h *header), tail ...byte) []byte {
			h := good
			change(&h)
			p := make([]byte, headerSize)
			h.encode(p)
			return append(p, tail...)
		}
		second := make([]byte, 2*headerSize)
		good.encode(second)
		other := header{conv: a.Conv() + 1, cmd: cmdWins}
		other.encode(second[headerSize:])
		for _, p := range [][]byte{
			bad(func(h *header) { h.len = 1 }),
			bad(func(h *header) { h.cmd = 88 }),
			bad(func(h *header) { h.una = 1000 }),
			second,
			make([]byte, 23),
			bad(func(h *header) { h.conv++ }),
			{},
		} {
			w.net.Inject(from, to, p)
		}
		w.settle()
		require.Equal(t, kcp.Drops{Length: 1, Command: 1, Una: 1, Conv: 1}, b.Stats().Dropped)
		require.Equal(t, uint64(2), l.Stats().DropShort)
		require.Equal(t, uint64(1), l.Stats().DropUnknown)
		data := content(1, 100000)
		send(t, a, data)
		receive(t, b, data)
	})
}

// A peer that has vanished shows as a typed error of Read and Write.
func TestVanishedPeer(t *testing.T) {
	inWorld(t, 12, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&kcp.Config{PeerTimeout: 10 * time.Second, WriteBuffer: 10000}, nil)
		time.Sleep(time.Second) // else the silence may have begun before
		w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
		start := time.Now()
		read := make(chan error)
		go func() {
			_, err := a.Read(make([]byte, 1))
			read <- err
		}()
		n, err := a.Write(make([]byte, 1<<20)) // more than is buffered: blocks
		require.Less(t, n, 1<<20)
		for _, err := range []error{err, <-read} {
			var lost *kcp.PeerLostError
			require.ErrorAs(t, err, &lost)
			require.False(t, lost.Idle)
			require.GreaterOrEqual(t, lost.Silence, 10*time.Second)
		}
		require.GreaterOrEqual(t, time.Since(start), 10*time.Second)
		require.Less(t, time.Since(start), 11*time.Second)
		_, err = a.Write([]byte("x"))
		require.ErrorAs(t, err, new(*kcp.PeerLostError))
		require.NoError(t, a.Close())
	})
}

// DeadLink ends a silent session after so many transmissions.
func TestDeadLink(t *testing.T) {
	inWorld(t, 12, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&kcp.Config{DeadLink: 5, PeerTimeout: -1}, nil)
		time.Sleep(time.Second) // nothing is in flight
		w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		_, err = a.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*kcp.PeerLostError))
		require.EqualValues(t, 4, a.Stats().TimeoutRetransmits)
	})
}

// Retransmissions alone, while the peer is heard, do not end a session.
func TestBusyLinkLives(t *testing.T) {
	long(t)
	inWorld(t, 12, clean, func(t *testing.T, w *world) {
		cfg := &kcp.Config{DeadLink: 20, PeerTimeout: 30 * time.Second}
		a, b, _ := w.pair(cfg, nil)
		// One segment is lost 60 times over while everything else passes.
		lost := 0
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			for from == a.LocalAddr().(*net.UDPAddr).AddrPort() && len(p) >= headerSize {
				h := decodeHeader(p)
				if h.cmd == cmdPush && h.sn == 1 {
					lost++
					return lost > 60
				}
				p = p[headerSize+h.len:]
			}
			return true
		})
		want := content(12, 50000)
		stop := make(chan struct{})
		defer close(stop)
		go func() { // b keeps talking
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					if _, err := b.Write([]byte("still here")); err != nil {
						t.Error(err)
					}
				}
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, a) }()
		send(t, a, want)
		receive(t, b, want)
		require.Greater(t, lost, 60)
		require.Greater(t, a.Stats().Retransmits(), uint64(50))
	})
}

// What was written before Close arrives, with losses too.
func TestWriteThenClose(t *testing.T) {
	for seed := range uint64(5) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			cfg := kcp.LowLatency()
			cfg.Linger = time.Minute
			a, b, _ := w.pair(&cfg, &cfg)
			want := content(seed, 1<<20)
			done := make(chan error)
			go func() {
				_, err := a.Write(want)
				done <- errors.Join(err, a.Close())
			}()
			receive(t, b, want)
			require.NoError(t, <-done)
		})
	}
}

// Close does not wait for ever, and says what was not delivered.
func TestLingerIsBounded(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&kcp.Config{Linger: 3 * time.Second}, nil)
		time.Sleep(time.Second)
		w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
		_, err := a.Write([]byte("nobody will read this"))
		require.NoError(t, err)
		start := time.Now()
		require.ErrorIs(t, a.Close(), kcp.ErrNotDelivered)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, a.Close(), net.ErrClosed)
	})
}

// A full backlog creates no sessions, and who waits gets in when there is room.
func TestFullBacklog(t *testing.T) {
	inWorld(t, 23, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Backlog: 2})
		e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{DialTimeout: -1})
		const clients = 10
		for i := range clients {
			c := w.dial(e)
			_, err := c.Write([]byte{byte(i)})
			require.NoError(t, err)
		}
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 2, l.Stats().Backlog)
		require.Equal(t, clients-2, l.Stats().HalfOpen)
		seen := make(map[byte]bool)
		for range clients {
			c, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			b := make([]byte, 2)
			n, err := c.Read(b)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			seen[b[0]] = true
		}
		require.Len(t, seen, clients)
		require.Equal(t, clients, l.Stats().Sessions)
	})
}

// Two packets that open the same conversation make one session.
func TestOneSessionPerConversation(t *testing.T) {
	inWorld(t, 23, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		to := l.Addr().(*net.UDPAddr).AddrPort()
		from := netip.MustParseAddrPort("10.0.0.9:9")
		for range 2 {
			for sn := uint32(3); sn < 10; sn-- { // the first packet comes last
				w.net.Inject(from, to, push(sn, 0, "x"))
				w.net.Inject(from, to, push(sn, 0, "x"))
			}
		}
		c, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, c, []byte("xxxx"))
		require.Equal(t, 1, l.Stats().Sessions)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = l.AcceptKCP(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Sessions share a PacketConn, dialled and accepted; each gets its own
// packets, and one that was closed takes none of them.
func TestSharedPacketConn(t *testing.T) {
	inWorld(t, 24, lossy, func(t *testing.T, w *world) {
		cfg := kcp.LowLatency()
		l := w.listen(&cfg)
		e, pc := w.endpoint("10.0.0.2:7000", &cfg)
		var clients, servers []*kcp.Conn
		for i := range 8 {
			c := w.dial(e)
			clients = append(clients, c)
			_, err := c.Write([]byte{byte(i)})
			require.NoError(t, err)
		}
		byFirst := make(map[byte]*kcp.Conn)
		for range clients {
			s, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			first := make([]byte, 1)
			_, err = io.ReadFull(s, first)
			require.NoError(t, err)
			byFirst[first[0]] = s
		}
		for i := range clients {
			servers = append(servers, byFirst[byte(i)])
		}
		require.NoError(t, clients[3].Close())
		require.NoError(t, servers[5].Close())
		for i := range clients {
			if i == 3 || i == 5 {
				continue
			}
			up, down := content(uint64(i), 50000), content(uint64(100+i), 50000)
			send(t, clients[i], up)
			send(t, servers[i], down)
			receive(t, servers[i], up)
			receive(t, clients[i], down)
		}

		// The PacketConn is its owner's again when the endpoint is closed.
		require.NoError(t, e.Close())
		time.Sleep(time.Second) // stragglers
		for pc.SetReadDeadline(time.Now().Add(time.Millisecond)) == nil {
			if _, _, err := pc.ReadFrom(make([]byte, 10)); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
		require.NoError(t, pc.SetReadDeadline(time.Time{}))
		w.net.Inject(netip.MustParseAddrPort("10.0.0.9:9"), pc.AddrPort(), []byte("yours"))
		b := make([]byte, 10)
		n, _, err := pc.ReadFrom(b)
		require.NoError(t, err)
		require.Equal(t, "yours", string(b[:n]))
	})
}

// Errors of the socket concern one packet; sessions and listener go on.
func TestSocketErrors(t *testing.T) {
	inWorld(t, 25, clean, func(t *testing.T, w *world) {
		server, serverPC := w.endpoint(serverAddr, nil)
		l, err := server.Listen()
		require.NoError(t, err)
		client, clientPC := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(client)
		want := content(25, 200000)
		send(t, a, want[:40000])
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		fail := []error{syscall.ECONNREFUSED, syscall.ENOBUFS, syscall.EPERM, errors.New("10052")}
		receive(t, b, want[:40000])
		for i, err := range fail {
			serverPC.FailReads(err, 20)
			clientPC.FailReads(err, 20)
			serverPC.FailWrites(err, 5)
			clientPC.FailWrites(err, 5)
			send(t, a, want[40000*(i+1):40000*(i+2)])
			receive(t, b, want[40000*(i+1):40000*(i+2)])
			time.Sleep(time.Second)
		}
		require.GreaterOrEqual(t, l.Stats().ReadErrors, uint64(20*len(fail)-20))
		// What is left over would only delay the next dial.
		serverPC.FailReads(nil, 0)
		clientPC.FailReads(nil, 0)
		serverPC.FailWrites(nil, 0)
		clientPC.FailWrites(nil, 0)
		c := w.dial(client)
		send(t, c, want[:10])
		b2, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, b2, want[:10])
	})
}

// A closed socket is another matter: everything on it ends.
func TestClosedSocketEndsSessions(t *testing.T) {
	inWorld(t, 25, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, &kcp.Config{DialTimeout: -1})
		require.NoError(t, err)
		l, err := e.Listen()
		require.NoError(t, err)
		c, err := e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 3), Port: 1})
		require.NoError(t, err)
		require.NoError(t, pc.Close())
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = e.Dial(context.Background(), pc.LocalAddr())
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, e.Close(), net.ErrClosed)
	})
}

// Deadlines: each direction has its own, setting one wakes a blocked call, one
// that has passed beats data that is there, and errors are net.Errors.
func TestDeadlines(t *testing.T) {
	inWorld(t, 26, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{WriteBuffer: 5000}, &kcp.Config{ReceiveWindow: 128})
		start := time.Now()
		require.NoError(t, a.SetReadDeadline(start.Add(time.Second)))
		_, err := a.Read(make([]byte, 1))
		requireTimeout(t, err)
		require.Equal(t, time.Second, time.Since(start))

		// The passed read deadline does not concern Write.
		_, err = a.Write([]byte("hello"))
		require.NoError(t, err)

		// Write has its own, and reports what it queued.
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Minute)))
		start = time.Now()
		n, err := a.Write(make([]byte, 1<<20)) // b does not read
		requireTimeout(t, err)
		require.Equal(t, time.Minute, time.Since(start))
		require.Positive(t, n)
		require.Less(t, n, 1<<20)

		// A passed deadline beats data.
		require.NoError(t, b.SetReadDeadline(time.Now().Add(-time.Second)))
		_, err = b.Read(make([]byte, 1))
		requireTimeout(t, err)
		require.NoError(t, b.SetReadDeadline(time.Time{}))
		receive(t, b, []byte("hello"))

		// Setting a deadline wakes calls in progress; setting it again in
		// time keeps them waiting.
		require.NoError(t, a.SetDeadline(time.Time{}))
		errs := make(chan error)
		go func() {
			_, err := a.Read(make([]byte, 1))
			errs <- err
		}()
		synctest.Wait()
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
		time.Sleep(999 * time.Millisecond)
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Hour)))
		time.Sleep(time.Minute)
		start = time.Now()
		require.NoError(t, a.SetDeadline(time.Now()))
		requireTimeout(t, <-errs)
		require.Equal(t, start, time.Now())
	})
}

// A huge Write does not end up in memory.
func TestHugeWrite(t *testing.T) {
	long(t)
	inWorld(t, 27, clean, func(t *testing.T, w *world) {
		const buffer = 256 << 10
		a, b, _ := w.pair(&kcp.Config{SendWindow: 32, WriteBuffer: buffer, CongestionControl: congestion.NewNone}, nil)
		want := content(27, 8<<20)
		most := 0
		w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return true })
		done := make(chan error)
		go func() {
			_, err := a.Write(want)
			done <- err
		}()
		for rest := want; len(rest) > 0; rest = rest[len(want)/64:] {
			receive(t, b, rest[:len(want)/64])
			s := a.Stats()
			most = max(most, s.WriteBuffered)
			require.LessOrEqual(t, s.InFlight, 32)
		}
		require.NoError(t, <-done)
		require.LessOrEqual(t, most, buffer+1400)
		require.Greater(t, most, buffer/2)
	})
}

// Dial and Write succeed with no server there; the error comes when the peer
// has not answered for PeerTimeout.
func TestNoServer(t *testing.T) {
	inWorld(t, 29, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{PeerTimeout: 5 * time.Second, DialTimeout: -1})
		start := time.Now()
		c := w.dial(e)
		_, err := c.Write([]byte("anybody?"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		var lost *kcp.PeerLostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, 5*time.Second, time.Since(start))
		_, err = c.Write([]byte("anybody?"))
		require.ErrorAs(t, err, &lost)
		require.Zero(t, e.Stats().Sessions)
	})
}

// IdleTimeout ends a session on which nothing comes, with nothing outstanding.
func TestIdleTimeout(t *testing.T) {
	inWorld(t, 29, clean, func(t *testing.T, w *world) {
		_, b, l := w.pair(nil, &kcp.Config{IdleTimeout: time.Minute})
		start := time.Now()
		_, err := b.Read(make([]byte, 1))
		var lost *kcp.PeerLostError
		require.ErrorAs(t, err, &lost)
		require.True(t, lost.Idle)
		require.InDelta(t, time.Minute, time.Since(start), float64(time.Second))
		require.Zero(t, l.Stats().Sessions)
	})
}
