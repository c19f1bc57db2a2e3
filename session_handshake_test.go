package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What the application sees of a peer that does not behave, and when. Both ends
// are ours and time is virtual, so the times are exact; interop_test has the
// same with kcp-go in real time.

// roundTrip is that of the link clean.
const roundTrip = 20 * time.Millisecond

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// The system tells a connected socket once that nobody listens, in answer to
// whichever call comes next: it may be a write.
func TestDialRefusedOnWrite(t *testing.T) {
	inWorld(t, 29, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:0", nil)
		e.socket.connected = true
		pc.FailWrites(syscall.ECONNREFUSED, 1)
		start := time.Now()
		_, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.ErrorIs(t, err, ErrRefused)
		require.Zero(t, time.Since(start))
		require.Zero(t, e.Stats().Sessions)
	})
}

// A socket that this package has opened stays for a while, to answer a peer that
// has not had the last answer; longer where packets get lost.
func TestSocketIsHeldForThePeer(t *testing.T) {
	for link, want := range map[netsim.LinkConfig]time.Duration{
		clean: 4 * 200 * time.Millisecond, lossy: 1500 * time.Millisecond,
	} {
		inWorld(t, 1, link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			send(t, a, content(1, 100_000))
			receive(t, b, content(1, 100_000))
			hold := func(c *Conn) time.Duration {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.holdSocket()
			}
			require.Zero(t, hold(b), "it has said nothing yet")
			require.NoError(t, a.CloseWrite())
			receive(t, b, nil)
			_, err := b.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.Equal(t, want, hold(b), "without samples the time-out is 200 ms")
		})
	}
}

// All that was written before Close arrives, at 20 % loss, then io.EOF; Close
// knows it, and both sides are rid of the session.
func TestCloseDelivers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			cfg := &Config{Linger: time.Minute}
			a, b, l := w.pair(cfg, cfg)
			want := content(seed, 1<<20)
			closed := make(chan error, 1)
			go func() {
				_, err := a.Write(want)
				closed <- errors.Join(err, a.Close())
			}()
			receive(t, b, want)
			n, err := b.Read(make([]byte, 1))
			require.Zero(t, n)
			require.Equal(t, io.EOF, err)
			require.NoError(t, <-closed)
			_, err = b.Write([]byte("x"))
			require.ErrorIs(t, err, ErrPeerClosed)
			require.ErrorIs(t, err, syscall.EPIPE)
			require.NoError(t, b.Close())
			synctest.Wait() // the last calls of both endpoints
			require.Zero(t, l.Stats().Sessions)
			require.Zero(t, a.ep.Stats().Sessions)
		})
	}
}

// CloseWrite ends one direction; the other goes on for as long as it likes.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, l := w.pair(nil, nil)
			up, down := content(seed, 200000), content(seed+1, 300000)
			_, err := a.Write(up)
			require.NoError(t, err)
			require.NoError(t, a.CloseWrite())
			require.ErrorIs(t, a.CloseWrite(), net.ErrClosed)
			_, err = a.Write([]byte("x"))
			require.ErrorIs(t, err, net.ErrClosed)
			receive(t, b, up)
			_, err = b.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)

			time.Sleep(time.Hour) // nobody takes it for dead
			send(t, b, down)
			receive(t, a, down)
			require.NoError(t, b.CloseWrite())
			_, err = a.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			time.Sleep(time.Minute)
			require.Zero(t, l.Stats().Sessions)
			require.Zero(t, a.ep.Stats().Sessions)
		})
	}
}

// Close says that what was written is lost, where nothing else has.
func TestCloseAfterTheEnd(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		for _, told := range []bool{true, false} {
			inWorld(t, 21, clean, func(t *testing.T, w *world) {
				a, pc := w.firstLife(5000, true)
				if restarted {
					w.restarted(pc, nil)
				} else {
					require.NoError(t, pc.Close())
				}
				_, err := a.Write(content(2, 10000))
				require.NoError(t, err)
				time.Sleep(time.Minute)
				lost := func(err error) {
					if restarted {
						require.ErrorIs(t, err, ErrReset)
					} else {
						require.ErrorAs(t, err, new(*PeerLostError))
					}
				}
				if told {
					_, err := a.Read(make([]byte, 1))
					lost(err)
					require.NoError(t, a.Close())
				} else {
					lost(a.Close())
				}
				require.ErrorIs(t, a.Close(), net.ErrClosed)
			})
		}
	}
}

// restarted replaces the server's endpoint by another on the same port, which
// knows nothing.
func (w *world) restarted(pc *netsim.PacketConn, config *Config) *Listener {
	require.NoError(w.t, pc.Close())
	return w.listen(config)
}

// firstLife opens a server that is going to be restarted, and a session with it
// that has moved n bytes up and one down if answers is true.
func (w *world) firstLife(n int, answers bool) (a *Conn, pc *netsim.PacketConn) {
	l, pc := w.server(nil)
	e, _ := w.endpoint("10.0.0.2:5000", nil)
	a = w.dial(e)
	data := content(1, n)
	send(w.t, a, data)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	receive(w.t, b, data)
	if answers {
		send(w.t, b, []byte("x"))
		receive(w.t, a, []byte("x"))
	}
	time.Sleep(time.Second)
	return a, pc
}

// The server is restarted on its port. A client that writes learns of it soon,
// however little the old server has said, and nothing of the old session is
// taken for a new one; a client that does not write learns of it with the next
// sign of life.
func TestServerRestarted(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		for _, n := range []int{1, 5000, 5 << 20} {
			if repeated() && n > 5000 {
				continue
			}
			for _, closes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v %d %v", answers, n, closes), func(t *testing.T) {
					inWorld(t, 22, clean, func(t *testing.T, w *world) {
						a, pc := w.firstLife(n, answers)
						l := w.restarted(pc, nil)
						start := time.Now()
						_, err := a.Write(content(2, 10000))
						require.NoError(t, err)
						if closes {
							require.ErrorIs(t, a.Close(), ErrReset)
							require.Equal(t, roundTrip, time.Since(start))
						} else {
							_, err = a.Read(make([]byte, 1))
							require.ErrorIs(t, err, ErrReset)
							require.Equal(t, liveness.ProbeAfter+roundTrip, time.Since(start))
						}
						ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
						defer cancel()
						_, err = l.AcceptKCP(ctx)
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.Zero(t, l.Stats().Sessions)
					})
				})
			}
		}
		inWorld(t, 22, clean, func(t *testing.T, w *world) {
			a, pc := w.firstLife(5000, answers)
			heard := time.Now().Add(roundTrip/2 - time.Second)
			w.restarted(pc, nil)
			_, err := a.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrReset)
			require.InDelta(t, 25*time.Second, time.Since(heard), float64(2*roundTrip))
		})
	}
}

// The client is restarted and comes back from the same port: it is served at
// once, and the session it has forgotten ends when the server writes, or asks
// for a sign of life.
func TestClientReconnects(t *testing.T) {
	for _, writes := range []bool{true, false} {
		inWorld(t, 22, clean, func(t *testing.T, w *world) {
			l := w.listen(nil)
			old, pc := w.endpoint("10.0.0.2:5000", nil)
			a := w.dial(old)
			send(t, a, []byte("first"))
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			receive(t, b, []byte("first"))
			heard := time.Now()
			time.Sleep(time.Second)
			require.NoError(t, pc.Close()) // no word to the server

			again, _ := w.endpoint("10.0.0.2:5000", nil)
			start := time.Now()
			a2 := w.dial(again)
			require.Equal(t, roundTrip, time.Since(start))
			want := content(22, 100000)
			send(t, a2, want)
			b2, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			receive(t, b2, want)
			require.Equal(t, 2, l.Stats().Sessions)

			wait := 25 * time.Second * 3 / 2 // the accepting side waits longer
			if writes {
				heard, wait = time.Now(), liveness.ProbeAfter
				send(t, b, []byte("are you still there?"))
			}
			_, err = b.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrReset)
			require.InDelta(t, wait, time.Since(heard), float64(2*roundTrip))
			require.Equal(t, 1, l.Stats().Sessions)
			send(t, b2, want)
			receive(t, a2, want)
		})
	}
}

// Both ends dial each other at once. Conversations of their own make it two
// sessions; the same conversation, which chance alone can bring about, is one.
func TestSimultaneousOpen(t *testing.T) {
	for seed := range fewer(20) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			ends := [2]*Endpoint{}
			addrs := [2]*net.UDPAddr{udpAddr("10.0.0.1:4000"), udpAddr("10.0.0.2:5000")}
			for i, addr := range addrs {
				ends[i], _ = w.endpoint(addr.String(), nil)
				_, err := ends[i].Listen()
				require.NoError(t, err)
			}
			dialled := make(chan *Conn, 2)
			for i := range ends {
				go func() {
					to := addrs[1-i]
					c, err := ends[i].openSession(sessionKey{Addr: to.AddrPort(), Conv: 77}, to, false)
					if err == nil {
						err = c.connect(context.Background(), ends[i].now())
					}
					if err != nil {
						t.Error(err)
					}
					dialled <- c
				}()
			}
			a, b := <-dialled, <-dialled
			if t.Failed() {
				return
			}
			up, down := content(seed, 50000), content(seed+1, 50000)
			for _, s := range []struct {
				from, to *Conn
				data     []byte
			}{{a, b, up}, {b, a, down}} {
				send(t, s.from, s.data)
				receive(t, s.to, s.data)
			}
			require.Equal(t, 1, ends[0].Stats().Sessions)
			require.Equal(t, 1, ends[1].Stats().Sessions)
			require.False(t, a.Peer().Legacy)
			closed := make(chan error, 1)
			go func() { closed <- a.Close() }()
			_, err := b.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, <-closed)
			require.NoError(t, b.Close())
		})
	}
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		x, _ := w.endpoint("10.0.0.1:4000", nil)
		y, _ := w.endpoint("10.0.0.2:5000", nil)
		lx, err := x.Listen()
		require.NoError(t, err)
		ly, err := y.Listen()
		require.NoError(t, err)
		dialled := make(chan *Conn, 1)
		go func() {
			c, err := y.Dial(context.Background(), x.LocalAddr())
			if err != nil {
				t.Error(err)
			}
			dialled <- c
		}()
		a, err := x.Dial(context.Background(), y.LocalAddr())
		require.NoError(t, err)
		c := <-dialled
		b, err := ly.AcceptKCP(context.Background())
		require.NoError(t, err)
		d, err := lx.AcceptKCP(context.Background())
		require.NoError(t, err)
		for _, s := range [][2]*Conn{{a, b}, {b, a}, {c, d}, {d, c}} {
			want := content(uint64(s[0].Conv()), 10000)
			send(t, s[0], want)
			receive(t, s[1], want)
		}
	})
}

// A listener's socket outlives the listener and its last session for as long as
// a peer may not have heard that everything has arrived.
func TestListenerLeavesPolitely(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		l, err := e.Listen()
		require.NoError(t, err)
		client, _ := w.endpoint("10.0.0.2:5000", nil)
		a := w.dial(client)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		w.dial(client) // and never accepted
		time.Sleep(time.Second)
		var heard atomic.Bool
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			return heard.Load() || from.String() != serverAddr
		})
		_, err = a.Write([]byte("bye"))
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		receive(t, b, []byte("bye"))
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
		time.Sleep(time.Millisecond)
		heard.Store(true)
		require.NoError(t, <-closed)
		time.Sleep(time.Minute)
		e.mu.Lock()
		defer e.mu.Unlock()
		require.True(t, e.closed)
	})
}
