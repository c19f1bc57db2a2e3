package main

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/arqnet/kcp"
)

// alpn is the application protocol of sessions with TLS.
const alpn = "transfer/1"

// peerTimeout is how long a peer may be silent before a session is lost, which is
// also how long a client does not dial again after an outage.
const peerTimeout = 10 * time.Second

// tlsFiles are the flags of TLS. The zero value means none.
type tlsFiles struct {
	on            bool // of a client: TLS without any of the files
	cert, key, ca string
}

// serverConfig returns the settings of the server's sessions.
func (f tlsFiles) serverConfig() (*kcp.Config, error) {
	config := &kcp.Config{PeerTimeout: peerTimeout, MaxSessions: maxSessions}
	if f.cert == "" {
		if f.key != "" || f.ca != "" {
			return nil, errors.New("-key and -ca do nothing without -cert")
		}
		return config, nil
	}
	t, err := f.load()
	if err != nil {
		return nil, err
	}
	if t.ClientCAs = t.RootCAs; t.ClientCAs != nil {
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	config.TLS = t
	config.StatelessResetKey, err = resetKey(f.key)
	return config, err
}

// resetKey returns a key by which clients of a restarted server learn at once that
// their sessions are gone. It has to be the same after the restart, so it comes from
// the private key in the file, which no other server should have.
func resetKey(file string) ([]byte, error) {
	secret, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, secret, nil, "transfer stateless reset", 32)
}

// clientConfig returns the settings of the client's sessions.
func (f tlsFiles) clientConfig() (*kcp.Config, error) {
	config := &kcp.Config{PeerTimeout: peerTimeout}
	if f == (tlsFiles{}) {
		return config, nil
	}
	t, err := f.load()
	config.TLS = t
	return config, err
}

// load reads the files.
func (f tlsFiles) load() (*tls.Config, error) {
	t := &tls.Config{NextProtos: []string{alpn}}
	if f.cert != "" || f.key != "" {
		cert, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{cert}
	}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, err
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", f.ca)
		}
	}
	return t, nil
}
