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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/kcphttp"
	"github.com/arqnet/kcp/netsim"
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

// With NewServer and NewTransport net/http has of a session with TLS, or of its streams, what
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
				server := kcphttp.NewServer(http.HandlerFunc(echoHandler))
				defer server.Close()
				go server.Serve(l)
				var conns atomic.Int64
				client := &http.Client{Transport: kcphttp.NewTransport(func(ctx context.Context) (net.Conn, error) {
					conns.Add(1)
					return dial(ctx)
				}, http2)}
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

// A request in progress is answered, and the answer delivered, before Shutdown
// returns. Others are not taken.
func TestShutdown(t *testing.T) {
	lab.Run(t, settings(both(t)), func(t *testing.T, l net.Listener, dial lab.Dial) {
		content := testenv.Content(1, 300_000)
		started, stopping, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		server := kcphttp.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(started)
			<-stopping
			_, _ = w.Write(content)
		}))
		server.RegisterOnShutdown(func() { close(stopping) })
		go server.Serve(l)
		client := &http.Client{Transport: kcphttp.NewTransport(dial, true)}
		go func() {
			<-started
			ended <- kcphttp.Shutdown(t.Context(), server, l.(*kcp.Listener))
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
		require.Error(t, err, "a request after Shutdown")
	})
}

// A server is killed, and started again some time later. No request fails, and each is
// answered within a second.
func TestKilledServer(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, late := range []time.Duration{0, time.Second, 200 * time.Millisecond} {
			t.Run(fmt.Sprint(http2, late), func(t *testing.T) { killed(t, http2, late) })
		}
	}
}

// killed asks a server, and again when that is killed. The next one is there later.
func killed(t *testing.T, http2 bool, late time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 20 * time.Millisecond})
		config := settings(both(t))
		ends := make(chan func(), 1)
		start := func() {
			server, end := lab.Endpoint(t, network, "10.0.0.1:4000", config)
			l, err := server.Listen()
			require.NoError(t, err)
			go kcphttp.NewServer(http.HandlerFunc(echoHandler)).Serve(l)
			ends <- end
		}
		start()
		at, err := net.ResolveUDPAddr("udp", "10.0.0.1:4000")
		require.NoError(t, err)
		e, _ := lab.Endpoint(t, network, "10.0.0.2:0", config)
		client := &http.Client{Transport: kcphttp.NewTransport(func(ctx context.Context) (net.Conn, error) { return e.Dial(ctx, at, nil) }, http2)}
		defer client.CloseIdleConnections()
		for i := range uint64(4) {
			there := time.Now()
			if i > 0 {
				time.Sleep(5 * time.Second)
				(<-ends)()
				there = time.Now().Add(late)
				time.AfterFunc(late, start)
			}
			content := testenv.Content(i, 3000)
			answer, _, err := echo(t.Context(), client, "https", content)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, answer))
			require.Less(t, time.Since(there), time.Second)
		}
	})
}
