// Command http serves HTTP over KCP sessions with package kcphttp: HTTP/1.1, and HTTP/2,
// whose requests share one session.
//
//	go run ./examples/http
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/kcphttp"
)

const serverName = "kcp.example"

// settings returns the settings of the sessions, with TLS if it is not nil.
func settings(config *tls.Config) *kcp.Config {
	c := &kcp.Config{Linger: -1, TLS: config}
	if config != nil && len(config.Certificates) > 0 {
		c.StatelessResetKey = identity.ResetKey(config.Certificates[0], "http")
	}
	return c
}

// echoHandler answers a request with its body, and says what it has seen of it: the
// protocol, and the name in the client's certificate.
func echoHandler(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Protocol", r.Proto)
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		w.Header().Set("You-Are", strings.Join(r.TLS.PeerCertificates[0].DNSNames, ","))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(body) // fails only if the client is gone
}

// echo sends data, in a request that may be sent again. It returns the answer, and its headers.
func echo(ctx context.Context, c *http.Client, scheme string, data []byte) ([]byte, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, scheme+"://"+serverName, bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return answer, response.Header, err
}

// show starts a server and sends it a request.
func show(ctx context.Context, http2 bool) error {
	// Real programs load certificates from files (identity.LoadPair, identity.LoadCAs).
	cert, err := identity.New(serverName)
	if err != nil {
		return err
	}
	roots := identity.Pool(cert)
	protocol := map[bool]string{false: "http/1.1", true: "h2"}[http2]
	server := &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots,
	}
	client := &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{protocol},
		RootCAs: roots, ServerName: serverName,
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", settings(server))
	if err != nil {
		return err
	}
	s := kcphttp.NewServer(http.HandlerFunc(echoHandler))
	defer s.Close()
	go s.Serve(l) // until Close or Shutdown
	c := &http.Client{Transport: kcphttp.NewTransport(func(ctx context.Context) (net.Conn, error) {
		return (&kcp.Dialer{Config: settings(client)}).DialContext(ctx, "udp", l.Addr().String())
	}, http2)}
	defer c.CloseIdleConnections()
	question := bytes.Repeat([]byte("over KCP. "), 100_000)
	answer, header, err := echo(ctx, c, "https", question)
	if err != nil {
		return err
	}
	fmt.Printf("%s, from %q: %d bytes sent, %d came back, equal: %v\n", header.Get("Protocol"), header.Get("You-Are"),
		len(question), len(answer), bytes.Equal(question, answer))
	return kcphttp.Shutdown(ctx, s, l)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, http2 := range []bool{false, true} {
		if err := show(ctx, http2); err != nil {
			log.Fatal(err)
		}
	}
}
