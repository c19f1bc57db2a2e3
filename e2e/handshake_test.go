package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/liveness"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What the application sees of a peer that does not behave, and when. Both ends
// are ours and time is virtual, so the times are exact; interop_test has the
// same with kcp-go in real time.

// Nobody answers, because there is no socket, or nobody who reads it: Dial says
// so at its time limit, whoever sets that, and leaves nothing behind.
func TestDialNobody(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		inWorld(t, 29, clean, func(t *testing.T, w *world) {
			if stopped {
				pc, err := w.net.Listen(serverAddr)
				require.NoError(t, err)
				defer pc.Close()
			}
			e := w.client(&kcp.Config{DialTimeout: 6500 * time.Millisecond})
			start := time.Now()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
			var none *kcp.NoAnswerError
			require.ErrorAs(t, err, &none)
			require.Equal(t, 6500*time.Millisecond, none.Waited)
			require.Equal(t, 6500*time.Millisecond, time.Since(start))
			requireTimeout(t, err)
			require.ErrorIs(t, err, context.DeadlineExceeded)

			start = time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_, err = e.Dial(ctx, udpAddr(serverAddr), nil)
			require.ErrorAs(t, err, &none)
			require.Equal(t, 2*time.Second, time.Since(start))
			requireTimeout(t, err)

			ctx, cancel = context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			_, err = e.Dial(ctx, udpAddr(serverAddr), nil)
			require.ErrorIs(t, err, context.Canceled)
			require.False(t, errors.As(err, &none))
			require.Zero(t, e.Stats().Sessions)

			// The hello is repeated: at 0, 0.2 and 0.6 s, and then each half second.
			require.EqualValues(t, 14+5+3, e.Stats().PacketsSent)
		})
	}
}

// The time of Dial is DialTimeout, whatever the other limits are. An outage at the
// beginning is survived.
func TestDialTimeoutIsThatOfDial(t *testing.T) {
	for _, cfg := range []kcp.Config{
		{PeerTimeout: 3 * time.Second}, {PeerTimeout: 6 * time.Second}, {IdleTimeout: time.Second}, {Tuning: kcp.Tuning{DeadLink: 1}},
	} {
		inWorld(t, 9, clean, func(t *testing.T, w *world) {
			cfg.DialTimeout = 6 * time.Second
			_, err := w.client(&cfg).Dial(context.Background(), udpAddr(serverAddr), nil)
			require.ErrorAs(t, err, new(*kcp.NoAnswerError))
			requireTimeout(t, err)
			require.Equal(t, 6*time.Second, w.net.Elapsed())
		})
	}
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		w.listen(nil)
		w.cut()
		w.after(3050*time.Millisecond, w.heal)
		w.dial(w.client(nil))
		require.Less(t, w.net.Elapsed(), 3600*time.Millisecond)
	})
}

// An endpoint that does not listen refuses, within a round trip.
func TestDialRefused(t *testing.T) {
	inWorld(t, 29, clean, func(t *testing.T, w *world) {
		server, _ := w.endpoint(serverAddr, nil)
		e := w.client(nil)
		start := time.Now()
		_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.ErrorIs(t, err, kcp.ErrRefused)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, roundTrip, time.Since(start))
		require.Zero(t, server.Stats().Sessions)

		// Nor is anybody let in while the listener is closing down.
		l, err := server.Listen()
		require.NoError(t, err)
		c := w.dial(e)
		time.Sleep(time.Second)
		require.NoError(t, l.Close())
		err = end(c)
		require.ErrorIs(t, err, kcp.ErrReset)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, kcp.ErrReset)
	})
}

// A Dial that does not wait leaves its errors to Read and Err.
func TestErrorsAfterADialThatDoesNotWait(t *testing.T) {
	secured, mistrustful := testTLS(), testenv.TLS()
	mistrustful.RootCAs = x509.NewCertPool()
	for _, tc := range []struct {
		name           string
		client, server *tls.Config
		listens        bool
		want           any
	}{
		{"no listener", nil, nil, false, kcp.ErrRefused},
		{"the server wants TLS", nil, secured, true, kcp.ErrTLSRequired},
		{"the server has no TLS", secured, nil, true, kcp.ErrNoTLS},
		{"the certificate is not trusted", mistrustful, secured, true, new(*kcp.HandshakeError)},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			server, _ := w.endpoint(serverAddr, &kcp.Config{TLS: tc.server})
			if tc.listens {
				_, err := server.Listen()
				require.NoError(t, err)
			}
			c := w.dial(w.client(&kcp.Config{TLS: tc.client, DialTimeout: -1}))
			for _, err := range []error{end(c), c.Err()} {
				if want, ok := tc.want.(error); ok {
					require.ErrorIs(t, err, want, tc.name)
				} else {
					require.ErrorAs(t, err, tc.want, tc.name)
				}
			}
		})
	}
}

