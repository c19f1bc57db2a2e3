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
	"github.com/arqnet/kcp/internal/testenv"
)

// both returns settings with TLS that serve either end, and a client certificate.
func both(t *testing.T) *tls.Config {
	config := testenv.TLS()
	config.NextProtos = []string{"h2"}
	config.ServerName, config.Certificates[0] = serverName, testenv.Certificate(t, &config.Certificates[0], false, serverName)
	config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, config.RootCAs
	return config
}

// overStreams opens a session, whose streams take the place of sessions.
func overStreams(t *testing.T, l net.Listener, dial lab.Dial) (net.Listener, lab.Dial) {
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

// With newServer and newClient net/http has of a session with TLS, or of its streams, what
// it has of TLS over TCP: Request.TLS, and with HTTP/2 one connection for all.
func TestServer(t *testing.T) {
	for i := range 8 {
		secure, http2, stream := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("tls=%v,http2=%v,stream=%v", secure, http2, stream), func(t *testing.T) {
			scheme, name, config := "http", "", settings(nil)
			if secure {
				scheme, name, config = "https", serverName, settings(both(t))
			}
			lab.Run(t, config, func(t *testing.T, l net.Listener, dial lab.Dial) {
				if stream {
					l, dial = overStreams(t, l, dial)
				}
				server := newServer(http.HandlerFunc(echoHandler))
				defer server.Close()
				go server.Serve(l)
				var conns atomic.Int64
				client := newClient(func(ctx context.Context) (net.Conn, error) {
					conns.Add(1)
					return dial(ctx)
				}, http2)
				defer client.CloseIdleConnections()
				request := func(content []byte) {
					answer, header, err := echo(t.Context(), client, scheme, content)
					assert.NoError(t, err)
					assert.Equal(t, map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2], header.Get("Protocol"))
					assert.Equal(t, name, header.Get("You-Are"))
					assert.Equal(t, testenv.Sum(content), testenv.Sum(answer))
				}
				request(nil)
				var all sync.WaitGroup
				for i := range uint64(5) {
					all.Go(func() { request(testenv.Content(i, 50_000)) })
				}
				all.Wait()
				before := conns.Load()
				request([]byte("again"))
				require.Equal(t, before, conns.Load(), "a connection is used again")
				// net/http may dial a second one while the first is not in its pool yet.
				require.True(t, before <= 2 || !http2, "the requests share a connection")
				if !secure {
					_, _, err := echo(t.Context(), client, "https", nil)
					require.ErrorContains(t, err, "without TLS")
				}
			})
		})
	}
}

// A request in progress is answered, and the answer delivered, before shutdown
// returns. Others are not taken.
func TestShutdown(t *testing.T) {
	lab.Run(t, settings(both(t)), func(t *testing.T, l net.Listener, dial lab.Dial) {
		content := testenv.Content(1, 300_000)
		started, stopping, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		server := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(started)
			<-stopping
			_, _ = w.Write(content)
		}))
		server.RegisterOnShutdown(func() { close(stopping) })
		go server.Serve(l)
		client := newClient(dialFunc(dial), true)
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
}
