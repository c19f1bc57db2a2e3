package handshake

import (
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostileChains are certificates of clients beside those of chains: of several lengths,
// with all kinds of keys.
func hostileChains(t testing.TB, root *issuer) map[string][]*issuer {
	all := signers(t, true)
	kinds := slices.Sorted(maps.Keys(all))
	chain := func(n int) (certs []*issuer) {
		for i := range n {
			s := all[kinds[i%len(kinds)]]
			certs = append(certs, issue(t, fmt.Sprint("issuer ", i%3), s.public, s, &issuer{root.cert, root.key}, nil))
		}
		return certs
	}
	large := func(change func(n int, c *x509.Certificate)) []*issuer {
		key := generate(t, elliptic.P256())
		for n := 8000; ; n = n * 9 / 10 {
			leaf := issue(t, "leaf", key.Public(), key, root, func(c *x509.Certificate) { change(n, c) })
			if len(leaf.cert.Raw) < maxPeerFlight-3000 {
				return []*issuer{leaf}
			}
		}
	}
	return map[string][]*issuer{
		"chain of 3": chain(3), "chain of 10": chain(10), "chain of 100": chain(100),
		"60 KB of names": large(func(n int, c *x509.Certificate) {
			c.DNSNames = make([]string, n)
			for i := range n {
				c.DNSNames[i] = fmt.Sprint("a", i)
			}
		}),
		"60 KB of addresses": large(func(n int, c *x509.Certificate) {
			for i := range n {
				c.IPAddresses = append(c.IPAddresses, net.IPv4(1, 2, byte(i>>8), byte(i)))
			}
		}),
		"60 KB of units": large(func(n int, c *x509.Certificate) {
			for range n {
				c.Subject.OrganizationalUnit = append(c.Subject.OrganizationalUnit, "a")
			}
		}),
		"a name of 60 KB":   large(func(n int, c *x509.Certificate) { c.DNSNames = []string{strings.Repeat("a", 7*n)} }),
		"a number of 60 KB": large(func(n int, c *x509.Certificate) { c.SerialNumber = new(big.Int).Lsh(big.NewInt(1), uint(50*n)) }),
		"an id of 60 KB": large(func(n int, c *x509.Certificate) {
			id := []int{1, 2}
			for range 7 * n {
				id = append(id, 3)
			}
			c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, id)
		}),
		"3000 addresses": large(func(n int, c *x509.Certificate) {
			for i := range min(n, 2800) {
				c.URIs = append(c.URIs, &url.URL{Scheme: "a", Host: fmt.Sprint(i)})
			}
		}),
		"700 units": large(func(n int, c *x509.Certificate) {
			for range min(n, 700) {
				c.Subject.OrganizationalUnit = append(c.Subject.OrganizationalUnit, "a")
			}
		}),
		"60 KB of usages": large(func(n int, c *x509.Certificate) {
			for i := range n {
				c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, []int{1, 2, 3, i})
			}
		}),
	}
}

// BenchmarkStrangers prints what hostile clients cost a server, in handshakes of an
// honest client of the same server: if it is the first one lately, and if its network
// has used up its allowance. Each figure is the least of some runs, as others use the
// machine.
func BenchmarkStrangers(b *testing.B) {
	stray, root := byCurve(b, "stray", elliptic.P256(), nil), byCurve(b, "root", elliptic.P256(), nil)
	client, server := configs(b)
	server.ClientCAs = x509.NewCertPool()
	server.ClientCAs.AddCert(root.cert)
	compare := func(name string, by *issuer, chain []*issuer) {
		honest := []*issuer{byCurve(b, "leaf", elliptic.P256(), by)}
		if server.ClientAuth == tls.NoClientCert {
			honest = nil
		}
		b.Run(fmt.Sprint(server.ClientAuth, "/", name), func(b *testing.B) {
			base, first, then := time.Hour, time.Hour, time.Hour
			for range b.N {
				who := payer{allowance: new(Allowance)}
				_, h, spent := stranger(client, server, honest, who)
				require.NoError(b, h.err)
				base = min(base, spent)
				_, _, spent = stranger(client, server, chain, who)
				first = min(first, spent)
				_, _, spent = stranger(client, server, chain, payer{})
				then = min(then, spent)
			}
			b.ReportMetric(float64(first)/float64(base), "first/honest")
			b.ReportMetric(float64(then)/float64(base), "then/honest")
			b.ReportMetric(float64(base.Microseconds()), "µs/honest")
			b.ReportMetric(0, "ns/op")
		})
	}
	_, hostile, _ := chains(b)
	slow := make(map[string]signer)
	for _, bits := range []int{2048, 3072, 4096, 8192} {
		slow[fmt.Sprintf("RSA-%d e=65537", bits)] = primesRSA(b, bits/512, 65537)
	}
	for _, server.ClientAuth = range append(auths, tls.NoClientCert) {
		by := stray
		if server.ClientAuth >= tls.VerifyClientCertIfGiven {
			by = root // as if the client had a copy of a certificate
		}
		for _, wrong := range []bool{false, true} {
			all := signers(b, wrong)
			if !wrong {
				maps.Copy(all, slow)
			}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				compare(fmt.Sprintf("%s wrong=%v", name, wrong), by, []*issuer{leafOf(b, all[name], by)})
			}
		}
		more := hostileChains(b, by)
		maps.Copy(more, hostile)
		for _, name := range slices.Sorted(maps.Keys(more)) {
			compare(name, by, more[name])
		}
	}
	server.ClientAuth = tls.NoClientCert
	for _, group := range []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, 4587, 4588, groupP384MLKEM1024} {
		client.CurvePreferences = []tls.CurveID{group}
		compare("key exchange by "+group.String(), stray, nil)
	}
}
