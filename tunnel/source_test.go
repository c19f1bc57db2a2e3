package tunnel

import (
	"net"
	"runtime"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// A server, and remotes for packets, that listen on all addresses of a host answer from
// the one that was asked: clients and askers with connected sockets hear nothing else.
func TestAnswersComeFromAskedAddress(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the host has not all of 127.0.0.0/8")
	}
	t.Parallel()
	s := startServer(t, everything, func(c *ServerConfig) { c.Addr = "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(s.Addr().String())
	require.NoError(t, err)
	for _, server := range []string{"127.0.0.1", "127.0.0.2"} {
		for _, remote := range []string{"0.0.0.0:0:" + udpTarget(t) + "/udp", "R:0.0.0.0:0:" + udpTarget(t) + "/udp"} {
			config := clientConfig(t, s, remote)
			config.Servers = []string{net.JoinHostPort(server, port)}
			c := startClient(t, config)
			_, at, err := net.SplitHostPort(c.address(t))
			require.NoError(t, err)
			waitFor(t, func() bool { return c.Status().Sessions == 1 })
			for _, asked := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
				conn, err := net.Dial("udp", net.JoinHostPort(asked, at))
				require.NoError(t, err)
				testenv.ExchangePackets(t, conn, 1, 1200, 20_000)
				_ = conn.Close()
			}
			require.NoError(t, c.stop())
		}
	}
}
