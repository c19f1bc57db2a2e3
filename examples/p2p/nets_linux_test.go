package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv/netns"
)

// host returns a host with a network of its own, or skips the test.
func host(t *testing.T) *netns.Host {
	h := netns.New(t)
	h.Must(t, "ip link set lo up")
	return h
}

// cable puts a cable between an interface of a host, with an address, and a port of the
// bridge of another.
func cable(t *testing.T, h *netns.Host, name, addr string, bridge *netns.Host, port string) {
	bridge.Must(t, fmt.Sprintf(`
		ip link add %[1]s type veth peer name %[2]s netns %[3]s
		ip link set %[1]s master br0
		ip link set %[1]s up`, port, name, h.Path))
	h.Must(t, fmt.Sprintf(`
		ip addr add %s dev %s
		ip link set %[2]s up`, addr, name))
	t.Cleanup(func() { _ = bridge.Run("ip link del " + port) })
}

// bridge makes the bridge of a host.
func bridge(t *testing.T, h *netns.Host, addr string) {
	h.Try(t, "ip link add br0 type bridge")
	h.Must(t, "ip link set br0 up\nip addr add "+addr+" dev br0")
}

// rules make a home router: what comes from within gets the router's address,
// and only answers come in. What the router itself gets is dropped, not refused: a
// refused packet would take the port that the mapping of the answer needs.
const rules = `
table ip router {
	chain post { type nat hook postrouting priority srcnat; oifname "wan" masquerade; }
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		iifname "br0" accept
	}
	chain input {
		type filter hook input priority filter; policy drop;
		ct state established,related accept
		iifname "br0" accept
	}
}`

// internet is a network of three: a server, and two routers with a host behind each.
type internet struct{ server, a, b *netns.Host }

// newInternet makes one, or skips the test. Hosts behind the routers have the same
// address.
func newInternet(t *testing.T) *internet {
	n := &internet{server: host(t)}
	bridge(t, n.server, "203.0.113.10/24")
	n.a = behind(t, n.router(t, "203.0.113.1"), "192.168.1.2")
	n.b = behind(t, n.router(t, "203.0.113.2"), "192.168.1.2")
	return n
}

// router returns a router with a public address.
func (n *internet) router(t *testing.T, public string) *netns.Host {
	router := host(t)
	bridge(t, router, "192.168.1.1/24")
	cable(t, router, "wan", public+"/24", n.server, "wan-"+public[len(public)-1:])
	file := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	router.Try(t, "nft -f "+file)
	require.NoError(t, router.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}))
	return router
}

// behind returns a host behind a router.
func behind(t *testing.T, router *netns.Host, addr string) *netns.Host {
	h := host(t)
	cable(t, h, "eth0", addr+"/24", router, "lan-"+addr[len(addr)-1:])
	h.Must(t, "ip route add default via 192.168.1.1")
	return h
}

// serve starts the server, and returns the flags by which ends find it.
func (n *internet) serve(t *testing.T) []string {
	start(t, n.server, "serve").find("(serving)")
	return []string{"-server", "203.0.113.10:4000"}
}

// A file of 100 MB goes through two routers that masquerade. The hosts have IPv6
// addresses too, which come first among the candidates, but lead nowhere.
func TestBehindRouters(t *testing.T) {
	t.Parallel()
	n := newInternet(t)
	_ = n.a.Run("ip addr add 2001:db8:a::2/64 dev eth0 nodad") // a host may have no IPv6
	_ = n.b.Run("ip addr add 2001:db8:b::2/64 dev eth0 nodad")
	size := 100_000_000
	if testing.Short() {
		size = 5_000_000
	}
	sends, gets := ends{n.a, n.b, n.serve(t), size}.succeed(t)
	require.Contains(t, sends.all.String(), "NAT: independent")
	require.Contains(t, sends.all.String(), "session with the peer at 203.0.113.2:")
	require.Contains(t, gets.all.String(), "session with the peer at 203.0.113.1:")
}

// goodbyes returns a channel with the names that say goodbye at an interface of a host.
func goodbyes(t *testing.T, h *netns.Host, name string) <-chan string {
	var c *net.UDPConn
	require.NoError(t, h.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			c, err = net.ListenMulticastUDP("udp4", i, &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353})
		}
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	gone := make(chan string, 10)
	go func() {
		for b := make([]byte, 9000); ; {
			n, _, err := c.ReadFromUDP(b)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(b[:n]) != nil || !m.Response {
				continue
			}
			for _, r := range m.Answer {
				if ptr, ok := r.(*dns.PTR); ok && ptr.Hdr.Ttl == 0 {
					gone <- ptr.Ptr
				}
			}
		}
	}()
	return gone
}

// On a LAN the ends find each other without a server, and say goodbye.
func TestOnLAN(t *testing.T) {
	t.Parallel()
	lan, a, b := host(t), host(t), host(t)
	bridge(t, lan, "192.168.7.1/24")
	cable(t, a, "eth0", "192.168.7.2/24", lan, "lan-a")
	cable(t, b, "eth0", "192.168.7.3/24", lan, "lan-b")
	a.Must(t, "ip route add default via 192.168.7.1")
	b.Must(t, "ip route add default via 192.168.7.1")
	gone := goodbyes(t, lan, "br0")
	sends, _ := ends{a, b, []string{"-lan"}, 1_000_000}.succeed(t)
	require.Contains(t, sends.all.String(), "session with the peer at ")
	names := make(map[string]bool)
	for len(names) < 2 {
		name := <-gone
		require.Regexp(t, `^p2p-[0-9a-f]{16}\._kcp-p2p\._udp\.local\.$`, name)
		names[name] = true
	}
}
