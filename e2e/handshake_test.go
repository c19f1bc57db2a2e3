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
	"github.com/arqnet/kcp/internal/testenv"
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
