// Package kcphttp has net/http speak HTTP/1.1 and HTTP/2 over sessions of package kcp, or
// over their streams. The sessions do the encryption (kcp.Config.TLS).
//
// Let both ends have kcp.Config.Linger -1, as http.Server.Close closes sessions one after
// another, under a lock: written data, and the end, are then delivered in the background.
// With TLS name the protocol in NextProtos, h2 or http/1.1, and both at the server. Give
// the server a StatelessResetKey (identity.ResetKey): a client then learns with its next
// request that the server was killed.
package kcphttp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/arqnet/kcp"
)

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

// NewServer returns a server whose Serve takes a *kcp.Listener, or a listener of streams.
// The client chooses between HTTP/1.1 and HTTP/2. Request.TLS is that of the session, as
// net/http takes every connection but a *tls.Conn for one without TLS.
func NewServer(handler http.Handler) *http.Server {
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

// Shutdown ends a server that serves l: it takes no more requests, and the answers to
// those in progress are delivered, or ctx ends. Sessions go on after http.Server has
// closed them until the client has all, so a program must not end before.
func Shutdown(ctx context.Context, s *http.Server, l *kcp.Listener) error {
	return errors.Join(s.Shutdown(ctx), l.Endpoint().Shutdown(ctx))
}

// Transport is an http.Transport that sends requests again which the server may not have
// got, as it was killed, or is not there yet. It does so for 10 s with requests that are
// idempotent (RFC 9110 §9.2.2), or have a header Idempotency-Key.
type Transport struct{ *http.Transport }

// NewTransport returns a transport of HTTP/2, or of HTTP/1.1, for the one server that dial
// opens sessions, or streams, with. URLs of https need sessions with TLS.
func NewTransport(dial func(ctx context.Context) (net.Conn, error), http2 bool) Transport {
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
	return Transport{t}
}

// secured is a session with the method from which the client of HTTP/2 takes
// Response.TLS.
type secured struct {
	net.Conn
	state tls.ConnectionState
}

func (c secured) ConnectionState() tls.ConnectionState { return c.state }

const (
	patience = 10 * time.Second       // in which a request is sent again
	mostWait = 200 * time.Millisecond // between
)

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	until, wait := time.Now().Add(patience), time.Duration(0)
	for {
		response, err := t.Transport.RoundTrip(r)
		if err == nil || !again(r, err) || time.Now().After(until) {
			return response, err
		}
		select {
		case <-r.Context().Done():
			return nil, err
		case <-time.After(wait): // 0 at first: the server may be there
		}
		wait = min(2*wait+mostWait/8, mostWait)
		if r = r.Clone(r.Context()); r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// again reports whether a request that has failed may be sent again.
func again(r *http.Request, err error) bool {
	if !errors.Is(err, kcp.ErrReset) && !errors.Is(err, kcp.ErrRefused) || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}
