package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"sync"
	"time"
)

// Application protocols (ALPN) of the two kinds of sessions. An endpoint has one
// tls.Config, so the protocol tells which key the other end must have.
const (
	protoMeet = "p2p-rendezvous/1"
	protoFile = "p2p-file/1"
)

// newKey makes a key with a certificate. Nobody vouches for it: what counts is the
// fingerprint.
func newKey() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // none, RFC 5280 §4.1.2.5
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// keyFile returns the key in a PEM file, and makes the file if there is none. An empty
// name means a new key that is kept nowhere.
func keyFile(name string) (tls.Certificate, error) {
	if name == "" {
		return newKey()
	}
	cert, err := tls.LoadX509KeyPair(name, name)
	if !errors.Is(err, fs.ErrNotExist) {
		return cert, err
	}
	if cert, err = newKey(); err != nil {
		return cert, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return cert, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})...)
	return cert, os.WriteFile(name, text, 0o600)
}

// fingerprint returns the SHA-256 of the public key of a certificate, in the form of ssh.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// pins are the fingerprints that an end expects.
type pins struct {
	mu     sync.Mutex
	server string // of the rendezvous server; empty means any
	peer   string // empty means none
}

// expect sets the fingerprint of the peer's key.
func (p *pins) expect(peer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peer = peer
}

// verify is the VerifyConnection of a tls.Config.
func (p *pins) verify(state tls.ConnectionState) error {
	p.mu.Lock()
	server, peer := p.server, p.peer
	p.mu.Unlock()
	if len(state.PeerCertificates) == 0 {
		return errors.New("no certificate")
	}
	got := fingerprint(state.PeerCertificates[0])
	switch state.NegotiatedProtocol {
	case protoMeet:
		if server != "" && got != server {
			return fmt.Errorf("the rendezvous server's key has the fingerprint %s, not %s", got, server)
		}
	case protoFile:
		if got != peer {
			return fmt.Errorf("the peer's key has the fingerprint %s, not %q", got, peer)
		}
	default:
		return fmt.Errorf("the protocol %q", state.NegotiatedProtocol)
	}
	return nil
}

// peerTLS returns the settings of an end that may become the client or the server of the
// session with its peer. It takes no session from others: a rendezvous server would have
// to name the other protocol.
func peerTLS(cert tls.Certificate, p *pins) *tls.Config {
	return &tls.Config{
		Certificates:       []tls.Certificate{cert},
		NextProtos:         []string{protoFile, protoMeet}, // the first that both have
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection takes its place
		VerifyConnection:   p.verify,
		// A resumed session would show no certificate of this code's peer.
		SessionTicketsDisabled: true,
	}
}

// serverTLS returns the settings of the rendezvous server, which knows no clients.
func serverTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protoMeet}}
}
