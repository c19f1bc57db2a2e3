package kcptun

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv/await"
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

// exchange sends n random bytes to an testenv.Echo, and compares what returns. It ends only
// then, as kcptun knows no end of one direction.
func exchange(t *testing.T, address string, n int) {
	t.Helper()
	var conn net.Conn
	await.True(t, func() (ok bool) {
		var err error
		conn, err = net.Dial("tcp", address)
		return err == nil
	})
	defer conn.Close()
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(data[:n/2]) // the rest compresses well
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- err
	}()
	got := make([]byte, n)
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(data, got), "sha256 %x and %x", sha256.Sum256(data), sha256.Sum256(got))
}
