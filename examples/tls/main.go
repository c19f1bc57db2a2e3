// Command tls is an echo service over TLS on top of KCP sessions, for programs
// that have their own TLS over any net.Conn. It protects what is written; to
// protect the packets of the session as well, use kcp.Config.TLS, as
// examples/mtls does. To crypto/tls a KCP session is a net.Conn like any other.
//
//	go run ./examples/tls
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"time"

	"github.com/arqnet/kcp"
)

const serverName = "kcp.example"

// newIdentity makes a certificate. It returns the settings of a server that
// shows it, and of a client that trusts it alone. A real program would load it
// from a file.
func newIdentity() (server, client *tls.Config, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{serverName},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	server = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
	client = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: serverName}
	return server, client, nil
}

// serve sends back what each session receives, until l is closed.
func serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			// The client's CloseWrite ends the copy.
			if _, err := io.Copy(conn, conn); err != nil {
				log.Print(err)
			}
		}()
	}
}

// exchange sends data over a session and returns what comes back.
func exchange(session net.Conn, config *tls.Config, data []byte) ([]byte, error) {
	conn := tls.Client(session, config)
	defer conn.Close()
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- err
	}()
	answer, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	return answer, <-sent
}

func main() {
	server, client, err := newIdentity()
	if err != nil {
		log.Fatal(err)
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go serve(tls.NewListener(l, server))

	session, err := kcp.Dial("udp", l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	question := bytes.Repeat([]byte("over TLS over KCP. "), 50_000)
	answer, err := exchange(session, client, question)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes sent, %d came back, equal: %v\n", len(question), len(answer), bytes.Equal(question, answer))
}
