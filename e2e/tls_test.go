package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Streams work over TLS, over a bad path too.
func TestTLSStreams(t *testing.T) {
	for seed := range uint64(2) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _, _ := w.movable(secured(kcp.Config{}))
			for i := range uint64(3) {
				x, err := a.OpenStream(context.Background(), nil)
				require.NoError(t, err)
				want := content(i, 50_000)
				send(t, x, want)
				y, err := b.AcceptStream(context.Background())
				require.NoError(t, err)
				receive(t, y, want)
				require.NoError(t, y.CloseWrite())
				_, err = x.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			}
		})
	}
}

// secured returns config with TLS, for both ends.
func secured(config kcp.Config) *kcp.Config {
	config.TLS = testTLS()
	return &config
}

func TestTLSEcho(t *testing.T) {
	for seed, link := range []netsim.LinkConfig{clean, clean, lossy, lossy, lossy, lossy} {
		inWorld(t, uint64(seed), link, func(t *testing.T, w *world) {
			a, b, _ := w.pair(secured(kcp.Config{}), secured(kcp.Config{}))
			bothWays(t, a, b, content(1, 100_000), content(2, 100_000))
			state := a.ConnectionState().TLS
			require.EqualValues(t, tls.VersionTLS13, state.Version)
			require.NotEmpty(t, state.VerifiedChains)
			require.Len(t, state.PeerCertificates, 1)
			require.True(t, b.ConnectionState().TLS.HandshakeComplete)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// No session or stream looks like a *tls.Conn: net/http takes those for encrypted
// whether they are or not.
func TestTLSConnectionState(t *testing.T) {
	type tlsConn interface{ ConnectionState() tls.ConnectionState }
	for _, c := range []net.Conn{new(kcp.Conn), new(kcp.Stream)} {
		_, ok := c.(tlsConn)
		require.False(t, ok, "%T", c)
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		bothWays(t, a, b, []byte("up"), []byte("down"))
		require.Nil(t, a.ConnectionState().TLS)
		require.Nil(t, b.ConnectionState().TLS)
	})
}

// The first answer takes two round trips, one of them for the handshake, and a
// third with a cookie.
func TestTLSRoundTrips(t *testing.T) {
	for _, mode := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		inWorld(t, 0, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
			config := secured(kcp.Config{AddressValidation: mode})
			l := w.listen(config)
			go func() {
				c, err := l.AcceptKCP(context.Background())
				if err == nil {
					b := make([]byte, 10)
					n, _ := c.Read(b)
					_, _ = c.Write(b[:n])
				}
			}()
			e, _ := w.endpoint("10.0.0.2:0", config)
			start := time.Now()
			c := w.dial(e)
			dialled := time.Since(start)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			_, err = c.Read(make([]byte, 10))
			require.NoError(t, err)
			rounds := time.Duration(1 + mode)
			require.Equal(t, rounds*100*time.Millisecond, dialled)
			require.Equal(t, (rounds+1)*100*time.Millisecond, time.Since(start))
		})
	}
}
