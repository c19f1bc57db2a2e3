package kcp

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// badSigner signs something else than what it is asked to.
type badSigner struct{ crypto.Signer }

func (s badSigner) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	digest = slices.Clone(digest)
	digest[0] ^= 1
	return s.Signer.Sign(random, digest, opts)
}

// halfKey is the public half of a key; its signatures are noise.
type halfKey struct{ rsa.PublicKey }

func (k *halfKey) Public() crypto.PublicKey { return &k.PublicKey }

func (k *halfKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return make([]byte, k.Size()), nil
}

// ownCertificate returns a certificate for a key, by another key.
func ownCertificate(t *testing.T, key crypto.Signer, by crypto.Signer) tls.Certificate {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), by)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Clients with P-521 keys get in where keys are pinned. Who has sent wrong signatures by
// such keys is refused for some time, with the rest of its network; other networks are
// not. Keys that are dearer still are refused. Both ends say why.
func TestTLSDearClients(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		plain, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		require.NoError(t, err)
		good := ownCertificate(t, key, key)
		wrong := ownCertificate(t, badSigner{key}, plain)
		n := new(big.Int).Lsh(big.NewInt(1), 8192)
		never := ownCertificate(t, &halfKey{rsa.PublicKey{N: n.Sub(n, big.NewInt(1)), E: 1<<31 - 1}}, plain)

		config := secured(Config{})
		config.TLS = config.TLS.Clone()
		config.TLS.ClientAuth = tls.RequireAnyClientCert
		failed := make(chan error, 1)
		config.HandshakeFailed = func(_ net.Addr, err error) { failed <- err }
		w.listen(config)
		dial := func(from string, cert tls.Certificate) error {
			client := secured(Config{})
			client.TLS = client.TLS.Clone()
			client.TLS.Certificates = []tls.Certificate{cert}
			e, _ := w.endpoint(from, client)
			defer e.Close()
			_, err := e.Dial(context.Background(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)))
			return err
		}
		for range 16 {
			require.NoError(t, dial("10.0.1.1:0", good))
		}
		checked := 0
		for {
			err := dial("10.0.1.2:0", wrong)
			local := <-failed
			if alertOf(local) == alertUnsupportedCertificate {
				requireAlert(t, err, true, alertUnsupportedCertificate)
				require.ErrorContains(t, local, "the key is ECDSA with P-521, and the network has used up its allowance of them")
				break
			}
			requireAlert(t, err, true, alertDecryptError)
			checked++
		}
		require.Contains(t, []int{4, 5}, checked)
		requireAlert(t, dial("10.0.1.2:0", good), true, alertUnsupportedCertificate)
		<-failed
		require.NoError(t, dial("10.0.1.2:0", ownCertificate(t, plain, plain)), "others of the network")
		require.NoError(t, dial("10.0.1.3:0", good), "of another network")
		time.Sleep(time.Second)
		require.NoError(t, dial("10.0.1.2:0", good), "later")

		requireAlert(t, dial("10.0.1.4:0", never), true, alertUnsupportedCertificate)
		require.ErrorContains(t, <-failed, "the key is RSA with 8192 bits and the exponent 2147483647")
	})
}

// alertOf returns the alert in an error.
func alertOf(err error) tls.AlertError {
	var alert tls.AlertError
	_ = errors.As(err, &alert)
	return alert
}

// A client, too, does not check signatures by keys that are dearer than P-521.
func TestTLSDearServer(t *testing.T) {
	plain, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	require.NoError(t, err)
	n := new(big.Int).Lsh(big.NewInt(1), 8192)
	never := &halfKey{rsa.PublicKey{N: n.Sub(n, big.NewInt(1)), E: 1<<31 - 1}}
	for _, server := range []crypto.Signer{never, key} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			_, dialErr, acceptErr := w.dialTLS(withCertificate(Config{}, ownCertificate(t, plain, plain)), withCertificate(Config{}, ownCertificate(t, server, plain)))
			if server == key {
				require.NoError(t, errors.Join(dialErr, acceptErr))
				return
			}
			requireAlert(t, dialErr, false, alertUnsupportedCertificate)
			require.ErrorContains(t, dialErr, "the key is RSA with 8192 bits and the exponent 2147483647")
			requireAlert(t, acceptErr, true, alertUnsupportedCertificate)
		})
	}
}
