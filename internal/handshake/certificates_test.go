package handshake

import (
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math"
	"net"
	"net/url"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// fillers make a certificate large, or full of n elements.
var fillers = map[string]func(n int, c *x509.Certificate){
	"plain": func(int, *x509.Certificate) {},
	"large": func(n int, c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: oid(1), Value: make([]byte, 50*n)}}
	},
	"names": func(n int, c *x509.Certificate) {
		c.DNSNames = slices.Repeat([]string{"a"}, n)
	},
	"addresses": func(n int, c *x509.Certificate) {
		c.IPAddresses = slices.Repeat([]net.IP{net.IPv4(1, 2, 3, 4)}, n)
	},
	"urls": func(n int, c *x509.Certificate) {
		c.URIs = slices.Repeat([]*url.URL{{Scheme: "a", Host: "b"}}, n)
	},
	"extensions": func(n int, c *x509.Certificate) {
		for i := range n {
			c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: oid(i), Value: []byte{5, 0}})
		}
	},
	"units": func(n int, c *x509.Certificate) {
		c.Subject.OrganizationalUnit = slices.Repeat([]string{"a"}, n)
	},
	"usages": func(n int, c *x509.Certificate) {
		c.UnknownExtKeyUsage = slices.Repeat([]asn1.ObjectIdentifier{oid(1)}, n)
	},
	"points": func(n int, c *x509.Certificate) {
		c.CRLDistributionPoints = slices.Repeat([]string{"a"}, n)
	},
	"constraints": func(n int, c *x509.Certificate) {
		for i := range n {
			mask := net.CIDRMask(24, 32)
			c.ExcludedIPRanges = append(c.ExcludedIPRanges, &net.IPNet{IP: net.IP{1, 2, byte(i), 0}, Mask: mask})
		}
	},
}

func oid(i int) asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 2, 3, 4, 5, i} }

// filled returns a chain of three certificates with n elements each.
func filled(t *testing.T, fill func(int, *x509.Certificate), n int) (cert tls.Certificate) {
	key := generate(t, elliptic.P256())
	for range 3 {
		c := issue(t, "test", key.Public(), key, nil, func(c *x509.Certificate) { fill(n, c) })
		cert.Certificate = append(cert.Certificate, c.cert.Raw)
	}
	cert.PrivateKey = key
	return cert
}

// A chain of certificates takes no more than what is counted for it, whatever is
// in them, at either end.
func TestCertificateBytes(t *testing.T) {
	for name, fill := range fillers {
		t.Run(name, func(t *testing.T) {
			const each = 4
			n := 10
			for size, found := 0, 0; size < 20_000 && n < 500; n += n / 4 {
				size, found = 0, 0
				for _, der := range filled(t, fill, n+n/4).Certificate {
					size += len(der)
					found += elements(der, math.MaxInt)
				}
				if found > (maxCost-1)*elementsAtOnce { // more are refused
					break
				}
			}
			states := make([][2]tls.ConnectionState, each)
			before := heap()
			counted := 0
			for i := range states { // each handshake has certificates of its own
				client := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{filled(t, fill, n)}}
				server := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{filled(t, fill, n)}}
				a, b := run(client, server)
				require.NoError(t, errors.Join(a.err, b.err))
				states[i] = [2]tls.ConnectionState{a.conn.ConnectionState(), b.conn.ConnectionState()}
				counted += CertificateBytes(&states[i][0]) + CertificateBytes(&states[i][1])
				a.Close()
				b.Close()
			}
			held := heap() - before
			runtime.KeepAlive(states)
			t.Logf("%d held, %d counted", held/2/each, counted/2/each)
			require.LessOrEqual(t, held, counted*3/2+2*each*16<<10)
			require.LessOrEqual(t, counted, 6*held)
		})
	}
}

// heap returns the bytes of heap in use.
func heap() int {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// The alerts are those of RFC 8446 §6.
func TestAlerts(t *testing.T) {
	for alert, want := range map[tls.AlertError]string{
		alertBadCertificate: "bad certificate", alertDecodeError: "error decoding message",
		AlertProtocolVersion: "protocol version not supported", alertInternalError: "internal error",
	} {
		require.Contains(t, alert.Error(), want)
	}
}
