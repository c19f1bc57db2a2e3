// Command http serves HTTP over KCP sessions: HTTP/1.1, and HTTP/2, whose requests
// share one session. net/http accepts any net.Listener and any dial function.
// The sessions do the encryption (kcp.Config.TLS). net/http takes every
// connection but a *tls.Conn for one without TLS. So HTTP/2 is what it calls
// unencrypted, and Request.TLS has to be set: see newServer and newClient. After
// http.Server.Shutdown the answers still have to be delivered: see shutdown.
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
)

const serverName = "kcp.example"

// settings returns the settings of the sessions, with TLS if it is not nil.
// http.Server.Close closes them one after another, under a lock, so Close must
// not wait for the peer's answer. Written data, and the end, are delivered in
// the background.
func settings(config *tls.Config) *kcp.Config { return &kcp.Config{Linger: -1, TLS: config} }

// tlsOf returns what TLS has agreed on for a session, or for the session of a
// stream; nil without kcp.Config.TLS.
func tlsOf(c net.Conn) *tls.ConnectionState {
	if s, ok := c.(*kcp.Stream); ok {
		c = s.Conn()
	}
	return c.(*kcp.Conn).Peer().TLS
}

// tlsKey is the key of the session's TLS in the context of a request.
type tlsKey struct{}

// newServer returns a server that speaks HTTP/1.1 and HTTP/2, as the client
// begins. Its Serve takes a *kcp.Listener, with or without kcp.Config.TLS.
func newServer(handler http.Handler) *http.Server {
	s := &http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, tlsKey{}, tlsOf(c))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			request := *r
			request.TLS, _ = r.Context().Value(tlsKey{}).(*tls.ConnectionState)
			handler.ServeHTTP(w, &request)
		}),
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: 10 * time.Second,
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// shutdown ends a server that serves l: it takes no more requests, and the answers to
// those in progress are delivered, or ctx ends. Sessions go on after http.Server has
// closed them until the client has all, so a program must not end before.
func shutdown(ctx context.Context, s *http.Server, l *kcp.Listener) error {
	return errors.Join(s.Shutdown(ctx), l.Endpoint().Shutdown(ctx))
}

// dialFunc opens a session, or a stream, with the one server that a client talks
// to, whatever the address in a URL is.
type dialFunc func(ctx context.Context) (net.Conn, error)

// newClient returns a client of HTTP/2, or of HTTP/1.1. URLs of https need
// sessions with TLS.
func newClient(dial dialFunc, http2 bool) *http.Client {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			state := tlsOf(c)
			if state == nil {
				c.Close()
				return nil, errors.New("https over a session without TLS")
			}
			return secured{c, *state}, nil
		},
		Protocols: new(http.Protocols),
	}
	t.Protocols.SetHTTP1(!http2)
	t.Protocols.SetUnencryptedHTTP2(http2)
	return &http.Client{Transport: t}
}

// secured is a session with the method from which the client of HTTP/2 takes
// Response.TLS.
type secured struct {
	net.Conn
	state tls.ConnectionState
}

func (c secured) ConnectionState() tls.ConnectionState { return c.state }

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

// echo posts data. It returns the answer, and its headers.
func echo(ctx context.Context, c *http.Client, scheme string, data []byte) ([]byte, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+serverName, bytes.NewReader(data))
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
	// Real programs load certificates from files: examples/mtls has an authority.
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
	s := newServer(http.HandlerFunc(echoHandler))
	defer s.Close()
	go s.Serve(l) // until Close or shutdown
	c := newClient(func(ctx context.Context) (net.Conn, error) {
		return (&kcp.Dialer{Config: settings(client)}).DialContext(ctx, "udp", l.Addr().String())
	}, http2)
	defer c.CloseIdleConnections()
	question := bytes.Repeat([]byte("over KCP. "), 100_000)
	answer, header, err := echo(ctx, c, "https", question)
	if err != nil {
		return err
	}
	fmt.Printf("%s, from %q: %d bytes sent, %d came back, equal: %v\n", header.Get("Protocol"), header.Get("You-Are"),
		len(question), len(answer), bytes.Equal(question, answer))
	return shutdown(ctx, s, l)
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
