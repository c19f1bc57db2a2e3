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

// FingerprintError means that the peer has another key than it should.
type FingerprintError struct {
	Got  string   // the fingerprint of the peer's key
	Want []string // those that this end knows
}

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("the peer's key has the fingerprint %s, not %s", e.Got, strings.Join(e.Want, " or "))
}

// Pin has c want a peer whose key has one of the fingerprints, at either end. Neither an
// authority nor a name counts for it, unless c has RootCAs, or the ClientAuth of those.
func Pin(c *tls.Config, want ...string) {
	c.InsecureSkipVerify = c.RootCAs == nil
	c.ClientAuth = max(c.ClientAuth, tls.RequireAnyClientCert)
	c.VerifyConnection = func(state tls.ConnectionState) error { return Verify(state, want...) }
}

// Verify returns an error unless the peer's key has one of the fingerprints. It is for a
// tls.Config.VerifyConnection that Pin does not fit.
func Verify(state tls.ConnectionState, want ...string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the peer did not present a certificate")
	}
	if got := Fingerprint(state.PeerCertificates[0]); !slices.Contains(want, got) {
		return &FingerprintError{got, want}
	}
	return nil
}

// Pool returns the pool that trusts certificates alone, for tls.Config.RootCAs and
// ClientCAs.
func Pool(certs ...tls.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c.Leaf)
	}
	return pool
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
