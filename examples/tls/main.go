// Command tls is an echo service over TLS on top of KCP sessions, for programs
// that have their own TLS over any net.Conn. It protects what is written; to
// protect the packets of the session as well, use kcp.Config.TLS. To crypto/tls a KCP
// session is a net.Conn like any other.
//
//	go run ./examples/tls
package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

const serverName = "kcp.example"

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
	// A real program would load a certificate from a file.
	cert, err := identity.New(serverName)
	if err != nil {
		log.Fatal(err)
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}))

	session, err := kcp.Dial("udp", l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	question := bytes.Repeat([]byte("over TLS over KCP. "), 50_000)
	answer, err := exchange(session, &tls.Config{RootCAs: identity.Pool(cert), ServerName: serverName}, question)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes sent, %d came back, equal: %v\n", len(question), len(answer), bytes.Equal(question, answer))
}
