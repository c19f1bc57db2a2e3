package tunnel

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/arqnet/kcp/internal/identity"
)

// LoadKey returns a certificate, signed by itself, for the private key in the file
// at path (PEM, PKCS #8). If there is no file, it makes a key and keeps it there,
// readable by nobody else.
func LoadKey(path string) (tls.Certificate, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = makeKey(path)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return tls.Certificate{}, fmt.Errorf("%s has no key in PEM", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s has no private key of PKCS #8: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return tls.Certificate{}, fmt.Errorf("%s has a key of type %T, which cannot sign", path, key)
	}
	return selfSigned(signer)
}

// makeKey makes a key and keeps it in a file. If two processes do so at the
// same time, both use the key of the first.
func makeKey(path string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	// A file under another name, so that there is never half a key.
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
		return os.ReadFile(path)
	} else if err != nil { // a file system without links
		if err := os.Rename(f.Name(), path); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// selfSigned returns a certificate for a key. It is made again for each process:
// clients look at the key alone.
func selfSigned(key crypto.Signer) (tls.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "kcptunnel"},
		DNSNames:     []string{"kcptunnel"},
		NotBefore:    now.Add(-24 * time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// Fingerprint returns the fingerprint of a certificate's public key, in the form of
// ssh: "SHA256:" and 43 characters. A new certificate for the same key has the same.
func Fingerprint(cert *x509.Certificate) string { return identity.Fingerprint(cert) }

// FingerprintError means that a server has another key than it should.
type FingerprintError = identity.FingerprintError

// leafOf returns the certificate that an end shows.
func leafOf(cert *tls.Certificate) (*x509.Certificate, error) {
	if cert.Leaf != nil {
		return cert.Leaf, nil
	}
	if len(cert.Certificate) == 0 {
		return nil, errors.New("no certificate is given")
	}
	return x509.ParseCertificate(cert.Certificate[0])
}

// certificateFingerprint is Fingerprint of what a server shows.
func certificateFingerprint(cert *tls.Certificate) (string, error) {
	leaf, err := leafOf(cert)
	if err != nil {
		return "", err
	}
	return Fingerprint(leaf), nil
}

// warnOfTime logs if a certificate of this end is not valid now: the other end refuses it
// if it asks an authority.
func warnOfTime(log *slog.Logger, cert *tls.Certificate) {
	leaf, err := leafOf(cert)
	if err != nil {
		return // those who use it say so
	}
	if now := time.Now(); now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		log.Warn("the certificate is not valid now", "subject", leaf.Subject.String(), "from", leaf.NotBefore, "until", leaf.NotAfter)
	}
}

// resetKey returns the key for kcp.Config.StatelessResetKey: the same after a
// restart of the server, so that its clients learn of it at once.
func resetKey(cert *tls.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return nil, nil // a key in hardware: each process draws its own
	}
	return hkdf.Key(sha256.New, der, nil, "kcptunnel stateless reset", 32)
}
