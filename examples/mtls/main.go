// Command mtls is a service whose clients prove who they are by certificates
// (mutual TLS): TLS 1.3 in the packets of KCP sessions. Each client has an
// account of its own, under the name in its certificate.
//
//	go run ./examples/mtls
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"sync"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/authority"
	"github.com/arqnet/kcp/identity"
)

const (
	serverName = "bank.example"
	protocol   = "balance/1" // ALPN: both ends have to name it
)

// newAuthority makes a certificate that can sign others, and the pool that trusts it.
func newAuthority() (*tls.Certificate, *x509.CertPool, error) {
	ca, err := authority.Issue(nil, "authority", "authority")
	if err != nil {
		return nil, nil, err
	}
	return ca, identity.Pool(*ca), nil
}

// config returns the settings of the server, or of the client of that name, with a
// certificate that an authority has issued. Only clients with one that the pool trusts get
// to Accept.
func config(ca *tls.Certificate, trusted *x509.CertPool, name string) (*kcp.Config, error) {
	cert, err := authority.Issue(ca, name, name)
	if err != nil {
		return nil, err
	}
	reset := identity.ResetKey(*cert, "bank") // for a key that is kept
	return &kcp.Config{StatelessResetKey: reset, TLS: &tls.Config{
		Certificates: []tls.Certificate{*cert},
		NextProtos:   []string{protocol},
		// Of a server:
		ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs:  trusted,
		// Of a client:
		ServerName: serverName,
		RootCAs:    trusted,
	}}, nil
}

// bank counts what each client pays in.
type bank struct {
	mu       sync.Mutex
	balances map[string]int
}

// serve accepts sessions until l is closed.
func (b *bank) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go b.session(conn.(*kcp.Conn))
	}
}

// session serves one client. The handshake is done, so its certificate is known
// and verified.
func (b *bank) session(conn *kcp.Conn) {
	defer conn.Close()
	name := conn.Peer().TLS.PeerCertificates[0].Subject.CommonName
	for {
		var amount int
		if _, err := fmt.Fscanln(conn, &amount); err != nil {
			return
		}
		b.mu.Lock()
		b.balances[name] += amount
		balance := b.balances[name]
		b.mu.Unlock()
		if _, err := fmt.Fprintf(conn, "%s has %d\n", name, balance); err != nil {
			return
		}
	}
}

// pay pays amounts in, and returns what the bank has answered.
func pay(conn net.Conn, amounts ...int) (answers string, err error) {
	defer conn.Close()
	for _, amount := range amounts {
		if _, err := fmt.Fprintln(conn, amount); err != nil {
			return "", err
		}
	}
	if err := conn.(*kcp.Conn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(conn)
	return string(b), err
}

func run() error {
	ca, trusted, err := newAuthority()
	if err != nil {
		return err
	}
	c, err := config(ca, trusted, serverName)
	if err != nil {
		return err
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", c)
	if err != nil {
		return err
	}
	defer l.Close()
	go (&bank{balances: make(map[string]int)}).serve(l)
	stranger, _, err := newAuthority()
	if err != nil {
		return err
	}
	for name, by := range map[string]*tls.Certificate{"alice": ca, "bob": ca, "eve": stranger} {
		c, err := config(by, trusted, name)
		if err != nil {
			return err
		}
		conn, err := kcp.Dial("udp", l.Addr().String(), c)
		if err != nil {
			fmt.Printf("%s: %v\n", name, err)
			continue
		}
		answers, err := pay(conn, 10, 20)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %q\n", name, answers)
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
