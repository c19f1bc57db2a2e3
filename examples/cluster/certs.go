package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Authority issues the certificates of a cluster. Whoever has a certificate of it is
// let in. Its key belongs on none of the nodes.
type Authority struct {
	Certificate tls.Certificate
	Cluster     string // the DNS name that all certificates of nodes have in common
}

// NewAuthority makes an authority for the cluster of that name, valid for ten years.
func NewAuthority(cluster string) (*Authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "authority of " + cluster},
		NotAfter:              time.Now().AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	cert, err := sign(template, nil)
	return &Authority{cert, cluster}, err
}

// Issue returns a certificate for the node of that name, valid for a year.
func (a *Authority) Issue(node string) (tls.Certificate, error) {
	if err := checkName(node); err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: node},
		DNSNames:    []string{a.Cluster},
		NotAfter:    time.Now().AddDate(1, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	return sign(template, &a.Certificate)
}

// Pool returns the certificates to verify nodes with.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Certificate.Leaf)
	return p
}

// sign completes template, and signs it by an authority; by itself if that is nil.
func sign(template *x509.Certificate, by *tls.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return tls.Certificate{}, err
	}
	template.NotBefore = time.Now().Add(-time.Hour) // clocks differ
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// Files of Save, behind the name.
const (
	certFile = ".crt"
	keyFile  = ".key"
)

// Save writes a certificate, and its key, to files in dir.
func Save(dir, name string, c tls.Certificate) error {
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	if err := os.WriteFile(filepath.Join(dir, name+certFile), cert, 0o644); err != nil {
		return err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return os.WriteFile(filepath.Join(dir, name+keyFile), private, 0o600)
}

// Load reads a certificate and its key from files that Save has written.
func Load(dir, name string) (tls.Certificate, error) {
	file := filepath.Join(dir, name)
	return tls.LoadX509KeyPair(file+certFile, file+keyFile)
}

// LoadPool reads the certificate of an authority, without its key.
func LoadPool(dir, name string) (*x509.CertPool, error) {
	b, err := os.ReadFile(filepath.Join(dir, name+certFile))
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("cluster: no certificate in %s", name+certFile)
	}
	return p, nil
}

// maxName is the size of the longest name of a node, in bytes.
const maxName = 128

// checkName returns an error for a name that no node can have.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("cluster: name of a node with %d bytes: 1 to %d are allowed", len(name), maxName)
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return fmt.Errorf("cluster: name of a node with characters that do not print: %q", name)
	}
	return nil
}

// nameIn returns the name of the node that a certificate was issued for: the common
// name of its subject.
func nameIn(leaf *x509.Certificate) (string, error) {
	name := leaf.Subject.CommonName
	return name, checkName(name)
}

// tlsConfig returns the settings of TLS of both roles: each end verifies that the other
// has a certificate of the authority, with the name of the cluster in it.
func tlsConfig(c *TransportConfig) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{c.Certificate},
		RootCAs:      c.CA,
		ServerName:   c.Cluster,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    c.CA,
		NextProtos:   []string{protocol},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("cluster: the peer has no certificate")
			}
			leaf := state.PeerCertificates[0]
			if err := leaf.VerifyHostname(c.Cluster); err != nil {
				return err
			}
			_, err := nameIn(leaf)
			return err
		},
	}
}

// resetKey returns a key for stateless resets that is the same after a restart of the
// node, as it comes from its private key. It is nil if the key cannot be read.
func resetKey(private crypto.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil
	}
	mac := hmac.New(sha256.New, der)
	mac.Write([]byte("kcp cluster: stateless reset"))
	return mac.Sum(nil)
}
