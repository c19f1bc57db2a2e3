package handshake

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// issuer is a certificate with its key.
type issuer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// issue returns a certificate of a name for a key, which parent issues; nil: it is its
// own. change, unless nil, changes it.
func issue(t testing.TB, name string, key crypto.PublicKey, signer crypto.Signer, parent *issuer, change func(*x509.Certificate)) *issuer {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"test"},
	}
	if change != nil {
		change(template)
	}
	if parent == nil {
		parent = &issuer{template, signer}
	}
	by := *parent.cert
	by.PublicKey = parent.key.Public() // it may be another's, whose name it takes
	der, err := x509.CreateCertificate(rand.Reader, template, &by, key, parent.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &issuer{cert, signer}
}

// generate returns a key of a curve.
func generate(t testing.TB, curve elliptic.Curve) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	require.NoError(t, err)
	return key
}

// byCurve is issue with a key of a curve.
func byCurve(t testing.TB, name string, curve elliptic.Curve, parent *issuer) *issuer {
	key := generate(t, curve)
	return issue(t, name, key.Public(), key, parent, nil)
}

// certificateMessage returns the message of TLS that carries certificates.
func certificateMessage(certs ...*issuer) []byte {
	var list []byte
	for _, c := range certs {
		size := binary.BigEndian.AppendUint32(nil, uint32(len(c.cert.Raw)))
		list = append(append(append(list, size[1:]...), c.cert.Raw...), 0, 0)
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(list)))
	body := append(append([]byte{0}, size[1:]...), list...)
	size = binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	size[0] = 11
	return append(size, body...)
}

// chains are certificates of peers, under a root of P-256 or P-521.
func chains(t testing.TB) (honest, hostile map[string][]*issuer, roots *x509.CertPool) {
	p256, p384, p521 := elliptic.P256(), elliptic.P384(), elliptic.P521()
	root, large := byCurve(t, "root", p256, nil), byCurve(t, "large root", p521, nil)
	roots = x509.NewCertPool()
	roots.AddCert(root.cert)
	roots.AddCert(large.cert)
	under := func(parent *issuer, curves ...elliptic.Curve) (chain []*issuer) {
		for i, curve := range curves {
			parent = byCurve(t, fmt.Sprint("issuer ", i), curve, parent)
			chain = append([]*issuer{parent}, chain...)
		}
		return chain
	}
	repeat := func(n int, curve elliptic.Curve) (all []elliptic.Curve) {
		for range n {
			all = append(all, curve)
		}
		return all
	}
	rsa4096 := generate(t, p256)
	bigRSA := func(bits uint, exponent int, parent *issuer) *issuer {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return issue(t, "RSA", &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: exponent}, rsa4096, parent, nil)
	}
	same := func(n int, make func() *issuer) (all []*issuer) {
		for range n {
			all = append(all, make())
		}
		return all
	}
	stranger := byCurve(t, "stranger", p256, nil)
	honest = map[string][]*issuer{
		"one":               under(root, p256),
		"one, of P-521":     under(root, p521),
		"unknown":           under(stranger, p256, p256),
		"three":             under(root, p256, p256, p256),
		"ten":               under(root, repeat(10, p256)...),
		"an issuer, P-384":  under(root, p384, p256),
		"all P-521":         under(large, p521, p521, p521),
		"RSA with 4096":     {byCurve(t, "leaf", p256, &issuer{bigRSA(4096, 65537, root).cert, rsa4096}), bigRSA(4096, 65537, root)},
		"root comes too":    append(under(large, p521, p256), large),
		"one that is extra": append(under(large, p521, p256), byCurve(t, "extra", p521, stranger)),
		"none":              nil,
	}
	clique := generate(t, p256)
	hostile = map[string][]*issuer{
		"eleven":              under(root, repeat(11, p256)...),
		"issuers of one name": append([]*issuer{byCurve(t, "leaf", p256, byCurve(t, "RSA", p256, nil))}, same(9, func() *issuer { return byCurve(t, "RSA", p521, stranger) })...),
		"who sign each other": same(10, func() *issuer {
			return issue(t, "stranger", clique.Public(), clique, &issuer{stranger.cert, clique}, nil)
		}),
		"RSA with 8192":         append([]*issuer{byCurve(t, "leaf", p256, byCurve(t, "RSA", p256, nil))}, same(9, func() *issuer { return bigRSA(8192, 65537, stranger) })...),
		"large exponents":       append([]*issuer{byCurve(t, "leaf", p256, byCurve(t, "RSA", p256, nil))}, same(9, func() *issuer { return bigRSA(4096, 1<<31-1, stranger) })...),
		"in the name of a root": append([]*issuer{byCurve(t, "leaf", p256, byCurve(t, "RSA", p256, nil))}, same(9, func() *issuer { return byCurve(t, "RSA", p521, &issuer{root.cert, stranger.key}) })...),
		"two of P-521":          under(stranger, p521, p521, p256),
		"names and constraints": {
			issue(t, "leaf", clique.Public(), clique, stranger, func(c *x509.Certificate) {
				for i := range 800 {
					c.IPAddresses = append(c.IPAddresses, net.IPv4(10, 0, byte(i>>8), byte(i)))
				}
			}),
			issue(t, "stranger", clique.Public(), clique, root, func(c *x509.Certificate) {
				for i := range 800 {
					c.PermittedIPRanges = append(c.PermittedIPRanges, &net.IPNet{IP: net.IPv4(10, 0, byte(i>>8), byte(i)).To4(), Mask: net.CIDRMask(32, 32)})
				}
			}),
		},
	}
	return honest, hostile, roots
}

