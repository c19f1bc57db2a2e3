package testenv

import (
	"bytes"
	"crypto/aes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
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
