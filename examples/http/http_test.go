package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/selfsigned"
)

// counted counts the sessions that are dialled.
func counted(dial lab.Dial, sessions *atomic.Int64) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		sessions.Add(1)
		return dial(ctx)
	}
}

// requireEchoes makes several requests at once.
func requireEchoes(t *testing.T, client *http.Client, scheme, protocol string) {
	t.Helper()
	var all sync.WaitGroup
	for i := range uint64(5) {
		all.Go(func() {
			content := lab.Content(i, 100_000)
			answer, got, err := echo(t.Context(), client, scheme, content)
			assert.NoError(t, err)
			assert.Equal(t, protocol, got)
			assert.True(t, bytes.Equal(content, answer))
		})
	}
	all.Wait()
}

func TestHTTP1(t *testing.T) {
	lab.Run(t, config(), func(t *testing.T, l net.Listener, dial lab.Dial) {
		server := newServer(nil)
		defer server.Close()
		go server.Serve(l)
		var sessions atomic.Int64
		client := newClient(counted(dial, &sessions), nil)
		defer client.CloseIdleConnections()
		requireEchoes(t, client, "http", "HTTP/1.1")
		require.LessOrEqual(t, sessions.Load(), int64(5))
		before := sessions.Load()
		answer, _, err := echo(t.Context(), client, "http", []byte("again"))
		require.NoError(t, err)
		require.Equal(t, "again", string(answer))
		require.Equal(t, before, sessions.Load(), "no session was used again")
	})
}

func TestHTTP2(t *testing.T) {
	lab.Run(t, config(), func(t *testing.T, l net.Listener, dial lab.Dial) {
		certificate, roots, err := selfsigned.New(serverName)
		require.NoError(t, err)
		server := newServer(certificate)
		defer server.Close()
		go server.ServeTLS(l, "", "")
		var sessions atomic.Int64
		client := newClient(counted(dial, &sessions), roots)
		defer client.CloseIdleConnections()
		_, _, err = echo(t.Context(), client, "https", nil)
		require.NoError(t, err)
		requireEchoes(t, client, "https", "HTTP/2.0")
		require.EqualValues(t, 1, sessions.Load(), "the requests do not share a session")
	})
}
