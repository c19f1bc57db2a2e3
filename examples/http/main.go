// Command http serves HTTP over KCP: HTTP/1.1 as it is, and HTTP/2 over TLS,
// whose streams share one session. net/http accepts any net.Listener and any
// dial function.
//
//	go run ./examples/http
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/selfsigned"
)

const serverName = "kcp.example"

// config returns the settings of the sessions. http.Server.Close closes them
// one after another, under a lock, so Close must not wait for the peer's
// answer. Written data, and the end, are delivered in the background.
func config() *kcp.Config { return &kcp.Config{Linger: -1} }

// dialFunc opens a session with the one server that a client talks to, whatever
// the address in a URL is.
type dialFunc func(ctx context.Context) (net.Conn, error)

// handler answers a request with its body.
func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Protocol", r.Proto)
		_, _ = w.Write(body) // fails only if the client is gone
	})
	return mux
}

// newServer returns a server. With a certificate, ServeTLS speaks HTTP/2.
func newServer(certificate *tls.Certificate) *http.Server {
	s := &http.Server{Handler: handler(), ReadHeaderTimeout: 10 * time.Second}
	if certificate != nil {
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*certificate}}
	}
	return s
}

// newClient returns a client whose connections are sessions. With roots it wants
// TLS, by which HTTP/2 is agreed on.
func newClient(dial dialFunc, roots *x509.CertPool) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	if roots != nil {
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
		transport.ForceAttemptHTTP2 = true // a custom DialContext switches it off
	}
	return &http.Client{Transport: transport}
}

// echo posts data and returns the answer, and the protocol that the server saw.
func echo(ctx context.Context, c *http.Client, scheme string, data []byte) (answer []byte, protocol string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+serverName+"/echo", bytes.NewReader(data))
	if err != nil {
		return nil, "", err
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, "", errors.New(response.Status)
	}
	answer, err = io.ReadAll(response.Body)
	return answer, response.Header.Get("Protocol"), err
}

// show starts a server and sends it a request.
func show(scheme string, certificate *tls.Certificate, roots *x509.CertPool) error {
	l, err := kcp.Listen("udp", "127.0.0.1:0", config())
	if err != nil {
		return err
	}
	server := newServer(certificate)
	defer server.Close()
	go func() {
		if certificate == nil {
			_ = server.Serve(l) // ends with Close
		} else {
			_ = server.ServeTLS(l, "", "")
		}
	}()
	client := newClient(func(ctx context.Context) (net.Conn, error) {
		d := kcp.Dialer{Config: config()}
		return d.DialContext(ctx, "udp", l.Addr().String())
	}, roots)
	defer client.CloseIdleConnections()
	question := bytes.Repeat([]byte("over KCP. "), 100_000)
	answer, protocol, err := echo(context.Background(), client, scheme, question)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes sent, %d came back, equal: %v\n", protocol, len(question), len(answer), bytes.Equal(question, answer))
	return nil
}

func main() {
	if err := show("http", nil, nil); err != nil {
		log.Fatal(err)
	}
	certificate, roots, err := selfsigned.New(serverName)
	if err != nil {
		log.Fatal(err)
	}
	if err := show("https", certificate, roots); err != nil {
		log.Fatal(err)
	}
}
