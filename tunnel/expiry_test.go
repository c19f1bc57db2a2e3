package tunnel

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// sign returns a certificate of a key, which is a new one if it is nil. Without an
// authority it has signed itself.
func (a *authority) sign(t *testing.T, key *ecdsa.PrivateKey, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	var err error
	if key == nil {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
	}
	if a == nil {
		a = &authority{key: key, cert: template}
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	return der, key
}

// between returns a certificate for name that counts between two times.
func (a *authority) between(t *testing.T, name string, from, to time.Time) tls.Certificate {
	t.Helper()
	der, key := a.sign(t, nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: to,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A certificate of the server that is not valid yet, or no longer, as the clock of either
// end has it, is no reason to give up: the client says so, and gets through once it is.
// So is one of the client's.
func TestCertificatesOfAnotherTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := newAuthority(t)
	good := a.between(t, "tunnel.example", now.Add(-time.Hour), now.Add(time.Hour))
	early := a.between(t, "tunnel.example", now.Add(10*time.Minute), now.Add(time.Hour))
	late := a.between(t, "tunnel.example", now.Add(-time.Hour), now.Add(-time.Minute))
	echoes := testenv.Target(t, testenv.Echo)
	for name, bad := range map[string]tls.Certificate{"early": early, "late": late} {
		t.Run("server/"+name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, everything, func(c *ServerConfig) { c.Certificate = bad })
			waitFor(t, func() bool {
				return strings.Contains(s.log.String(), "level=WARN msg=\"the certificate is not valid now\"")
			})
			config := clientConfig(t, s, "0:"+echoes)
			config.Fingerprints, config.RootCAs, config.ServerName = nil, a.pool, "tunnel.example"
			c := startClient(t, config)
			local := c.address(t)
			waitFor(t, func() bool { return strings.Count(c.log.String(), "expired or is not yet valid") > 1 })
			require.NoError(t, s.SetCertificate(good))
			exchange(t, dial(t, local), 1000)

			// Given up after all, it is not the server that it should not be.
			require.NoError(t, s.SetCertificate(bad))
			config = clientConfig(t, s, "0:"+echoes)
			config.Fingerprints, config.RootCAs, config.ServerName, config.MaxRetries = nil, a.pool, "tunnel.example", 1
			err := run(t, config)
			require.ErrorContains(t, err, "given up after 1 retry")
			require.False(t, TurnedAway(err))
		})
		t.Run("client/"+name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, `{"tunnel.example": [""]}`, func(c *ServerConfig) { c.ClientCAs = a.pool })
			config := clientConfig(t, s, "0:"+echoes)
			config.User, config.Password, config.Certificate = "", "", &bad
			c := startClient(t, config)
			local := c.address(t)
			waitFor(t, func() bool { return strings.Count(c.log.String(), "expired certificate") > 1 })
			require.Contains(t, c.log.String(), `level=WARN msg="the certificate is not valid now"`)
			require.NoError(t, c.SetCertificate(&good))
			exchange(t, dial(t, local), 1000)
		})
	}
}

// Sessions end whose authority is removed, and new ones of the other begin. Who is known
// by a password is not concerned.
func TestAuthoritiesChange(t *testing.T) {
	t.Parallel()
	old, next := newAuthority(t), newAuthority(t)
	both := old.pool.Clone()
	both.AddCert(next.cert)
	s := startServer(t, `{"laptop": [""], "phone": [""], "me:secret": [""]}`, func(c *ServerConfig) { c.ClientCAs = old.pool })
	echoes := testenv.Target(t, testenv.Echo)
	begin := func(a *authority, name string) *testClient {
		config := clientConfig(t, s, "0:"+echoes)
		if a != nil {
			config.User, config.Password, config.Certificate = "", "", a.issue(t, name, time.Hour)
		}
		c := startClient(t, config)
		exchange(t, dial(t, c.address(t)), 1000)
		return c
	}
	laptop, me := begin(old, "laptop"), begin(nil, "")
	require.NoError(t, s.SetClientCAs(both))
	phone := begin(next, "phone")
	require.Equal(t, 3, s.Status().Sessions)
	require.NoError(t, s.SetClientCAs(next.pool))
	waitFor(t, func() bool { return strings.Contains(laptop.log.String(), "no longer valid") })
	waitFor(t, func() bool { return s.Status().Sessions == 2 })
	require.Equal(t, 1, me.Status().Sessions)
	require.Equal(t, 1, phone.Status().Sessions)
	require.Error(t, s.SetClientCAs(nil))
	require.Error(t, startServer(t, everything, nil).SetClientCAs(old.pool))
}
