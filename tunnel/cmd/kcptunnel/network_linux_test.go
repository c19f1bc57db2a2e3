package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// runAt is run at a host.
func runAt(t *testing.T, h *testenv.Host, args ...string) (p *process) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		p = run(t, "", nil, args...)
		return nil
	}))
	return p
}

// echoesAt has a host send back what comes by TCP and UDP to the address.
func echoesAt(t *testing.T, h *testenv.Host, address string) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		testenv.ServeTCP(t, l, testenv.Echo)
		pc, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		testenv.EchoPackets(t, pc)
		return nil
	}))
}

// laptop returns a host with two ways to a server, and what the server is reached by over
// both: in the network lan it is host 2, the server 1, as in the network air, and the
// address is one of the server alone.
func laptop(t *testing.T, v6 bool) (client, server *testenv.Host, address string) {
	t.Helper()
	client, server = testenv.NewHost(t), testenv.NewHost(t)
	client.Must(t, "ip link set lo up")
	server.Must(t, "ip link set lo up")
	lan, air, own, bits := "10.77.1.", "10.77.2.", "10.77.9.9", "24"
	if v6 {
		lan, air, own, bits = "fd77:1::", "fd77:2::", "fd77:9::9", "64"
	}
	for dev, prefix := range map[string]string{"lan": lan, "air": air} {
		client.Must(t, fmt.Sprintf("ip link add %s type veth peer name %s netns %s", dev, dev, server.Path))
		t.Cleanup(func() { _ = client.Do(func() error { return exec.Command("ip", "link", "del", dev).Run() }) })
		for _, h := range []*testenv.Host{client, server} {
			require.NoError(t, h.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/accept_dad", []byte("0"), 0)
			}), "%s", dev)
		}
		client.Must(t, fmt.Sprintf("ip addr add %s2/%s dev %s\nip link set %s up", prefix, bits, dev, dev))
		server.Must(t, fmt.Sprintf("ip addr add %s1/%s dev %s\nip link set %s up", prefix, bits, dev, dev))
	}
	server.Must(t, "ip addr add "+own+" dev lo")
	client.Must(t, fmt.Sprintf("ip route add %s via %s1 metric 10\nip route add %s via %s1 metric 20", own, lan, own, air))
	return client, server, own
}

// The address of the client goes away, with what it has open: connections and packets of
// each kind of remote go on over another network, in the same session.
func TestOwnAddressChanges(t *testing.T) {
	for name, c := range map[string]struct {
		v6          bool
		gone, again string // what happens at the client
	}{
		"address":   {false, "ip addr del 10.77.1.2/24 dev lan", "ip addr add 10.77.1.2/24 dev lan\nip route add 10.77.9.9 via 10.77.1.1 metric 10"},
		"interface": {false, "ip link set lan down", "ip link set lan up\nip route add 10.77.9.9 via 10.77.1.1 metric 10"},
		"IPv6":      {true, "ip addr del fd77:1::2/64 dev lan\nip route del fd77:9::9 via fd77:1::1", "ip addr add fd77:1::2/64 dev lan\nip route add fd77:9::9 via fd77:1::1 metric 10"},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv("KCP_LONG") == "" && name != "address" {
				t.Skip("takes seconds")
			}
			client, server, address := laptop(t, c.v6)
			ownAddressChanges(t, client, server, address, c.gone, c.again)
		})
	}
}

func ownAddressChanges(t *testing.T, client, server *testenv.Host, address, gone, again string) {
	echoesAt(t, client, "127.0.0.1:7")
	echoesAt(t, server, "127.0.0.1:7")
	s := runAt(t, server, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), net.JoinHostPort(address, "4000"))
	fingerprint := s.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	s.err.Find(t, "msg=listening")
	c := runAt(t, client, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", net.JoinHostPort(address, "4000"),
		"1001:127.0.0.1:7", "1002:127.0.0.1:7/udp", "R:1003:127.0.0.1:7", "R:1004:127.0.0.1:7/udp")
	for _, port := range []string{"1003", "1004"} {
		c.err.Find(t, `the server listens".* port=`+port)
	}
	var conns []net.Conn
	for _, one := range []struct {
		host          *testenv.Host
		network, port string
	}{{client, "tcp", "1001"}, {client, "udp", "1002"}, {server, "tcp", "1003"}, {server, "udp", "1004"}} {
		require.NoError(t, one.host.Do(func() error {
			conn, err := net.Dial(one.network, "127.0.0.1:"+one.port)
			if err == nil {
				t.Cleanup(func() { _ = conn.Close() })
				conns = append(conns, conn)
			}
			return err
		}))
	}
	round := 0
	talk := func() {
		for range 5 {
			for _, conn := range conns {
				round++
				if _, packets := conn.(*net.UDPConn); packets {
					testenv.ExchangePackets(t, conn, 100+round)
				} else {
					testenv.Exchange(t, conn, 100+round)
				}
			}
		}
	}
	talk()
	client.Must(t, gone)
	talk() // on the other network
	client.Must(t, again)
	talk()
	client.Must(t, strings.NewReplacer("lan", "air", "77.1.", "77.2.", "77:1:", "77:2:").Replace(gone))
	talk() // on the first again
	require.Equal(t, 1, strings.Count(c.err.String(), "session begun"), c.err)
	require.NotContains(t, c.err.String(), "no session")
}
