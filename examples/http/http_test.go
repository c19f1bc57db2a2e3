package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
)

// both returns settings with TLS that serve either end, in a bubble too.
func both(t *testing.T, protocols ...string) *tls.Config {
	t.Helper()
	config, client, err := newIdentity()
	require.NoError(t, err)
	now := time.Now()
	config.Time = func() time.Time { return now }
	config.RootCAs, config.ServerName = client.RootCAs, client.ServerName
	config.NextProtos = protocols
	return config
}

// overStreams opens a session, whose streams take the place of sessions.
func overStreams(t *testing.T, l net.Listener, dial lab.Dial) (net.Listener, lab.Dial) {
	t.Helper()
	near, err := dial(t.Context())
	require.NoError(t, err)
	far, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { near.Close() })
	return &streamListener{l, far.(*kcp.Conn)}, func(ctx context.Context) (net.Conn, error) {
		return near.(*kcp.Conn).OpenStream(ctx, nil)
	}
}

// streamListener accepts the streams of one session.
type streamListener struct {
	net.Listener
	conn *kcp.Conn
}

func (l *streamListener) Accept() (net.Conn, error) { return l.conn.AcceptStream(context.Background()) }
func (l *streamListener) Close() error              { return l.conn.Close() }

// What net/http makes of a session, and of a stream: with newServer Request.TLS
// is that of the session, and HTTP/2 shares one.
func TestServer(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, http2 := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("tls=%v,http2=%v,stream=%v", secure, http2, stream), func(t *testing.T) {
					testServer(t, secure, http2, stream)
				})
			}
		}
	}
}

func testServer(t *testing.T, secure, http2, stream bool) {
	scheme, version, protocol, config := "http", "", "HTTP/1.1", settings(nil)
	if http2 {
		protocol = "HTTP/2.0"
	}
	if secure {
		scheme, version, config = "https", "TLS 1.3", settings(both(t, "h2"))
	}
	lab.Run(t, config, func(t *testing.T, l net.Listener, dial lab.Dial) {
		if stream {
			l, dial = overStreams(t, l, dial)
		}
		server := newServer(echoHandler())
		defer server.Close()
		go server.Serve(l)
		var conns atomic.Int64
		client := newClient(func(ctx context.Context) (net.Conn, error) {
			conns.Add(1)
			return dial(ctx)
		}, http2)
		defer client.CloseIdleConnections()
		request := func(content []byte) {
			answer, response, err := echo(t.Context(), client, scheme, content)
			if assert.NoError(t, err) {
				assert.Equal(t, protocol, response.Header.Get("Protocol"))
				assert.Equal(t, version, response.Header.Get("TLS"))
				assert.True(t, bytes.Equal(content, answer))
				assert.Equal(t, secure && http2, response.TLS != nil, "net/http sets it for a *tls.Conn, and for HTTP/2")
			}
		}
		request(nil)
		var all sync.WaitGroup
		for i := range uint64(5) {
			all.Go(func() { request(lab.Content(i, 50_000)) })
		}
		all.Wait()
		before := conns.Load()
		request([]byte("again"))
		require.Equal(t, before, conns.Load(), "a connection is used again")
		if http2 {
			require.EqualValues(t, 1, before, "the requests share a connection")
		}
	})
}

// A URL of https does not go over a session without TLS.
func TestHTTPSNeedsTLS(t *testing.T) {
	lab.Run(t, settings(nil), func(t *testing.T, l net.Listener, dial lab.Dial) {
		server := newServer(echoHandler())
		defer server.Close()
		go server.Serve(l)
		for _, http2 := range []bool{false, true} {
			_, _, err := echo(t.Context(), newClient(dialFunc(dial), http2), "https", nil)
			require.ErrorContains(t, err, "without TLS")
		}
	})
}

// A handler knows a client by its certificate, and refuses one that has none.
func TestClientCertificates(t *testing.T) {
	for _, want := range []int{http.StatusOK, http.StatusForbidden} {
		config := both(t, "h2")
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, config.RootCAs
		if want != http.StatusOK {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return new(tls.Certificate), nil
			}
		}
		lab.Run(t, settings(config), func(t *testing.T, l net.Listener, dial lab.Dial) {
			server := newServer(echoHandler())
			defer server.Close()
			go server.Serve(l)
			for _, http2 := range []bool{false, true} {
				client := newClient(dialFunc(dial), http2)
				defer client.CloseIdleConnections()
				response, err := client.Get("https://" + serverName + "/whoami")
				require.NoError(t, err)
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				require.Equal(t, want, response.StatusCode)
				require.Equal(t, want == http.StatusOK, string(body) == serverName)
			}
		})
	}
}

// A request in progress is answered, and the answer delivered, before shutdown
// returns. Others are not taken.
func TestShutdown(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			lab.Run(t, settings(both(t, "h2")), func(t *testing.T, l net.Listener, dial lab.Dial) {
				content := lab.Content(1, 300_000)
				started, stopping, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
				server := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					close(started)
					<-stopping
					_, _ = w.Write(content)
				}))
				server.RegisterOnShutdown(func() { close(stopping) })
				go server.Serve(l)
				client := newClient(dialFunc(dial), http2)
				go func() {
					<-started
					ended <- shutdown(t.Context(), server, l.(*kcp.Listener))
				}()
				response, err := client.Get("https://" + serverName + "/")
				require.NoError(t, err)
				defer response.Body.Close()
				answer, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				require.True(t, bytes.Equal(content, answer))
				client.CloseIdleConnections()
				require.NoError(t, <-ended)
				for range l.(*kcp.Listener).Endpoint().Sessions() {
					t.Error("a session that may not have delivered all")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				_, _, err = echo(ctx, client, "https", nil)
				require.Error(t, err, "a request after shutdown")
			})
		})
	}
}
