package tunnel

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

func TestForward(t *testing.T) {
	t.Parallel()
	_, c := connected(t, "0:"+testenv.Target(t, testenv.Echo))
	at := c.address(t)
	for _, n := range []int{0, 1, 1000, 5_000_000} {
		exchange(t, dial(t, at), n)
	}
	require.NoError(t, c.stop())
}

// Either end of a connection may end its direction alone.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	c := startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, func(conn *net.TCPConn) {
		if _, err := io.WriteString(conn, "begin "); err != nil {
			return
		}
		b, _ := io.ReadAll(conn) // until the client's end
		_, _ = conn.Write(append(b, " end"...))
	})))
	conn := dial(t, c.address(t))
	b := make([]byte, 6)
	_, err := io.ReadFull(conn, b)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "middle")
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	b, err = io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "middle end", string(b))

	read := make(chan string, 1)
	c = startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, func(conn *net.TCPConn) {
		_ = conn.CloseWrite() // the target ends first, and reads on
		b, _ := io.ReadAll(conn)
		read <- string(b)
	})))
	conn = dial(t, c.address(t))
	b, err = io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, b)
	_, err = io.WriteString(conn, "still there")
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	require.Equal(t, "still there", <-read)
}

// A target that refuses shows as a reset, not as an empty connection.
func TestRefusedTarget(t *testing.T) {
	t.Parallel()
	nobody := testenv.FreeAddress(t)
	_, c := connected(t, "0:"+nobody)
	_, err := tryHello(t, c.address(t))
	requireReset(t, err)
	waitFor(t, func() bool {
		return strings.Contains(c.log.String(), "connection refused") && strings.Contains(c.log.String(), nobody)
	})
}

// The reset of a connection shows at the other end, whichever it is.
func TestResetPassesThrough(t *testing.T) {
	t.Parallel()
	seen := make(chan error, 1)
	s := startServer(t, everything, nil)
	c := startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, func(conn *net.TCPConn) {
		b := make([]byte, 1)
		_, err := conn.Read(b)
		if err == nil && b[0] == 'r' {
			_ = conn.SetLinger(0)
			return // a reset, as linger is 0
		}
		_, _ = conn.Write(b)
		_, err = io.ReadAll(conn)
		seen <- err
	})))
	at := c.address(t)
	conn := dial(t, at)
	_, err := io.WriteString(conn, "r")
	require.NoError(t, err)
	_, err = io.ReadAll(conn)
	requireReset(t, err)

	conn = dial(t, at)
	_, err = io.WriteString(conn, "x")
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1)) // so the target is there
	require.NoError(t, err)
	require.NoError(t, conn.SetLinger(0))
	require.NoError(t, conn.Close())
	err = <-seen
	requireReset(t, err)
}

// A target that does not answer, and a name that does not resolve, are resets too.
func TestHangingTarget(t *testing.T) {
	t.Parallel()
	hanging, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(hanging)
	require.NoError(t, syscall.Bind(hanging, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(hanging, 0))
	name, err := syscall.Getsockname(hanging)
	require.NoError(t, err)
	at := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*syscall.SockaddrInet4).Port}).String()
	fill := dial(t, at) // the queue of connections is full with one
	defer fill.Close()

	s := startServer(t, everything, func(c *ServerConfig) { c.DialTimeout = 300 * time.Millisecond })
	c := startClient(t, clientConfig(t, s, "0:"+at, "0:no-such-name.invalid:80"))
	first, second := c.address(t), c.address(t)
	_, err = tryHello(t, first)
	requireReset(t, err)
	_, err = tryHello(t, second)
	requireReset(t, err)
	waitFor(t, func() bool {
		log := c.log.String()
		return strings.Contains(log, refusal(codeTimeout).Error()) && strings.Contains(log, refusal(codeUnresolvable).Error())
	})
}

// waitFor waits for a condition.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	testenv.Await(t, condition)
}
