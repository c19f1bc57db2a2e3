package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	"github.com/arqnet/kcp/examples/internal/authority"
	"github.com/arqnet/kcp/identity"
)

const authorityName = "authority" // of its files

// certs makes an authority, and a certificate for each name, in files.
func certs(dir, cluster string, names []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := authority.Issue(nil, authorityName, cluster)
	if err == nil {
		err = save(dir, authorityName, ca)
	}
	for _, name := range names {
		if err != nil {
			return err
		}
		var c *tls.Certificate
		if c, err = authority.Issue(ca, name, cluster); err == nil {
			err = save(dir, name, c)
		}
	}
	return err
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
