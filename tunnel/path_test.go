package tunnel

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// throughRelay puts a bad network between a client and its server.
func throughRelay(t *testing.T, config *ClientConfig, loss float64) *netsim.Relay {
	t.Helper()
	const rate = 100e6 / 8
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: loss, Rate: rate, Queue: rate / 20}
	relay, err := netsim.NewRelay(config.Servers[0], link, link, 1)
	require.NoError(t, err)
	t.Cleanup(func() { _ = relay.Close() })
	config.Servers[0] = relay.Addr().String()
	return relay
}

// The address of the client changes, as behind a NAT that forgets: the session moves,
// and no connection ends.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	times, every := 5, 3*time.Second
	if testing.Short() {
		times, every = 2, 300*time.Millisecond
	}
	s := startServer(t, everything, nil)
	config := clientConfig(t, s, "0:"+target(t, echo))
	relay := throughRelay(t, config, 0)
	c := startClient(t, config)
	at := c.address(t)
	conn := dial(t, at)
	require.NoError(t, conn.SetDeadline(time.Time{}))
	says := func(n int) {
		text := fmt.Sprintf("%09d", n)
		_, err := io.WriteString(conn, text)
		require.NoError(t, err)
		b := make([]byte, len(text))
		_, err = io.ReadFull(conn, b)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
	}
	n := 0
	says(n)
	for range times {
		require.NoError(t, relay.Rebind())
		for end := time.Now().Add(every); time.Now().Before(end); {
			n++
			says(n)
		}
	}
	require.Equal(t, 1, c.Status().Opened, "the same session all the time")
	require.Equal(t, 1, s.Status().Sessions)
}

// A session leaves from the address or the interface that the client is told.
func TestBind(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, func(c *ServerConfig) { c.Addr = "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(s.Addr().String())
	require.NoError(t, err)
	config := clientConfig(t, s, "0:"+target(t, echo))
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
	var open sync.WaitGroup
	for range 9 {
		open.Go(func() { _ = exchangeAlone(at, 1000) })
	}
	open.Wait()
	require.Equal(t, 9, s.Status().Opened)

	config.Binds, config.MaxRetries = []string{"no-such-interface"}, 1
	require.ErrorContains(t, run(t, config), "no-such-interface")
	config.Binds = []string{"192.0.2.1"} // not ours
	require.ErrorContains(t, run(t, config), "192.0.2.1")
}
