// Package identity has what programs say of themselves, and show and check of peers:
// fingerprints of public keys, pins of them, files of certificates, and the version of
// the build. For demonstrations it makes certificates.
package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxFile is how many bytes of a file of certificates are read.
const maxFile = 1 << 20

// Fingerprint returns the fingerprint of a certificate's public key, in the form of
// ssh: "SHA256:" and 43 characters. It is the hash of the SubjectPublicKeyInfo, so a
// new certificate for the same key has the same.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// Check returns an error if s is not a fingerprint.
func Check(s string) error {
	sum, ok := strings.CutPrefix(s, "SHA256:")
	if b, err := base64.RawStdEncoding.DecodeString(sum); !ok || err != nil || len(b) != sha256.Size {
		return fmt.Errorf("%q is not a fingerprint: want SHA256: and 43 characters, as the server prints it", s)
	}
	return nil
}

// FingerprintError means that a server has another key than it should.
type FingerprintError struct {
	Got  string   // the fingerprint of the server's key
	Want []string // those that the client knows
}

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("the server's key has the fingerprint %s, not %s", e.Got, strings.Join(e.Want, " or "))
}

// Pin has c want a server whose key has one of the fingerprints, instead of a certificate
// of an authority unless c has some.
func Pin(c *tls.Config, want ...string) {
	c.InsecureSkipVerify = c.RootCAs == nil
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server did not present a certificate")
		}
		if got := Fingerprint(state.PeerCertificates[0]); !slices.Contains(want, got) {
			return &FingerprintError{got, want}
		}
		return nil
	}
}

// LoadCAs reads the certificates of authorities from a file of PEM.
func LoadCAs(path string) (*x509.CertPool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return pool, nil
}

// LoadPair reads a certificate and its key from files of PEM.
func LoadPair(cert, key string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("certificate %s with key %s: %w", cert, key, err)
	}
	return pair, nil
}
