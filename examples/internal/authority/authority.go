// Package authority makes certificates for the examples. A real authority is elsewhere, and
// its key never on a server.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"time"
)

// Issue returns a certificate for a common name and a DNS name, signed by an authority. If
// that is nil it is signed by itself, and can sign others.
func Issue(by *tls.Certificate, name, dnsName string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{ // the serial number is random
		Subject:   pkix.Name{CommonName: name},
		DNSNames:  []string{dnsName},
		NotBefore: time.Now().Add(-time.Hour), // clocks differ
		NotAfter:  time.Now().AddDate(1, 0, 0),
	}
	parent, signer := template, any(key)
	if by == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
	} else {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
