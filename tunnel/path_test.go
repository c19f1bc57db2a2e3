package tunnel

import (
	"net"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// A session leaves from the address or the interface that the client is told.
func TestBind(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, func(c *ServerConfig) { c.Addr = "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(s.Addr().String())
	require.NoError(t, err)
	config := clientConfig(t, s, "0:"+testenv.Target(t, testenv.Echo))
	config.Servers[0] = "127.0.0.1:" + port
	config.Binds = []string{"127.0.0.2", "127.0.0.3", "lo"}
	c := startClient(t, config)
	at := c.address(t)
	waitFor(t, func() bool { return s.Status().Sessions == 3 })
	var from []string
	for peer := range s.Endpoint().Sessions() {
		host, _, err := net.SplitHostPort(peer.RemoteAddr().String())
		require.NoError(t, err)
		from = append(from, host)
	}
	require.ElementsMatch(t, []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, from)
	for range 3 {
		exchange(t, dial(t, at), 1000)
	}
	require.Equal(t, 3, s.Status().Opened)

	config.Binds, config.MaxRetries = []string{"no-such-interface"}, 1
	require.ErrorContains(t, run(t, config), "no-such-interface")
	config.Binds = []string{"192.0.2.1"} // not ours
	require.ErrorContains(t, run(t, config), "192.0.2.1")
}
