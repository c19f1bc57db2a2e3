package kcptun

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// start runs Serve or Run, and returns the address where it listens.
func start(t *testing.T, run func(context.Context, Config) error, config Config) string {
	t.Helper()
	at := make(chan string, 1)
	config.Listening = func(a net.Addr) { at <- a.String() }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, config) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case a := <-at:
		return strings.Replace(a, "[::]", "127.0.0.1", 1)
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return ""
}

// exchange sends n bytes to an echo at address, and compares what returns. It ends only
// then, as kcptun knows no end of one direction.
func exchange(t *testing.T, address string, n int) {
	t.Helper()
	var conn net.Conn
	testenv.Await(t, func() (ok bool) {
		var err error
		conn, err = net.Dial("tcp", address)
		return err == nil
	})
	defer conn.Close()
	testenv.Exchange(t, conn, n)
}
