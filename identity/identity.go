// Package identity has keys by which the ends of a session know each other without an
// authority, as with ssh. An end shows a certificate that it has signed itself. The other
// one compares the fingerprint of its public key:
//
//	cert, err := identity.Load("server.pem", "game") // made if there is none
//	server := &kcp.Config{
//		TLS:               &tls.Config{Certificates: []tls.Certificate{cert}},
//		StatelessResetKey: identity.ResetKey(cert, "game"),
//	}
//	fmt.Println(identity.Fingerprint(cert.Leaf)) // clients get it as they get the address
//
//	client := &kcp.Config{TLS: new(tls.Config)}
//	identity.Pin(client.TLS, fingerprint)
package identity

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
	"os"
	"path/filepath"
	"time"
)

// New returns a certificate for a new key (P-256), as Certificate does.
func New(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	return Certificate(key, name)
}

// Load returns a certificate for the private key in the file at path (PEM, PKCS #8). If
// there is no file, it makes a key and keeps it there, readable by nobody else.
func Load(path, name string) (tls.Certificate, error) {
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
	return Certificate(signer, name)
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

// Certificate returns a certificate for a key, signed by itself: for a host name, good for
// ten years. It is made anew for each process, as peers look at the key alone.
func Certificate(key crypto.Signer, name string) (tls.Certificate, error) {
	now := time.Now()
	template := &x509.Certificate{ // the serial number is random
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    []string{name},
		NotBefore:   now.Add(-24 * time.Hour), // clocks differ
		NotAfter:    now.AddDate(10, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// ResetKey returns a key for kcp.Config.StatelessResetKey, which depends on the private
// key and the service alone. So a server that was killed is the same for its peers as it
// was: they learn at once that their sessions are gone. It is nil if the key is in
// hardware: then each process draws its own.
func ResetKey(cert tls.Certificate, service string) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return nil
	}
	key, _ := hkdf.Key(sha256.New, der, nil, service+" stateless reset", 32) // fails for longer ones
	return key
}
