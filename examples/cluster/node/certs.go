package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"path/filepath"
	"time"

	"github.com/arqnet/kcp/identity"
)

const authorityName = "authority" // of its files

// certs makes an authority, and a certificate for each name, in files. A real authority is
// elsewhere, and its key never on a node.
func certs(dir, cluster string, names []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := issue(nil, authorityName, cluster)
	if err == nil {
		err = save(dir, authorityName, ca)
	}
	for _, name := range names {
		if err != nil {
			return err
		}
		var c *tls.Certificate
		if c, err = issue(ca, name, cluster); err == nil {
			err = save(dir, name, c)
		}
	}
	return err
}

// issue returns a certificate for a common name and a DNS name, signed by an authority. If
// that is nil it is signed by itself, and can sign others.
func issue(by *tls.Certificate, name, dnsName string) (*tls.Certificate, error) {
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

// save writes a certificate and its key to files.
func save(dir, name string, c *tls.Certificate) error {
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, name)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	if err := os.WriteFile(file+".crt", cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600)
}

// load reads what save has written: the certificate of a node, and of the authority.
func load(dir, node string) (tls.Certificate, *x509.CertPool, error) {
	file := filepath.Join(dir, node)
	cert, err := tls.LoadX509KeyPair(file+".crt", file+".key")
	if err != nil {
		return cert, nil, err
	}
	pool, err := identity.LoadCAs(filepath.Join(dir, authorityName+".crt"))
	return cert, pool, err
}
