package handshake

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// signer signs with a key, or makes signatures that look right and are not.
type signer struct {
	public crypto.PublicKey
	key    crypto.Signer // nil: it has only the public half
	wrong  bool
}

func (s signer) Public() crypto.PublicKey { return s.public }

func (s signer) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if key, ok := s.public.(*rsa.PublicKey); ok && s.key == nil {
		noise := make([]byte, key.Size())
		_, _ = random.Read(noise[1:])
		return noise, nil
	}
	if s.wrong {
		digest = slices.Clone(digest)
		digest[0] ^= 1
	}
	return s.key.Sign(random, digest, opts)
}

// noisyRSA returns an RSA key of a size and an exponent whose private half nobody has.
func noisyRSA(bits uint, exponent int) signer {
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	return signer{public: &rsa.PublicKey{N: n.Sub(n.Lsh(n, 1), big.NewInt(1)), E: exponent}, wrong: true}
}

// primesRSA returns an RSA key of many primes of 512 bits, which are soon found.
func primesRSA(t testing.TB, primes, exponent int) signer {
	e, d, n := big.NewInt(int64(exponent)), (*big.Int)(nil), big.NewInt(1)
	key := &rsa.PrivateKey{}
	for phi := big.NewInt(1); len(key.Primes) < primes; {
		p, err := rand.Prime(rand.Reader, 512)
		require.NoError(t, err)
		less := new(big.Int).Sub(p, big.NewInt(1))
		if new(big.Int).GCD(nil, nil, less, e).Cmp(big.NewInt(1)) != 0 || slices.ContainsFunc(key.Primes, func(q *big.Int) bool { return q.Cmp(p) == 0 }) {
			continue
		}
		key.Primes = append(key.Primes, p)
		n.Mul(n, p)
		phi.Mul(phi, less)
		d = new(big.Int).ModInverse(e, phi)
	}
	key.PublicKey, key.D = rsa.PublicKey{N: n, E: exponent}, d
	key.Precompute()
	return signer{public: &key.PublicKey, key: key}
}

// signers returns keys by name: without RSA, or with it those whose signatures are wrong.
func signers(t testing.TB, wrong bool) map[string]signer {
	all := make(map[string]signer)
	for _, curve := range []elliptic.Curve{elliptic.P224(), elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key := generate(t, curve)
		all[curve.Params().Name] = signer{key.Public(), key, wrong}
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	all["Ed25519"] = signer{public, key, wrong}
	if !wrong {
		return all
	}
	for _, bits := range []uint{2048, 3072, 4096, 8192, 16384} {
		for _, exponent := range []int{3, 65537, 1<<30 + 3, 1<<31 - 1} {
			all[fmt.Sprintf("RSA-%d e=%d", bits, exponent)] = noisyRSA(bits, exponent)
		}
	}
	return all
}

// leafOf returns a certificate for the key of a signer.
func leafOf(t testing.TB, s signer, parent *issuer) *issuer {
	return issue(t, "leaf", s.public, s, parent, nil)
}

// auths are values of ClientAuth that have a certificate asked for: without a root that
// vouches for it, and with one.
var auths = []tls.ClientAuthType{tls.RequestClientCert, tls.VerifyClientCertIfGiven}

// stranger runs the handshake of a client that shows a chain, at a server. spent is the
// time that the server takes.
func stranger(client, server *tls.Config, chain []*issuer, who payer) (a, b *end, spent time.Duration) {
	client = client.Clone()
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown(chain), nil }
	a = newEnd(Client(client, nil))
	start := time.Now()
	b = newEnd(Server(server, nil))
	b.payer = who
	a.deliver(b)
	spent = time.Since(start)
	b.deliver(a)
	if server.ClientAuth == tls.NoClientCert && chain != nil { // though nobody has asked
		a.out[Handshake] = certificateMessage(chain...)
	}
	start = time.Now()
	a.deliver(b)
	spent += time.Since(start)
	b.deliver(a)
	a.Close()
	b.Close()
	return a, b, spent
}

