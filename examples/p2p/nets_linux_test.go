package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
)

// host returns a host with a network of its own, or skips the test.
func host(t *testing.T) *testenv.Host {
	h := testenv.NewHost(t)
	h.Must(t, "ip link set lo up")
	return h
}

// cable puts a cable between an interface of a host, with an address, and a port of the
// bridge of another.
func cable(t *testing.T, h *testenv.Host, name, addr string, bridge *testenv.Host, port string) {
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
func bridge(t *testing.T, h *testenv.Host, addr string) {
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

// home makes a router with a public address, and returns a host behind it.
func home(t *testing.T, internet *testenv.Host, public string) (behind *testenv.Host) {
	router := host(t)
	bridge(t, router, "192.168.1.1/24")
	cable(t, router, "wan", public+"/24", internet, "wan-"+public[len(public)-1:])
	file := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	router.Try(t, "nft -f "+file)
	require.NoError(t, router.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}))
	behind = host(t)
	cable(t, behind, "eth0", "192.168.1.2/24", router, "lan-2")
	behind.Must(t, "ip route add default via 192.168.1.1")
	return behind
}

// Data goes through two routers that masquerade, whose hosts have the same address.
func TestBehindRouters(t *testing.T) {
	t.Parallel()
	server := host(t)
	bridge(t, server, "203.0.113.10/24")
	a, b := home(t, server, "203.0.113.1"), home(t, server, "203.0.113.2")
	start(t, server, nil, "serve").log.Find(t, "serving")
	sender, getter := transfer(t, a, b, "-server", "203.0.113.10:4000")
	require.Contains(t, sender.log.String(), "session with the peer at 203.0.113.2:")
	require.Contains(t, getter.log.String(), "session with the peer at 203.0.113.1:")
}
