package tunnel

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"github.com/arqnet/kcp/identity"
)

// LoadKey returns a certificate, signed by itself, for the private key in the file
// at path (PEM, PKCS #8). If there is no file, it makes a key and keeps it there,
// readable by nobody else.
func LoadKey(path string) (tls.Certificate, error) { return identity.Load(path, "kcptunnel") }

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
	return identity.ResetKey(*cert, "kcptunnel"), nil
}
