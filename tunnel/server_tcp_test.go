package tunnel

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Without the port for TCP a server goes on and says so, unless it was asked for. What
// speaks no TLS there is in the log, and what says nothing makes room for others.
func TestPortOfTCP(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	s := startServer(t, everything, func(c *ServerConfig) { c.Addr = taken.Addr().String() })
	require.Nil(t, s.TCPAddr())
	require.Contains(t, s.log.String(), "not listening on TCP")

	s = startServer(t, everything, func(c *ServerConfig) { c.TCP = noTCP })
	require.Nil(t, s.TCPAddr())

	_, err = Listen(&ServerConfig{Addr: "127.0.0.1:0", TCP: taken.Addr().String(), Users: parsed(t, everything), Certificate: key(t)})
	require.ErrorContains(t, err, "in use")

	s = startServer(t, everything, func(c *ServerConfig) { c.TCP = "127.0.0.1:0" })
	_, err = io.WriteString(dial(t, s.TCPAddr().String()), "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	waitFor(t, func() bool { return strings.Contains(s.log.String(), "handshake failed") })
	require.Empty(t, s.Figures().TurnedAway)

	silent := dial(t, s.TCPAddr().String())
	waitFor(t, func() bool { return s.lobby.Len() == 1 })
	for range maxUnknownEach {
		dial(t, s.TCPAddr().String())
	}
	_, _ = io.ReadAll(silent) // it makes room for the last one
	require.LessOrEqual(t, s.lobby.Len(), maxUnknownEach)
}

// Attempts over TCP count for the same address, as over UDP.
func TestAttemptsOverTCP(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, func(c *ServerConfig) { c.TCP = "127.0.0.1:0" })
	config := clientConfig(t, s, "0:host:80")
	config.Servers, config.Password = []string{s.TCPAddr().String()}, "wrong"
	c, err := NewClient(config)
	require.NoError(t, err)
	for range guardAttempts + 1 {
		conn, dialled := c.dialTCP(t.Context(), c.ways()[0])
		require.NoError(t, dialled)
		err = c.hello(t.Context(), conn)
		_ = conn.Close()
	}
	require.ErrorContains(t, err, "too many failed attempts")
}
