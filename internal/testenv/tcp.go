package testenv

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

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

// EchoPackets sends back the packets of a socket, which it closes at the end of the test.
func EchoPackets(t testing.TB, pc net.PacketConn) {
	var echoing sync.WaitGroup
	echoing.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	})
	t.Cleanup(func() {
		_ = pc.Close()
		echoing.Wait()
	})
}

// Random returns n bytes, which are the same each time.
func Random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

// Exchange sends n bytes to an Echo through conn, of which the second half compresses
// well, and compares what returns.
func Exchange(t testing.TB, conn net.Conn, n int) {
	t.Helper()
	data := append(Random(n-n/2), make([]byte, n/2)...)
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

// ExchangePackets sends packets of several sizes to an echo through conn, each again until
// it has returned.
func ExchangePackets(t testing.TB, conn net.Conn, sizes ...int) {
	t.Helper()
	buf := make([]byte, 1<<16)
	for _, size := range sizes {
		packet := Random(size)
		for returned := false; !returned; {
			_, err := conn.Write(packet)
			require.NoError(t, err)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
			for n := 0; err == nil && !returned; { // earlier ones may be late, or lost
				n, err = conn.Read(buf)
				returned = bytes.Equal(packet, buf[:n])
			}
		}
	}
}
