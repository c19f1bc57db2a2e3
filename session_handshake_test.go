package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What the application sees of a peer that does not behave, and when. Both ends
// are ours and time is virtual, so the times are exact; interop_test has the
// same with kcp-go in real time.

// roundTrip is that of the link clean.
const roundTrip = 20 * time.Millisecond

func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// Nobody answers, because there is no socket, or nobody who reads it: Dial says
// so at its time limit, whoever sets that, and leaves nothing behind.
func TestDialNobody(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		inWorld(t, 29, clean, func(w *world) {
			if stopped {
				pc, err := w.net.Listen(serverAddr)
				require.NoError(t, err)
				defer pc.Close()
			}
			e, _ := w.endpoint("10.0.0.2:0", &Config{DialTimeout: 6500 * time.Millisecond})
			start := time.Now()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr))
			var none *NoAnswerError
			require.ErrorAs(t, err, &none)
			require.Equal(t, 6500*time.Millisecond, none.Waited)
			require.Equal(t, 6500*time.Millisecond, time.Since(start))
			requireTimeout(t, err)
			require.ErrorIs(t, err, context.DeadlineExceeded)

			start = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_, err = e.Dial(ctx, udpAddr(serverAddr))
			require.ErrorAs(t, err, &none)
			require.Equal(t, 2*time.Second, time.Since(start))
			requireTimeout(t, err)

			ctx, cancel = context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			_, err = e.Dial(ctx, udpAddr(serverAddr))
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, errors.As(err, &none))
			require.Zero(t, e.Stats().Sessions)

			// The hello is repeated: at 0, 0.2 and 0.6 s, and then each half second.
			require.EqualValues(t, 14+5+3, e.Stats().PacketsSent)
		})
	}
}

// An endpoint that does not listen refuses, within a round trip.
func TestDialRefused(t *testing.T) {
	inWorld(t, 29, clean, func(w *world) {
		server, _ := w.endpoint(serverAddr, nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		start := time.Now()
		_, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, roundTrip, time.Since(start))
		require.Zero(t, server.Stats().Sessions)

		// Nor is anybody let in while the listener is closing down.
		l, err := server.Listen()
		require.NoError(t, err)
		c, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, ErrReset)
	})
}

// The system tells a connected socket once that nobody listens, in answer to
// whichever call comes next: it may be a write.
func TestDialRefusedOnWrite(t *testing.T) {
	inWorld(t, 29, clean, func(w *world) {
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
		inWorld(t, 1, link, func(w *world) {
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
	for seed := range uint64(5) {
		inWorld(t, seed, lossy, func(w *world) {
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
			require.Zero(t, l.Stats().Sessions)
			require.Zero(t, a.ep.Stats().Sessions)
		})
	}
}

// Close of a peer that reads takes a round trip and not more.
func TestCloseTakesARoundTrip(t *testing.T) {
	inWorld(t, 21, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		start := time.Now()
		_, err := a.Write([]byte("bye"))
		require.NoError(t, err)
		require.NoError(t, a.Close())
		require.Equal(t, roundTrip, time.Since(start))
		receive(t, b, []byte("bye"))
	})
}

// A PING that arrives before the WELCOME, since all of those were lost, does not
// make Dial return: the session would take its peer for one without signals, and
// Close would not tell it.
func TestPingBeforeWelcome(t *testing.T) {
	inWorld(t, 475, netsim.LinkConfig{Delay: 8 * time.Millisecond}, func(w *world) {
		start := time.Now()
		var pings atomic.Int32
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			at := time.Since(start)
			switch h := decodeHeader(p); signalCode(h.frg) {
			case sigPing:
				pings.Add(1)
			case sigHello:
				return at < 100*time.Millisecond || at > 4*time.Second
			case sigHello | sigAnswer:
				return at > 4*time.Second
			}
			return true
		})
		l := w.listen(&Config{KeepAlive: time.Second})
		e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: 20 * time.Second})
		a := w.dial(e)
		require.Positive(t, pings.Load())
		require.True(t, a.Peer().Known)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, a.Close())
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}