// A closed session neither takes packets that are not its own nor comes back
// to life, whatever stragglers arrive: from when it was open, or repeated.
func TestStragglers(t *testing.T) {
	inWorld(t, 22, clean, func(t *testing.T, w *world) {
		var packets [][]byte
		var from netip.AddrPort
		w.net.SetFilter(func(f, _ netip.AddrPort, p []byte) bool {
			if f != acceptorAddr {
				from = f
				packets = append(packets, bytes.Clone(p))
			}
			return true
		})
		a, b, l := w.pair(nil, nil)
		w.move(a, b, 22, 100000)
		require.NoError(t, b.Close())
		require.Equal(t, io.EOF, end(a))
		require.NoError(t, a.Close())
		time.Sleep(30 * time.Second)
		require.Zero(t, l.Endpoint().Stats().Sessions)
		n := len(packets)
		for _, p := range packets[:n] {
			w.net.Inject(from, acceptorAddr, p)
		}
		synctest.Wait()
		require.Zero(t, l.Endpoint().Stats().Sessions)
		require.Zero(t, l.Endpoint().Stats().Backlog)
		require.GreaterOrEqual(t, l.Endpoint().Stats().DropEnded, uint64(n))
	})
}

// The first answer takes two round trips, one of them for the handshake, and a
// third with a cookie.
func TestTLSRoundTrips(t *testing.T) {
	for _, mode := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		inWorld(t, 0, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
			config := secured(kcp.Config{AddressValidation: mode})
			go serve(w.listen(config), func(c *kcp.Conn) { _, _ = io.Copy(c, c) })
			start := time.Now()
			c := w.dial(w.client(config))
			rounds := time.Duration(1 + mode)
			require.Equal(t, rounds*100*time.Millisecond, time.Since(start))
			w.say(c, "x")
			w.hear(c, "x")
			require.Equal(t, (rounds+1)*100*time.Millisecond, time.Since(start))
		})
	}
}

// What is said of the handshake, and that no session or stream looks like a *tls.Conn:
// net/http takes those for encrypted whether they are or not.
func TestTLSEcho(t *testing.T) {
	type tlsConn interface{ ConnectionState() tls.ConnectionState }
	for _, c := range []net.Conn{new(kcp.Conn), new(kcp.Stream)} {
		_, ok := c.(tlsConn)
		require.False(t, ok, "%T", c)
	}
	for seed, link := range []netsim.LinkConfig{clean, clean, lossy, lossy} {
		inWorld(t, uint64(seed), link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(secured(kcp.Config{}), secured(kcp.Config{}))
			x, y := streamPair(t, a, b, nil)
			bothWays(t, x, y, content(3, 50_000), content(4, 50_000))
			bothWays(t, a, b, content(1, 100_000), content(2, 100_000))
			state := a.Peer().TLS
			require.EqualValues(t, tls.VersionTLS13, state.Version)
			require.NotEmpty(t, state.VerifiedChains)
			require.Len(t, state.PeerCertificates, 1)
			require.True(t, b.Peer().TLS.HandshakeComplete)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		require.Nil(t, a.Peer().TLS)
		require.Nil(t, b.Peer().TLS)
	})
}

// Close says that what was written is lost, where nothing else has.
func TestCloseAfterTheEnd(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		for _, told := range []bool{true, false} {
			inWorld(t, 21, clean, func(t *testing.T, w *world) {
				a, pc := w.firstLife(5000, true)
				require.NoError(t, pc.Close())
				if restarted {
					w.listen(nil)
				}
				_, err := a.Write(content(2, 10000))
				require.NoError(t, err)
				time.Sleep(time.Minute)
				if told {
					_, err = a.Read(make([]byte, 1))
					require.NoError(t, a.Close())
				} else {
					err = a.Close()
				}
				if restarted {
					require.ErrorIs(t, err, kcp.ErrReset)
				} else {
					require.ErrorAs(t, err, new(*kcp.PeerLostError))
				}
				require.ErrorIs(t, a.Close(), net.ErrClosed)
			})
		}
	}
}

