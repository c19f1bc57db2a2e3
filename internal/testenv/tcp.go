package testenv

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Target returns the address of a TCP server of loopback that handles connections until
// the test ends.
func Target(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ServeTCP(t, l, handle)
	return l.Addr().String()
}

// ServeTCP handles the connections of a listener, and closes each then. At the end of the
// test it closes the listener, and waits for what handles connections.
func ServeTCP(t testing.TB, l net.Listener, handle func(*net.TCPConn)) {
	var handling sync.WaitGroup
	handling.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handling.Go(func() {
				defer conn.Close()
				handle(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		handling.Wait()
	})
}

// Echo sends back what arrives, and ends when that ends.
func Echo(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }
