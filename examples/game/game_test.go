package main

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// Two players on a bad network see where each other walks, and hear each other, and that
// one leaves. What they say steers no terminal. The other is told of the end.
func TestGame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 30 * time.Millisecond, Loss: 0.05})
		server, _ := lab.Endpoint(t, n, "10.0.0.1:4000", config())
		l, err := server.Listen()
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var served testenv.Records
		ended := make(chan error, 1)
		go func() { ended <- newServer(&served).run(ctx, l) }()
		join := func(host, name string) (typed *io.PipeWriter, seen *testenv.Records, left chan error) {
			e, _ := lab.Endpoint(t, n, host+":0", config())
			conn, err := e.Dial(t.Context(), server.LocalAddr(), nil)
			require.NoError(t, err)
			in, typed := io.Pipe()
			t.Cleanup(func() { _ = typed.Close() })
			seen, left = new(testenv.Records), make(chan error, 1)
			go func() { left <- play(t.Context(), conn, name, in, seen) }()
			return typed, seen, left
		}
		_, ann, annLeft := join("10.0.0.2", "ann")
		bob, _, bobLeft := join("10.0.0.3", "bob")
		_, err = io.WriteString(bob, "a\nhello \x1b[2J there\n")
		require.NoError(t, err)
		ann.Find(t, `"bob: hello \\x1b\[2J there"`)
		ann.Find(t, `[ 1]111.*\n(?s:.*)2222`)
		require.NoError(t, bob.Close())
		require.NoError(t, <-bobLeft)
		ann.Find(t, `"bob has left"`)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-annLeft)
		ann.Find(t, "the server has closed")
		served.Find(t, `"bob: hello \\x1b\[2J there"`)
		time.Sleep(time.Minute)
	})
}

// The program, over loopback.
func TestRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var served, seen testenv.Records
	ended := make(chan error, 2)
	go func() { ended <- run(ctx, []string{"serve", "-addr", "127.0.0.1:0"}, nil, &served) }()
	addr := served.Find(t, "serving on (.*)")
	in, _ := io.Pipe()
	go func() { ended <- run(t.Context(), []string{"play", "-addr", addr, "-name", "ann"}, in, &seen) }()
	seen.Find(t, `"ann is here as number 1"`)
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	seen.Find(t, "the server has closed")
}