// restarted replaces the server's endpoint by another on the same port, which
// knows nothing.
func (w *world) restarted(pc *netsim.PacketConn, config *kcp.Config) *kcp.Listener {
	require.NoError(w.t, pc.Close())
	return w.listen(config)
}

// firstLife opens a server that is going to be restarted, and a session with it
// that has moved n bytes up and one down if answers is true.
func (w *world) firstLife(n int, answers bool) (a *kcp.Conn, pc *netsim.PacketConn) {
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
// taken for a new one.
func TestServerRestarted(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		for _, n := range []int{1, 50_000} {
			for _, closes := range []bool{false, true} {
				inWorld(t, 22, clean, func(t *testing.T, w *world) {
					a, pc := w.firstLife(n, answers)
					l := w.restarted(pc, nil)
					start := time.Now()
					_, err := a.Write(content(2, 10000))
					require.NoError(t, err)
					if closes {
						require.ErrorIs(t, a.Close(), kcp.ErrReset)
						require.Equal(t, roundTrip, time.Since(start))
					} else {
						require.Equal(t, liveness.ProbeAfter+roundTrip, wantReadErr(t, a, kcp.ErrReset))
					}
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					_, err = l.AcceptKCP(ctx)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Zero(t, l.Endpoint().Stats().Sessions)
				})
			}
		}
	}
}

// outageTime is longer than a listener waits for a handshake to go on.
const outageTime = session.HandshakeTime + 2*time.Second

// outageConfigs are the settings with which a session survives an outage or
// not, whatever they are.
func outageConfigs(t *testing.T, f func(t *testing.T, config *kcp.Config)) {
	for name, config := range map[string]*kcp.Config{
		"no key of resets": secured(kcp.Config{}),
		"key of resets":    resettable(kcp.Config{}),
	} {
		config.DialTimeout = 25 * time.Second
		t.Run(name, func(t *testing.T) { f(t, config) })
	}
}

// A Dial with a conversation id of the caller's choice cannot begin anew with
// another: it fails as soon as the path works. With Config.SharedConvs the server
// takes the id again.
func TestDialOfChosenConvInOutage(t *testing.T) {
	for _, shared := range []bool{false, true} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &kcp.Config{DialTimeout: 25 * time.Second, SharedConvs: shared}
			w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			testenv.Outage(w.net, serverAddr, 1, 0)
			time.AfterFunc(outageTime, func() { w.net.SetFilter(nil) })
			start := time.Now()
			_, err := e.Dial(context.Background(), udpAddr(serverAddr), &kcp.DialOptions{Conv: id(7)})
			if shared {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, kcp.ErrReset)
			}
			require.Less(t, time.Since(start), outageTime+opening.MaxWait+roundTrip)
		})
	}
}

// A server that always drops what is dialled does not keep a Dial busy.
func TestDialBeginsAnewSometimes(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		hellos := 0
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		defer pc.Close()
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			f, _ := admission.Parse(session.PlainPacket, p, wire.DecodeHeader(p).Conv)
			hellos++
			abort := packetOf(wire.DecodeHeader(p).Conv, testenv.SegmentOf(wire.Signal{Code: wire.Abort, SN: f.Hello.TS, TS: 0}))
			time.AfterFunc(roundTrip, func() { w.net.Inject(to, from, abort) })
			return false
		})
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		_, err = e.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.ErrorIs(t, err, kcp.ErrReset)
		require.Equal(t, 4, hellos)
		require.Zero(t, e.Stats().Sessions)
	})
}

// A PING that arrives before the WELCOME, since all of those were lost, does not make
// Dial return: the session would take its peer for a legacy one, and not tell it of Close.
func TestPingBeforeWelcome(t *testing.T) {
	inWorld(t, 475, clean, func(t *testing.T, w *world) {
		start, pings := time.Now(), 0
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			at := time.Since(start)
			switch h := wire.DecodeHeader(p); wire.Code(h.Frg) {
			case wire.Ping:
				pings++
			case wire.Hello:
				return at < 100*time.Millisecond || at > 4*time.Second
			case wire.Welcome:
				return at > 4*time.Second
			}
			return true
		})
		l := w.listen(&kcp.Config{KeepAlive: time.Second})
		e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: 20 * time.Second})
		a := w.dial(e)
		require.Positive(t, pings)
		require.True(t, a.Peer().Known)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, a.Close())
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
	})
}
