package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/netns"
)

// mapping sends what comes to the router's port 4000 to a server. A change of it concerns
// new connections: the NAT remembers the others as long as packets come.
const mapping = `
table ip router {
	chain pre { type nat hook prerouting priority dstnat; udp dport 4000 dnat to %s; }
}`

// site is a router with a port mapping, a client outside, and two servers behind it.
type site struct {
	router, client *netns.Host
	servers        [2]*netns.Host
}

func newSite(t *testing.T) *site {
	s := &site{router: netns.New(t), client: netns.New(t), servers: [2]*netns.Host{netns.New(t), netns.New(t)}}
	s.router.Try(t, `
		ip link set lo up
		ip link add br0 type bridge
		ip link set br0 up
		ip addr add 10.2.0.1/24 dev br0
		sysctl -qw net.ipv4.ip_forward=1`)
	s.router.Try(t, fmt.Sprintf(`
		ip link add c0 type veth peer name v0 netns %s
		ip addr add 10.1.0.1/24 dev c0
		ip link set c0 up`, s.client.Path))
	s.client.Try(t, "ip addr add 10.1.0.2/24 dev v0\nip link set v0 up")
	for i, h := range s.servers {
		s.router.Try(t, fmt.Sprintf(`
			ip link add s%[1]d type veth peer name v0 netns %[2]s
			ip link set s%[1]d master br0
			ip link set s%[1]d up`, i, h.Path))
		h.Try(t, fmt.Sprintf("ip addr add 10.2.0.%d/24 dev v0\nip link set v0 up\nip route add default via 10.2.0.1", i+2))
	}
	return s
}

// maps has the router's port lead to a server.
func (s *site) maps(t *testing.T, server string) {
	file := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, mapping, server), 0o600))
	_ = s.router.Run("nft delete table ip router") // there may be none
	s.router.Try(t, "nft -f "+file)
}

// serves runs a server on a host, until the test ends.
func serves(t *testing.T, h *netns.Host, dir string) {
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	var l *kcp.Listener
	require.NoError(t, h.Do(func() (err error) {
		l, err = kcp.Listen("udp4", ":4000", nil)
		return err
	}))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = newServer(root, log.New(t.Output(), "server: ", 0)).run(ctx, l) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		_ = root.Close()
	})
}

// A server behind a real NAT is replaced, whose port mapping leads to the new one from
// then on. The client gets there, though the NAT knows its port.
func TestServerBehindNATIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.maps(t, "10.2.0.2")
	disk := t.TempDir() // of both: the new server has what the old one has stored
	for _, h := range s.servers {
		serves(t, h, disk)
	}
	var mu sync.Mutex
	var ports []int
	open := func() (pc net.PacketConn, err error) {
		err = s.client.Do(func() (err error) {
			pc, err = net.ListenPacket("udp4", ":0")
			return err
		})
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			ports = append(ports, pc.LocalAddr().(*net.UDPAddr).Port)
		}
		return pc, err
	}
	to := []net.Addr{&net.UDPAddr{IP: net.IPv4(10, 1, 0, 1), Port: 4000}}
	resolve := func(context.Context) ([]net.Addr, error) { return to, nil }
	config := &kcp.Config{DialTimeout: time.Second}
	c := newClient([idSize]byte{1}, config, open, resolve, log.New(t.Output(), "client: ", 0))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = c.run(ctx) })
	defer running.Wait()
	defer stop()
	before, err := c.link.await(t.Context())
	require.NoError(t, err)
	c.send([]byte("for the first server"))
	require.NoError(t, c.flush(t.Context()))

	s.maps(t, "10.2.0.3")
	s.router.Must(t, "ip link set s0 down")
	require.NoError(t, before.Abort())
	after, err := c.link.await(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, before.Conv(), after.Conv())
	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, len(ports), 1)
}
