//go:build go1.26

package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// With TLS, runs repeat if crypto/tls draws the same, too.
func TestRunsRepeatWithTLS(t *testing.T) {
	t.Setenv("GODEBUG", "cryptocustomrand=0") // the default of modules of Go 1.26
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"server"},
		NotBefore:    time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), // bubbles begin in 2000
		NotAfter:     time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	run := func() packetLog {
		cryptotest.SetGlobalRandom(t, 1)
		return record(t, 4, transfer(1<<20, func(c *kcp.Config) {
			c.TLS = &tls.Config{
				Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
				RootCAs:      roots,
				ServerName:   "server",
			}
		}))
	}
	a := run()
	requireSame(t, a, run())
}