// CloseWrite ends one direction; the other goes on for as long as it likes.
func TestHalfClose(t *testing.T) {
	for seed := range uint64(5) {
		inWorld(t, seed, lossy, func(w *world) {
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

// The peer is killed in the middle of a transfer: PeerTimeout after its last
// sign of life Read and Write fail, on either side of it, and Close says that
// not all was delivered.
func TestPeerKilled(t *testing.T) {
	long(t)
	link := clean
	link.Rate, link.Queue = 10<<20, 1<<20 // or a second would be gigabytes
	for _, serverDies := range []bool{true, false} {
		inWorld(t, 12, link, func(w *world) {
			const patience = 8 * time.Second
			a, b, _ := w.pair(&Config{PeerTimeout: patience}, &Config{PeerTimeout: patience})
			stays, dies := a, b
			if !serverDies {
				stays, dies = b, a
			}
			go func() { _, _ = io.Copy(io.Discard, dies) }()
			var errs []error
			done := make(chan error)
			go func() {
				_, err := stays.Write(make([]byte, 1<<28))
				done <- err
			}()
			go func() {
				_, err := stays.Read(make([]byte, 1))
				done <- err
			}()
			time.Sleep(time.Second)
			last := time.Now()
			w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
				return from != dies.LocalAddr().(*net.UDPAddr).AddrPort()
			})
			errs = append(errs, <-done, <-done)
			require.InDelta(t, patience, time.Since(last), float64(roundTrip))
			for _, err := range errs {
				var lost *PeerLostError
				require.ErrorAs(t, err, &lost)
				require.False(t, lost.Idle)
				require.InDelta(t, patience, lost.Silence, float64(time.Millisecond))
			}
			require.NoError(t, stays.Close()) // it has been said
		})
	}
}

// Close says that what was written is lost, where nothing else has.
func TestCloseAfterTheEnd(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		for _, told := range []bool{true, false} {
			inWorld(t, 21, clean, func(w *world) {
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
	for _, answers := range []bool{true, false} {
		for _, n := range []int{1, 5000, 5 << 20} {
			if repeated() && n > 5000 {
				continue
			}
			for _, closes := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v %d %v", answers, n, closes), func(t *testing.T) {
					inWorld(t, 22, clean, func(w *world) {
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
							require.Equal(t, probeAfter+roundTrip, time.Since(start))
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
		inWorld(t, 22, clean, func(w *world) {
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
		inWorld(t, 22, clean, func(w *world) {
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
				heard, wait = time.Now(), probeAfter
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
		inWorld(t, seed, lossy, func(w *world) {
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
	inWorld(t, 1, clean, func(w *world) {
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

// With a full backlog Dial gets no answer, and is let in when there is room.
func TestDialFullBacklog(t *testing.T) {
	inWorld(t, 23, clean, func(w *world) {
		l := w.listen(&Config{Backlog: 2})
		e, _ := w.endpoint("10.0.0.2:0", &Config{DialTimeout: 4 * time.Second})
		for range 2 {
			w.dial(e)
		}
		time.Sleep(time.Second)
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorAs(t, err, new(*NoAnswerError))
		require.Equal(t, 4*time.Second, time.Since(start))
		require.Positive(t, l.Stats().DropBacklog)
		require.Equal(t, 2, l.Stats().Sessions)

		time.AfterFunc(500*time.Millisecond, func() {
			_, err := l.AcceptKCP(context.Background())
			if err != nil {
				t.Error(err)
			}
		})
		start = time.Now()
		w.dial(e)
		require.Equal(t, 600*time.Millisecond+roundTrip, time.Since(start)) // the third hello
	})
}

// A closed session neither takes packets that are not its own nor comes back
// to life, whatever stragglers arrive: from when it was open, or repeated.
func TestStragglers(t *testing.T) {
	inWorld(t, 22, clean, func(w *world) {
		var packets [][]byte
		var from netip.AddrPort
		w.net.SetFilter(func(f, _ netip.AddrPort, p []byte) bool {
			if f.Addr() == netip.MustParseAddr("10.0.0.2") {
				from = f
				packets = append(packets, append([]byte(nil), p...))
			}
			return true
		})
		a, b, l := w.pair(nil, nil)
		want := content(22, 100000)
		send(t, a, want)
		receive(t, b, want)
		require.NoError(t, b.Close())
		_, err := a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, a.Close())
		time.Sleep(30 * time.Second)
		require.Zero(t, l.Stats().Sessions)
		n := len(packets)
		for _, p := range packets[:n] {
			w.net.Inject(from, netip.MustParseAddrPort(serverAddr), p)
		}
		synctest.Wait()
		require.Zero(t, l.Stats().Sessions)
		require.Zero(t, l.Stats().Backlog)
		require.GreaterOrEqual(t, l.Stats().DropEnded, uint64(n))
	})
}

// A listener's socket outlives the listener and its last session for as long as
// a peer may not have heard that everything has arrived.
func TestListenerLeavesPolitely(t *testing.T) {
	inWorld(t, 21, clean, func(w *world) {
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

// The first segment of a session travels in pieces. It is not dropped if it
// overtakes CONFIRM.
func TestDataBeforeConfirm(t *testing.T) {
	for _, n := range []int{1, 1376, 3000} {
		inWorld(t, 1, clean, func(w *world) {
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				data, signals := divide(p)
				if to.String() != serverAddr || !slices.ContainsFunc(signalsOf(p), func(s signal) bool { return s.code == sigConfirm }) {
					return true
				}
				if len(data) > 0 {
					w.net.Inject(from, to, data)
				}
				time.AfterFunc(clean.Delay+time.Millisecond, func() { w.net.Inject(from, to, signals) })
				return false
			})
			l := w.listen(nil)
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			want := content(1, n)
			wrote := time.Now()
			_, err := a.Write(want)
			require.NoError(t, err)
			b := accepted(t, l)
			receive(t, b, want)
			require.Less(t, time.Since(wrote), 2*clean.Delay, "%d bytes", n)
			require.Zero(t, a.Stats().TimeoutRetransmits)
		})
	}
}

// divide returns the segments of a packet that carry data, and the others.
func divide(p []byte) (data, others []byte) {
	for len(p) >= headerSize {
		h := decodeHeader(p)
		n := headerSize + int(h.len)
		if h.cmd == cmdPush || h.cmd == cmdPiece {
			data = append(data, p[:n]...)
		} else {
			others = append(others, p[:n]...)
		}
		p = p[n:]
	}
	return data, others
}