// The key of a client's certificate is on the account of the handshake, whatever the
// server asks for: it is refused before crypto/tls has a signature by it, if that would
// take the handshake beyond three times an honest one.
func TestStrangersCostLittle(t *testing.T) {
	stray, root := byCurve(t, "stray", elliptic.P256(), nil), byCurve(t, "root", elliptic.P256(), nil)
	client, server := configs(t)
	server.ClientCAs = x509.NewCertPool()
	server.ClientCAs.AddCert(root.cert)
	dear := []string{"P-521", "RSA-4096 e=2147483647", "RSA-8192 e=65537", "RSA-8192 e=1073741827"}
	never := []string{"RSA-8192 e=2147483647", "RSA-8192 e=1073741827", "RSA-16384 e=3", "RSA-16384 e=65537", "RSA-16384 e=1073741827", "RSA-16384 e=2147483647"}
	all := signers(t, true)
	delete(all, "P-224") // TLS 1.3 has no signatures by it
	for name, s := range all {
		for _, server.ClientAuth = range auths {
			for _, parent := range []*issuer{stray, root} {
				for _, allowance := range []*Allowance{nil, new(Allowance)} {
					if server.ClientAuth >= tls.VerifyClientCertIfGiven && parent == stray {
						continue
					}
					_, b, _ := stranger(client, server, []*issuer{leafOf(t, s, parent)}, payer{allowance: allowance})
					require.Error(t, b.err, name)
					switch {
					case slices.Contains(never, name) || slices.Contains(dear, name) && allowance == nil:
						require.ErrorIs(t, b.err, errTakesLong, name)
						require.Equal(t, tls.AlertError(alertUnsupportedCertificate), AlertOf(b.err), name)
						require.ErrorContains(t, b.err, keyName(s.public), name)
					default:
						require.ErrorContains(t, b.err, "invalid signature by the client certificate", name)
						require.Equal(t, slices.Contains(dear, name), b.cost > maxCost, "%s: %d", name, b.cost)
					}
				}
			}
		}
	}
}

// Honest clients pass with every key that is not dearer than P-521. With the dearest they
// do as often as the allowance has it, or as they like if roots vouch for them.
func TestHonestClientsPass(t *testing.T) {
	stray, root := byCurve(t, "stray", elliptic.P256(), nil), byCurve(t, "root", elliptic.P256(), nil)
	client, server := configs(t)
	server.ClientCAs = x509.NewCertPool()
	server.ClientCAs.AddCert(root.cert)
	all := signers(t, false)
	all["RSA-4096"] = primesRSA(t, 8, 65537)
	delete(all, "P-224")
	for name, s := range all {
		for _, server.ClientAuth = range auths {
			for _, parent := range []*issuer{stray, root} {
				if server.ClientAuth >= tls.VerifyClientCertIfGiven && parent == stray {
					continue
				}
				who := payer{allowance: new(Allowance)}
				for range networkDear + 4 {
					if server.ClientAuth < tls.VerifyClientCertIfGiven {
						who.now += networkEvery / 4
					}
					a, b, _ := stranger(client, server, []*issuer{leafOf(t, s, parent)}, who)
					require.NoError(t, errors.Join(a.err, b.err), name)
					if name != "P-521" {
						break
					}
				}
			}
		}
	}
}

// A client that makes the key exchange dear as well has less for its certificate.
func TestKeyExchangeIsOnTheAccount(t *testing.T) {
	stray := byCurve(t, "stray", elliptic.P256(), nil)
	client, server := configs(t)
	server.ClientAuth = tls.RequireAnyClientCert
	s := signers(t, false)["P-384"]
	client.CurvePreferences = []tls.CurveID{tls.CurveP384}
	_, b, _ := stranger(client, server, []*issuer{leafOf(t, s, stray)}, payer{})
	require.ErrorIs(t, b.err, errTakesLong)
	_, b, _ = stranger(client, server, []*issuer{leafOf(t, s, stray)}, payer{allowance: new(Allowance)})
	require.NoError(t, b.err)
	require.Equal(t, 15, b.cost)

	client.CurvePreferences = []tls.CurveID{tls.CurveP521}
	_, b, _ = stranger(client, server, nil, payer{allowance: new(Allowance)})
	require.ErrorContains(t, b.err, "CurveP521 takes long, and CurvePreferences does not name it")
	require.Equal(t, tls.AlertError(alertHandshakeFailure), AlertOf(b.err))
	require.Empty(t, b.secrets, "nothing was computed")
	server.CurvePreferences, server.ClientAuth = []tls.CurveID{tls.X25519, tls.CurveP521}, tls.NoClientCert
	a, b, _ := stranger(client, server, nil, payer{})
	require.NoError(t, errors.Join(a.err, b.err))
}

// One Certificate message is looked at, and none that nobody has asked for.
func TestCertificateMessagesAreLookedAtOnce(t *testing.T) {
	_, hostile, roots := chains(t)
	client, server := configs(t)
	server.ClientCAs = roots
	chain := hostile["issuers of one name"]
	_, b, _ := stranger(client, server, chain, payer{})
	require.NotErrorIs(t, b.err, errTakesLong)
	require.ErrorContains(t, b.err, "unexpected")
	require.Nil(t, b.leaf)

	server.ClientAuth = tls.RequireAnyClientCert
	one := certificateMessage(byCurve(t, "one", elliptic.P256(), nil))
	a := newEnd(Client(client, nil))
	b = newEnd(Server(server, nil))
	a.deliver(b)
	cost := 0
	b.take(b.Handle(one))
	require.NoError(t, b.err)
	cost = b.cost
	b.take(b.Handle(slices.Concat(certificateMessage(chain...), one, one)))
	require.ErrorContains(t, b.err, "unexpected")
	require.Equal(t, cost, b.cost)
	a.Close()
	b.Close()
}

