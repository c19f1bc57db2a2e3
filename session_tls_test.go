package kcp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// bubbleTime is the time at which bubbles begin.
var bubbleTime = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// certificate returns a certificate for names, which signer has signed, or
// itself; good from 1999 to 2100.
func certificate(t testing.TB, signer *tls.Certificate, ca bool, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: names[0]},
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(10, 0, 0, 1)},
		NotBefore:    bubbleTime.AddDate(-1, 0, 0),
		NotAfter:     bubbleTime.AddDate(100, 0, 0),
		IsCA:         ca, BasicConstraintsValid: true,
	}
	parent, by := template, any(key)
	if signer != nil {
		parent, by = signer.Leaf, signer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// testTLS returns the settings of two ends that trust each other. All tests
// share the key.
var testTLS = sync.OnceValue(func() *tls.Config {
	cert := certificate(new(testing.T), nil, true, "test")
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, ServerName: "test"}
})

// secured returns config with TLS, for both ends.
func secured(config Config) *Config {
	config.TLS = testTLS()
	return &config
}

func TestTLSEcho(t *testing.T) {
	for seed, link := range []netsim.LinkConfig{clean, clean, lossy, lossy, lossy, lossy} {
		inWorld(t, uint64(seed), link, func(w *world) {
			a, b, _ := w.pair(secured(Config{}), secured(Config{}))
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
	for _, c := range []net.Conn{new(Conn), new(Stream)} {
		_, ok := c.(tlsConn)
		require.False(t, ok, "%T", c)
	}
	inWorld(t, 0, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		bothWays(t, a, b, []byte("up"), []byte("down"))
		require.Nil(t, a.ConnectionState().TLS)
		require.Nil(t, b.ConnectionState().TLS)
	})
}

// The first answer takes two round trips, one of them for the handshake, and a
// third with a cookie.
func TestTLSRoundTrips(t *testing.T) {
	for _, mode := range []AddressValidation{ValidateUnderPressure, ValidateAlways} {
		inWorld(t, 0, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(w *world) {
			config := secured(Config{AddressValidation: mode})
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
