package handshake

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A chain of certificates takes no more than what is counted for it, whatever is
// in them, at either end.
func TestCertificateBytes(t *testing.T) {
	names := func(n int, c *x509.Certificate) {
		for i := range n {
			c.DNSNames = append(c.DNSNames, fmt.Sprint(i))
		}
	}
	oid := func(i int) asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 2, 3, 4, 5, i} }
	cases := map[string]func(n int, c *x509.Certificate){
		"plain": func(n int, c *x509.Certificate) {},
		"large": func(n int, c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: oid(1), Value: make([]byte, 50*n)}}
		},
		"names": names,
		"addresses": func(n int, c *x509.Certificate) {
			for i := range n {
				c.IPAddresses = append(c.IPAddresses, net.IPv4(1, 2, byte(i>>8), byte(i)))
			}
		},
		"emails": func(n int, c *x509.Certificate) {
			for range n {
				c.EmailAddresses = append(c.EmailAddresses, "a")
			}
		},
		"urls": func(n int, c *x509.Certificate) {
			for range n {
				c.URIs = append(c.URIs, &url.URL{Scheme: "a", Host: "b"})
			}
		},
		"extensions": func(n int, c *x509.Certificate) {
			for i := range n {
				c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: oid(i), Value: []byte{5, 0}})
			}
		},
		"subject": func(n int, c *x509.Certificate) {
			for i := range n {
				c.Subject.ExtraNames = append(c.Subject.ExtraNames, pkix.AttributeTypeAndValue{Type: oid(i), Value: "a"})
			}
		},
		"units": func(n int, c *x509.Certificate) {
			for range n {
				c.Subject.OrganizationalUnit = append(c.Subject.OrganizationalUnit, "a")
			}
		},
		"usages": func(n int, c *x509.Certificate) {
			for i := range n {
				c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, oid(i))
			}
		},
		"policies": func(n int, c *x509.Certificate) {
			for i := range n {
				id, err := x509.OIDFromInts([]uint64{1, 2, 3, uint64(i)})
				require.NoError(t, err)
				c.Policies = append(c.Policies, id)
			}
		},
		"points": func(n int, c *x509.Certificate) {
			for range n {
				c.CRLDistributionPoints = append(c.CRLDistributionPoints, "a")
				c.OCSPServer = append(c.OCSPServer, "a")
			}
		},
		"constraints": func(n int, c *x509.Certificate) {
			for i := range n {
				c.PermittedDNSDomains = append(c.PermittedDNSDomains, "a")
				c.ExcludedIPRanges = append(c.ExcludedIPRanges, &net.IPNet{IP: net.IP{1, 2, byte(i), 0}, Mask: net.CIDRMask(24, 32)})
			}
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			require.NoError(t, err)
			const each = 4
			// Each handshake has certificates of its own.
			chain := func(seed int, n int) (cert tls.Certificate) {
				cert.PrivateKey = key
				for i := range 3 {
					template := &x509.Certificate{SerialNumber: big.NewInt(int64(seed*10 + i + 1)), Subject: pkix.Name{CommonName: "test"}}
					change(n, template)
					der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
					require.NoError(t, err)
					cert.Certificate = append(cert.Certificate, der)
				}
				return cert
			}
			n := 10
			for size, found := 0, 0; size < 20_000 && n < 500; n += n / 4 {
				size, found = 0, 0
				for _, der := range chain(0, n+n/4).Certificate {
					size += len(der)
					found += elements(der, math.MaxInt)
				}
				if found > (maxCost-1)*elementsAtOnce { // more are refused
					break
				}
			}
			states := make([][2]tls.ConnectionState, each)
			before := heap()
			counted, raw := 0, 0
			for i := range states {
				client := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{chain(2*i, n)}}
				server := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{chain(2*i+1, n)}}
				a, b := run(client, server)
				require.NoError(t, a.err)
				require.NoError(t, b.err)
				states[i] = [2]tls.ConnectionState{a.conn.ConnectionState(), b.conn.ConnectionState()}
				for _, s := range states[i] {
					counted += CertificateBytes(&s)
					for _, cert := range s.PeerCertificates {
						raw += len(cert.Raw)
					}
				}
				a.Close()
				b.Close()
			}
			held := heap() - before
			runtime.KeepAlive(states)
			t.Logf("%d bytes of certificates: %d held, %d counted", raw/2/each, held/2/each, counted/2/each)
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

// What a slice counts is what it takes in memory.
func TestSizesAreOfMemory(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("pointers are smaller, and count as if they were not")
	}
	require.EqualValues(t, unsafe.Sizeof([]byte{}), sliceBytes)
	require.EqualValues(t, unsafe.Sizeof([]byte{}), earlyEntry)
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
