package ends

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
	"github.com/stretchr/testify/require"
)

// Serve accepts sessions until l is closed, and calls use for each on a goroutine of its
// own.
func Serve(l *kcp.Listener, use func(c *kcp.Conn)) {
	for {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		go use(c)
	}
}

// Accepted returns the next session of l.
func Accepted(t testing.TB, l *kcp.Listener) *kcp.Conn {
	t.Helper()
	c, err := l.AcceptKCP(context.Background())
	require.NoError(t, err)
	return c
}

// OwnAddress requires that dialling addr fails, as it is the endpoint's own.
func OwnAddress(t testing.TB, e *kcp.Endpoint, addr net.Addr) {
	t.Helper()
	_, err := e.Dial(context.Background(), addr, nil)
	require.ErrorAs(t, err, new(*net.AddrError))
	require.ErrorContains(t, err, "own address")
	require.ErrorContains(t, err, addr.String())
	require.Zero(t, e.Stats().Sessions)
}

// Handlers are the ways in which the goroutine that reads a socket calls the application.
// Each calls f once something has arrived at c.
var Handlers = map[string]func(t testing.TB, c *kcp.Conn, f func()){
	"Handle": func(t testing.TB, c *kcp.Conn, f func()) {
		g := kcp.NewGroup()
		t.Cleanup(func() { _ = g.Close() })
		require.NoError(t, g.Handle(func([]kcp.Event) { f() }))
		require.NoError(t, g.Add(c))
	},
	"HandleDatagrams": func(_ testing.TB, c *kcp.Conn, f func()) { compat.HandleDatagrams(c, func([]byte) { f() }) },
	"HandleDatagrams within Read": func(_ testing.TB, c *kcp.Conn, f func()) {
		compat.HandleDatagrams(c, func([]byte) { f() })
		go func() { _, _ = io.Copy(io.Discard, c) }()
	},
}
