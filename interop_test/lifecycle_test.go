package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// What the application sees when a peer, ours or kcp-go, is not there, goes
// away, comes back or closes. The times are limits of the tests only; the root
// package has the same between ends of ours in virtual time, to the millisecond.

// lost20 loses every fifth packet.
var lost20 = path{name: "20 % loss", relay: true, link: netsim.LinkConfig{
	Delay: 10 * time.Millisecond, Jitter: 10 * time.Millisecond, Loss: 0.20,
}}

var lifeTuning = tuning{512, 1400, nodelay | resend | nc}

// peers are the implementations at the other end.
var peers = []implementation{ours{}, theirs{}}

// lifeConfig is how our end is set in these tests.
func lifeConfig() *kcp.Config {
	c := ours{}.config(lifeTuning)
	c.DialTimeout, c.PeerTimeout = timeLimit, timeLimit
	return c
}

// Nobody is there: the system says so, and Dial with it.
func TestLifeDialNobody(t *testing.T) {
	// A socket connected elsewhere keeps the port from other programs, and the
	// system refuses what others send to it as if it were closed.
	elsewhere := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
	socket, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, elsewhere)
	require.NoError(t, err)
	defer socket.Close()
	address := socket.LocalAddr().String()
	err = func() error {
		_, err := kcp.Dial("udp", address, lifeConfig())
		return err
	}()
	require.ErrorIs(t, err, kcp.ErrRefused)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// The peer's socket is open, but its process is stopped.
