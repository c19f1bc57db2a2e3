package testenv

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
)

// BubbleTime returns the time at which bubbles begin.
func BubbleTime() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// Certificate returns a certificate for names, which signer has signed, or
// itself; good from 1999 to 2100.
func Certificate(t testing.TB, signer *tls.Certificate, ca bool, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: names[0]},
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(10, 0, 0, 1)},
		NotBefore:    BubbleTime().AddDate(-1, 0, 0),
		NotAfter:     BubbleTime().AddDate(100, 0, 0),
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

// TLS returns the settings of two ends that trust each other.
func TLS() *tls.Config {
	cert := Certificate(new(testing.T), nil, true, "test")
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, ServerName: "test"}
}

// Ciphers returns one cipher of each kind.
func Ciphers(t *testing.T, key byte) map[string]crypt.Cipher {
	t.Helper()
	k := bytes.Repeat([]byte{key}, 32)
	gcm, err := crypt.AESGCM(k)
	require.NoError(t, err)
	chacha, err := crypt.ChaCha20Poly1305(k)
	require.NoError(t, err)
	salsa, err := crypt.Salsa20(k)
	require.NoError(t, err)
	block, err := aes.NewCipher(k)
	require.NoError(t, err)
	if Repeated() {
		return map[string]crypt.Cipher{"no-cipher": nil, "aes-gcm": gcm, "aes-cfb": crypt.CFB(block)}
	}
	return map[string]crypt.Cipher{
		"no-cipher": nil, "aes-gcm": gcm, "chacha20": chacha, "salsa20": salsa,
		"aes-cfb": crypt.CFB(block), "xor": crypt.XOR(k), "none": crypt.None(),
	}
}

// AEAD returns an authenticating cipher.
func AEAD(t *testing.T) crypt.Cipher {
	c, err := crypt.AESGCM(bytes.Repeat([]byte{5}, 16))
	require.NoError(t, err)
	return c
}

// HidingCiphers returns ciphers of all kinds that hide content, and do not
// authenticate: with long blocks, with short ones, and a stream.
func HidingCiphers(t *testing.T) map[string]crypt.Cipher {
	block, err := des.NewTripleDESCipher(make([]byte, 24))
	require.NoError(t, err)
	salsa, err := crypt.Salsa20(make([]byte, 32))
	require.NoError(t, err)
	return map[string]crypt.Cipher{
		"CFB":     Ciphers(t, 1)["aes-cfb"],
		"CFB-8":   crypt.Locked(crypt.CFB(block)),
		"Salsa20": salsa,
	}
}

// keyID is a cipher that has a name of its key in front of each packet, as for
// the change of keys.
type keyID struct{ crypt.Cipher }

func (k keyID) Overhead() (head, tail int) {
	head, tail = k.Cipher.Overhead()
	return head + 8, tail
}

func (k keyID) Authenticated() bool { return true }

func (k keyID) Open(packet []byte) ([]byte, error) {
	return k.Cipher.Open(packet[min(8, len(packet)):])
}

func (k keyID) Seal(packet []byte) error {
	copy(packet, "key no 1")
	return k.Cipher.Seal(packet[8:])
}

// AuthenticCiphers returns ciphers of all kinds that authenticate.
func AuthenticCiphers(t *testing.T) map[string]crypt.Cipher {
	block, err := aes.NewCipher(make([]byte, 16))
	require.NoError(t, err)
	random, err := cipher.NewGCMWithRandomNonce(block)
	require.NoError(t, err)
	long, err := crypt.XChaCha20Poly1305(make([]byte, 32))
	require.NoError(t, err)
	return map[string]crypt.Cipher{
		"GCM":                   AEAD(t),
		"locked GCM":            crypt.Locked(AEAD(t)),
		"GCM with its nonces":   crypt.AEAD(random),
		"GCM with a key's name": keyID{AEAD(t)},
		"XChaCha20":             long,
	}
}

// LongChain returns a certificate for "test" of about size bytes in all, unlike
// any other of another serial number.
func LongChain(t testing.TB, serial int64, size int) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := tls.Certificate{PrivateKey: key}
	const each = 15_000
	for i := 0; size > 0; i++ {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial<<8 + int64(i)),
			Subject:      pkix.Name{CommonName: "test"}, DNSNames: []string{"test"},
			NotBefore: BubbleTime().AddDate(-1, 0, 0), NotAfter: BubbleTime().AddDate(100, 0, 0),
			ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: make([]byte, min(size, each))}},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		require.NoError(t, err)
		cert.Certificate = append(cert.Certificate, der)
		size -= each
	}
	return cert
}