// ends are a server and a client that verify certificates with some roots.
func ends(roots *x509.CertPool) []TLS {
	return []TLS{
		{server: true, reads: Handshake, config: &tls.Config{ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}},
		{reads: Handshake, config: &tls.Config{RootCAs: roots}},
	}
}

// Certificates that would take long to verify are refused before crypto/tls has them, at
// either end. Others are not.
func TestCertificatesThatTakeLong(t *testing.T) {
	honest, hostile, roots := chains(t)
	for _, end := range ends(roots) {
		for name, chain := range honest {
			end := end
			require.NoError(t, end.checkCertificates(certificateMessage(chain...)), name)
			require.LessOrEqual(t, end.cost, maxCost+maxKeyCost, name)
		}
		for name, chain := range hostile {
			end := end
			err := end.checkCertificates(certificateMessage(chain...))
			var alert tls.AlertError
			require.ErrorAs(t, err, &alert, name)
		}
	}
	var many []*issuer
	for range 130 {
		many = append(many, honest["one"][0])
	}
	for _, end := range []TLS{
		{server: true, reads: Handshake, config: &tls.Config{ClientAuth: tls.RequireAnyClientCert}},
		{reads: Handshake, config: &tls.Config{InsecureSkipVerify: true}},
	} {
		err := end.checkCertificates(certificateMessage(many...))
		require.ErrorContains(t, err, "more than 10 certificates")
		require.Equal(t, tls.AlertError(alertBadCertificate), AlertOf(err))
		require.NoError(t, end.checkCertificates(certificateMessage(hostile["issuers of one name"]...)), "nobody verifies them")
	}
}

// A server that chooses its Config for each client has the roots of the one that it has
// chosen, and its tickets are those of the first.
func TestConfigOfEachClient(t *testing.T) {
	honest, hostile, roots := chains(t)
	client, server := configs(t)
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	server.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		chosen := server.Clone()
		chosen.ClientCAs, chosen.ClientAuth = roots, tls.RequireAndVerifyClientCert
		return chosen, nil
	}
	dial := func(chain []*issuer) (a, b *end) {
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown(chain), nil }
		return run(client, server)
	}
	for name, chain := range hostile {
		a, b := dial(chain)
		require.Error(t, b.err, name)
		require.False(t, b.done, name)
		require.LessOrEqual(t, b.cost, maxCost, name)
		a.Close()
		b.Close()
	}
	for resumed := range 2 {
		a, b := dial(honest["root comes too"])
		require.NoError(t, errors.Join(a.err, b.err))
		require.Equal(t, resumed == 1, b.conn.ConnectionState().DidResume)
		b.take(b.SendTicket())
		b.deliver(a)
		a.Close()
		b.Close()
	}
}

// shown returns a chain as a peer shows it.
func shown(chain []*issuer) *tls.Certificate {
	cert := new(tls.Certificate)
	for i, c := range chain {
		if cert.Certificate = append(cert.Certificate, c.cert.Raw); i == 0 {
			cert.PrivateKey = c.key
		}
	}
	return cert
}

// The error of issuers without a root is that of crypto/tls.
func TestUnvouchedIssuersAreUnknown(t *testing.T) {
	_, hostile, roots := chains(t)
	end := &TLS{reads: Handshake, config: &tls.Config{RootCAs: roots}}
	err := end.checkCertificates(certificateMessage(hostile["two of P-521"]...))
	var verification *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &verification)
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, tls.AlertError(alertUnknownCA), AlertOf(err))
	require.Len(t, verification.UnverifiedCertificates, 3)
}

// TLS is given whole messages, however small the pieces are that they come in, so that
// none is looked at twice.
func TestTLSReadsWholeMessages(t *testing.T) {
	var s Stream
	first, second := []byte{8, 0, 0, 2, 1, 2}, []byte{11, 0, 0, 1, 3}
	all := append(append([]byte{}, first...), second...)
	for i := range len(all) {
		if i == len(first) {
			require.Equal(t, first, s.ReadMessages())
		} else {
			require.Nil(t, s.ReadMessages(), i)
		}
		require.True(t, s.Receive(uint32(i), all[i:i+1], 100, 1000))
	}
	require.Equal(t, second, s.ReadMessages())
	require.True(t, s.Receive(11, append(append([]byte{}, all...), 20, 0), 100, 1000))
	require.Equal(t, all, s.ReadMessages())
	require.EqualValues(t, 24, s.Received())
	require.Nil(t, s.ReadMessages())
}

// Pieces of what is not well-formed are left to crypto/tls.
func TestMalformedCertificates(t *testing.T) {
	message := certificateMessage(byCurve(t, "one", elliptic.P256(), nil))
	for n := messageHead; n < len(message); n++ {
		end := &TLS{reads: Handshake, config: &tls.Config{}}
		cut := append([]byte{}, message[:n]...)
		cut[1], cut[2], cut[3] = 0, byte((n-messageHead)>>8), byte(n-messageHead)
		require.NoError(t, end.checkCertificates(cut))
	}
}