func TestLifeDialStopped(t *testing.T) {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer socket.Close()
	err = func() error {
		config := lifeConfig()
		config.DialTimeout = time.Second
		_, err := kcp.Dial("udp", socket.LocalAddr().String(), config)
		return err
	}()
	require.ErrorAs(t, err, new(*kcp.NoAnswerError))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// lives calls f for a session between ours and every peer, either dialling.
func lives(t *testing.T, path path, f func(t *testing.T, n *session, us, peer end)) {
	for _, peer := range peers {
		plans := bothWays(party{ours{}, lifeTuning}, party{peer, lifeTuning}, path)
		if peer == (ours{}) {
			plans = plans[:1]
		}
		for _, p := range plans {
			t.Run(fmt.Sprintf("%v/%v dials", peer, p.dialler.implementation), func(t *testing.T) {
				t.Parallel()
				n := open(t, p)
				if _, ok := n.accepted.(ourEnd); ok && peer == (theirs{}) {
					f(t, n, n.accepted, n.dialled)
				} else {
					f(t, n, n.dialled, n.accepted)
				}
			})
		}
	}
}

// All that was written before Close arrives, where every fifth packet is lost,
// and one of ours is told where the end is.
func TestLifeWriteThenClose(t *testing.T) {
	lives(t, lost20, func(t *testing.T, n *session, us, peer end) {
		type result struct {
			sum digest
			err error
		}
		sent := make(chan result, 1)
		go func() {
			sum, err := send(us, n.seed, closeBytes)
			sent <- result{sum, errors.Join(err, us.Close())}
		}()
		got, err := receive(peer, closeBytes)
		n.check(err)
		if _, ok := peer.(ourEnd); ok {
			_, err := peer.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			_, err = peer.Write([]byte("x"))
			require.ErrorIs(t, err, kcp.ErrPeerClosed)
		}
		r := <-sent
		n.check(r.err)
		require.Equal(t, r.sum, got)
	})
}

// One of ours reads to the end and goes on writing; a legacy peer cannot be
// told, and the session goes on as if nobody had asked.
func TestLifeHalfClose(t *testing.T) {
	lives(t, lost20, func(t *testing.T, n *session, us, peer end) {
		known := func() bool { return us.(ourEnd).Peer().Known }
		await.True(t, known)
		err := us.(ourEnd).CloseWrite()
		if _, legacy := peer.(theirEnd); legacy {
			require.ErrorIs(t, err, kcp.ErrLegacyPeer)
			require.True(t, us.(ourEnd).Peer().Legacy)
			n.check(n.transfer(100 * kB))
			n.settle()
			return
		}
		require.NoError(t, err)
		_, err = peer.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		_, err = us.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		sum := make(chan digest, 1)
		go func() {
			s, err := send(peer, n.seed, 100*kB)
			if err != nil {
				t.Error(err)
			}
			sum <- s
		}()
		got, err := receive(us, 100*kB)
		n.check(err)
		require.Equal(t, <-sum, got)
		n.check(peer.Close())
		_, err = us.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

// The peer is gone in the middle of a transfer: Read and Write say so.
func TestLifePeerKilled(t *testing.T) {
	for _, peer := range peers {
		t.Run(peer.String(), func(t *testing.T) {
			t.Parallel()
			l, err := peer.listen(lifeTuning)
			require.NoError(t, err)
			defer l.Close()
			relay, err := netsim.NewRelay(l.address(), netsim.LinkConfig{}, netsim.LinkConfig{}, caseSeed(t))
			require.NoError(t, err)
			config := lifeConfig()
			config.PeerTimeout = slowdown * 5 * time.Second
			c, err := kcp.Dial("udp", relay.Addr().String(), config)
			require.NoError(t, err)
			defer c.Abort()
			_, err = c.Write([]byte("hello"))
			require.NoError(t, err)
			e, err := l.accept(time.Now().Add(timeLimit))
			require.NoError(t, err)
			if o, ok := e.(ourEnd); ok {
				defer o.Abort()
			} else {
				defer e.Close()
			}
			go func() { _, _ = io.Copy(io.Discard, e) }()
			written := make(chan error, 1)
			go func() {
				_, err := c.Write(make([]byte, 1<<30))
				written <- err
			}()
			time.AfterFunc(100*time.Millisecond, func() { _ = relay.Close() })
			for _, err := range []error{
				func() error { _, err := c.Read(make([]byte, 1)); return err }(),
				func() error { return <-written }(),
			} {
				require.ErrorAs(t, err, new(*kcp.PeerLostError))
			}
		})
	}
}

// The peer is restarted on its port and knows of nothing. Ours says so at once;
// of a kcp-go it shows in what it acknowledges, which is less than before.
func TestLifePeerRestarted(t *testing.T) {
	relisten := func(t *testing.T, peer implementation, address string) io.Closer {
		var l io.Closer
		var err error
		if peer == (ours{}) {
			l, err = kcp.Listen("udp", address, lifeConfig())
		} else {
			l, err = kcpgo.ListenWithOptions(address, nil, 0, 0)
		}
		require.NoError(t, err)
		return l
	}
	for _, peer := range peers {
		t.Run(peer.String(), func(t *testing.T) {
			t.Parallel()
			l, err := peer.listen(lifeTuning)
			require.NoError(t, err)
			config := lifeConfig()
			config.KeepAlive = time.Second
			c, err := kcp.Dial("udp", l.address(), config)
			require.NoError(t, err)
			defer c.Abort()
			_, err = c.Write([]byte("hello"))
			require.NoError(t, err)
			e, err := l.accept(time.Now().Add(timeLimit))
			require.NoError(t, err)
			_, err = io.ReadFull(e, make([]byte, 5))
			require.NoError(t, err)
			await.True(t, func() bool { return c.Stats().WriteBuffered == 0 })
			if o, ok := l.(ourListener); ok {
				_ = o.Endpoint().Close()
			} else {
				_ = l.Close()
				_ = e.Close()
			}
			defer relisten(t, peer, l.address()).Close()
			go func() {
				for err := error(nil); err == nil; time.Sleep(50 * time.Millisecond) {
					_, err = c.Write(make([]byte, 1000))
				}
			}()
			err = func() error { _, err := c.Read(make([]byte, 1)); return err }()
			require.ErrorIs(t, err, kcp.ErrReset)
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

// A client is killed and comes back from the same port: it is served at once.
func TestLifeReconnect(t *testing.T) {
	exchangeOne := func(t *testing.T, dialled net.Conn, l listener) {
		deadline := time.Now().Add(timeLimit)
		require.NoError(t, dialled.SetDeadline(deadline))
		sum := make(chan digest, 1)
		go func() {
			s, err := send(dialled, caseSeed(t), 100*kB)
			if err != nil {
				t.Error(err)
			}
			sum <- s
		}()
		e, err := l.accept(deadline)
		require.NoError(t, err)
		if o, ok := e.(ourEnd); ok { // a killed client acknowledges nothing
			t.Cleanup(func() { _ = o.Abort() })
		} else {
			t.Cleanup(func() { _ = e.Close() })
		}
		got, err := receive(e, 100*kB)
		require.NoError(t, err)
		require.Equal(t, <-sum, got)
		_, err = e.Write([]byte("bye"))
		require.NoError(t, err)
		_, err = io.ReadFull(dialled, make([]byte, 3))
		require.NoError(t, err)
	}
	for _, peer := range peers {
		t.Run("ours dials "+peer.String(), func(t *testing.T) {
			l, err := peer.listen(lifeTuning)
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			remote, err := net.ResolveUDPAddr("udp4", l.address())
			require.NoError(t, err)
			local := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
			for range 3 {
				socket, err := net.ListenUDP("udp4", local)
				require.NoError(t, err)
				local = socket.LocalAddr().(*net.UDPAddr)
				e, err := kcp.NewEndpoint(socket, lifeConfig())
				require.NoError(t, err)
				c, err := e.Dial(context.Background(), remote)
				require.NoError(t, err)
				exchangeOne(t, c, l)
				require.NoError(t, socket.Close()) // as if killed: no word to the peer
			}
		})
	}
	t.Run("kcp-go dials ours", func(t *testing.T) {
		l, err := ours{}.listen(lifeTuning)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		local := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
		for range 3 {
			socket, err := net.ListenUDP("udp4", local)
			require.NoError(t, err)
			local = socket.LocalAddr().(*net.UDPAddr)
			s, err := kcpgo.NewConn(l.address(), nil, 0, 0, socket)
			require.NoError(t, err)
			require.NoError(t, theirs{}.tune(s, lifeTuning))
			exchangeOne(t, s, l)
			require.NoError(t, s.Close())
			require.NoError(t, socket.Close())
		}
	})
}

// A listener whose backlog is full lets nobody in until there is room.
func TestLifeBacklogFull(t *testing.T) {
	for _, peer := range peers {
		t.Run("ours dials "+peer.String(), func(t *testing.T) {
			backlog := 2
			var address string
			full := func() bool { return true } // as soon as Dial has returned
			if peer == (ours{}) {
				config := lifeConfig()
				config.Backlog = backlog
				l, err := kcp.Listen("udp", "127.0.0.1:0", config)
				require.NoError(t, err)
				defer l.Close()
				address = l.Addr().String()
				full = func() bool { return l.Stats().Backlog == backlog }
			} else {
				backlog = 128 // of kcp-go, which has no setting for it
				l, err := kcpgo.ListenWithOptions("127.0.0.1:0", nil, 0, 0)
				require.NoError(t, err)
				defer l.Close()
				address = l.Addr().String()
			}
			for range backlog {
				c, err := kcp.Dial("udp", address, lifeConfig())
				require.NoError(t, err)
				defer c.Abort()
			}
			await.True(t, full)
			config := lifeConfig()
			config.DialTimeout = time.Second
			_, err := kcp.Dial("udp", address, config)
			require.ErrorAs(t, err, new(*kcp.NoAnswerError))
		})
	}
	t.Run("kcp-go dials ours", func(t *testing.T) {
		config := lifeConfig()
		config.Backlog = 2
		l, err := kcp.Listen("udp", "127.0.0.1:0", config)
		require.NoError(t, err)
		defer l.Close()
		seen := make(map[byte]bool)
		for i := range 5 {
			s, err := kcpgo.DialWithOptions(l.Addr().String(), nil, 0, 0)
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, theirs{}.tune(s, lifeTuning))
			_, err = s.Write([]byte{byte(i)})
			require.NoError(t, err)
		}
		require.NoError(t, l.SetDeadline(time.Now().Add(timeLimit)))
		for range 5 {
			c, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			defer c.Abort()
			b := make([]byte, 1)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(timeLimit)))
			_, err = io.ReadFull(c, b)
			require.NoError(t, err)
			seen[b[0]] = true
		}
		require.Len(t, seen, 5)
	})
}

// Both dial each other at once: with two of ours there are two sessions.
// kcp-go's sockets either dial or listen.
func TestLifeSimultaneousOpen(t *testing.T) {
	var ends [2]*kcp.Endpoint
	var listeners [2]*kcp.Listener
	for i := range ends {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer socket.Close()
		ends[i], err = kcp.NewEndpoint(socket, lifeConfig())
		require.NoError(t, err)
		defer ends[i].Close()
		listeners[i], err = ends[i].Listen()
		require.NoError(t, err)
	}
	dialled := make(chan error, 2)
	for i := range ends {
		go func() {
			c, err := ends[i].Dial(context.Background(), ends[1-i].LocalAddr())
			if err == nil {
				_, err = c.Write([]byte{byte(i)})
			}
			dialled <- err
		}()
	}
	for range ends {
		require.NoError(t, <-dialled)
	}
	for i, l := range listeners {
		require.NoError(t, l.SetDeadline(time.Now().Add(timeLimit)))
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(timeLimit)))
		b := make([]byte, 1)
		_, err = io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, byte(1-i), b[0])
	}
}
