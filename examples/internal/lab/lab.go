// Package lab runs the tests of the examples over sockets of the system, and over
// a network that loses packets, if possible in virtual time.
package lab

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// Dial opens a session to the listener of a test.
type Dial func(ctx context.Context) (net.Conn, error)

// Run runs a test with a listener, and a way to dial it, over each kind of
// network. What the test leaves open is closed after it.
func Run(t *testing.T, config *kcp.Config, test func(t *testing.T, l net.Listener, dial Dial)) {
	t.Run("loopback", func(t *testing.T) { direct(t, config, test) })
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("lossy-", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lossy(t, seed, config, test)
			})
		})
	}
}

// RunInRealTime is Run for libraries that cannot live in virtual time, because
// they share channels or timers between all their users.
func RunInRealTime(t *testing.T, config *kcp.Config, test func(t *testing.T, l net.Listener, dial Dial)) {
	t.Run("loopback", func(t *testing.T) { direct(t, config, test) })
	t.Run("lossy", func(t *testing.T) {
		l, err := kcp.Listen("udp", "127.0.0.1:0", config)
		require.NoError(t, err)
		defer l.Close()
		link := bad
		link.Delay, link.Jitter = 2*time.Millisecond, time.Millisecond
		relay, err := netsim.NewRelay(l.Addr().String(), link, link, 1)
		require.NoError(t, err)
		defer relay.Close()
		test(t, l, dialer(config, relay.Addr()))
	})
}

// direct runs a test over sockets of the system.
func direct(t *testing.T, config *kcp.Config, test func(t *testing.T, l net.Listener, dial Dial)) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	defer l.Close()
	test(t, l, dialer(config, l.Addr()))
}

func dialer(config *kcp.Config, to net.Addr) Dial {
	return func(ctx context.Context) (net.Conn, error) {
		d := kcp.Dialer{Config: config}
		return d.DialContext(ctx, "udp", to.String())
	}
}

// Endpoint opens an endpoint on a simulated network. end closes it as the end of a process
// does: nobody is told. The test does so too.
func Endpoint(t testing.TB, n *netsim.Network, addr string, config *kcp.Config) (e *kcp.Endpoint, end func()) {
	t.Helper()
	pc, err := n.Listen(addr)
	require.NoError(t, err)
	e, err = kcp.NewEndpoint(pc, config)
	require.NoError(t, err)
	end = func() {
		_ = pc.Close()
		_ = e.Close()
	}
	t.Cleanup(end)
	return e, end
}

// bad is a network that loses a packet in ten, half of them in bursts. Bursts are of
// packets, whenever they come: longer ones would outlast the few of an opening.
var bad = netsim.LinkConfig{
	Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond,
	Loss: 0.05, Burst: netsim.BurstLoss(0.05, 2),
}

// lossy runs a test over a bad network in virtual time.
func lossy(t *testing.T, seed uint64, config *kcp.Config, test func(t *testing.T, l net.Listener, dial Dial)) {
	network := netsim.NewNetwork(seed, bad)
	server, _ := Endpoint(t, network, "10.0.0.1:4000", config)
	client, _ := Endpoint(t, network, "10.0.0.2:0", config)
	defer server.Close()
	defer client.Close()
	l, err := server.Listen()
	require.NoError(t, err)
	test(t, l, func(ctx context.Context) (net.Conn, error) { return client.Dial(ctx, server.LocalAddr(), nil) })
	if stats := network.Stats(); stats.Sent.Packets > 100 {
		require.NotZero(t, stats.Lost, "a network without loss")
	}
}