// What is in certificates is on the account before they are parsed, and what is hidden
// in extensions, too.
func TestCertificatesThatTakeLongToParse(t *testing.T) {
	key, stray := generate(t, elliptic.P256()), byCurve(t, "stray", elliptic.P256(), nil)
	client, server := configs(t)
	server.ClientAuth = tls.RequestClientCert
	hidden := func(n int) []byte { // names behind which there is something else
		names, err := asn1.Marshal(slices.Repeat([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("a")}}, n))
		require.NoError(t, err)
		return append(names, 5, 0)
	}
	for name, change := range map[string]func(n int, c *x509.Certificate){
		"names": fillers["names"], "units": fillers["units"], "usages": fillers["usages"], "extensions": fillers["extensions"],
		"numbers": func(n int, c *x509.Certificate) {
			c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{append(oid(1), make([]int, 28*n)...)}
		},
		"hidden": func(n int, c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: hidden(n)}}
		},
	} {
		dial := func(n int) error {
			leaf := issue(t, "leaf", key.Public(), key, stray, func(c *x509.Certificate) { change(n, c) })
			require.Less(t, len(leaf.cert.Raw), maxPeerFlight)
			_, b, _ := stranger(client, server, []*issuer{leaf}, payer{allowance: new(Allowance)})
			return b.err
		}
		require.NoError(t, dial(400), name)
		err := dial(maxCost * elementsAtOnce)
		require.ErrorIs(t, err, errTakesLong, name)
		require.Equal(t, tls.AlertError(alertBadCertificate), AlertOf(err), name)
	}
	deep := []byte{5, 0}
	for range 3000 {
		var err error
		deep, err = asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: deep})
		require.NoError(t, err)
	}
	require.Equal(t, 1001, elements(deep, 1000))
}

// At most so many signatures that take long are checked for a network, and wrong ones for
// all networks together; right ones by keys that roots vouch for are free.
func TestAllowance(t *testing.T) {
	var a Allowance
	first, second := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::")
	now := time.Hour
	take := func(network netip.Addr, right, vouched bool) bool {
		if !a.allows(network, now) {
			return false
		}
		a.charge(network, now, right, vouched)
		return true
	}
	count := func(network netip.Addr, right, vouched bool) (n int) {
		for n < 1000 && take(network, right, vouched) {
			n++
		}
		return n
	}
	require.Equal(t, 1000, count(first, true, true))
	require.Equal(t, networkDear, count(first, true, false))
	require.Equal(t, networkDear/wrongDear, count(second, false, true))
	require.False(t, take(first, true, true), "not even those, once it is used up")
	now += time.Second
	require.Equal(t, int(time.Second/networkEvery), count(first, true, false))
	require.Equal(t, 2, count(second, false, false))
	now += networkTime
	require.Equal(t, networkDear, count(first, true, false), "and no more than at first")

	wrong := 0
	for i := range 100 {
		wrong += count(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), false, false)
	}
	require.Equal(t, allWrong, wrong)
	require.Zero(t, count(netip.MustParseAddr("10.2.0.0"), true, true))
	now += allEvery
	require.Equal(t, 1000, count(netip.MustParseAddr("10.2.0.0"), true, true))
	require.Equal(t, 1, count(netip.MustParseAddr("10.2.0.0"), false, true))

	for range 1000 {
		now += allEvery
		take(netip.AddrFrom4([4]byte{10, byte(mathrand.IntN(256)), 3, byte(mathrand.IntN(256))}), false, false)
	}
	require.Less(t, len(a.networks[0])+len(a.networks[1]), 300, "networks are forgotten")
	require.False(t, (*Allowance)(nil).allows(first, 0))
}

// The account of keys.
func TestKeyCost(t *testing.T) {
	costs := map[string]int{
		"P-224": 4, "P-256": 1, "P-384": 10, "P-521": 24, "Ed25519": 2,
		"RSA-2048 e=3": 1, "RSA-2048 e=65537": 1, "RSA-2048 e=1073741827": 2, "RSA-2048 e=2147483647": 3,
		"RSA-3072 e=3": 1, "RSA-3072 e=65537": 3, "RSA-3072 e=1073741827": 5, "RSA-3072 e=2147483647": 8,
		"RSA-4096 e=3": 2, "RSA-4096 e=65537": 6, "RSA-4096 e=1073741827": 9, "RSA-4096 e=2147483647": 15,
		"RSA-8192 e=3": 11, "RSA-8192 e=65537": 24, "RSA-8192 e=1073741827": 37, "RSA-8192 e=2147483647": 61,
		"RSA-16384 e=3": 47, "RSA-16384 e=65537": 98, "RSA-16384 e=1073741827": 150, "RSA-16384 e=2147483647": 245,
	}
	for name, s := range signers(t, true) {
		require.Equal(t, costs[name], keyCost(s.public), name)
	}
	custom := &ecdsa.PublicKey{Curve: &elliptic.CurveParams{Name: "custom"}}
	require.Equal(t, maxKeyCost, keyCost(custom))
}
