package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/netns"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// distant returns a server's host, with a cable to the clients', which is the network of
// this process. The server has two addresses of each family on the interface, one on lo,
// and a link-local one. The interfaces have one name and number: an endpoint's goroutines
// may run in either network.
func distant(t *testing.T) []host {
	client, server := netns.Process(), netns.New(t)
	client.Try(t, "ip link add v0 index 77 type veth peer name v0 index 77 netns "+server.Path)
	for i, h := range []*netns.Host{client, server} {
		h.Try(t, fmt.Sprintf(`
			ip link set lo up
			ip link set v0 addrgenmode none
			ip link set v0 up
			ip addr add 10.9.0.%[1]d/24 dev v0
			ip addr add fd09::%[1]d/64 dev v0 nodad
			ip addr add fe80::%[1]d/64 dev v0 nodad`, 1+i))
	}
	server.Try(t, `
		ip addr add 10.9.0.3/24 dev v0
		ip addr add 10.9.1.4/32 dev lo
		ip addr add fd09::3/64 dev v0 nodad
		ip addr add fd09:0:0:1::4/128 dev lo`)
	client.Try(t, `
		ip route add 10.9.1.0/24 via 10.9.0.2
		ip route add fd09:0:0:1::/64 via fd09::2`)
	require.NoError(t, server.Do(running))
	require.NoError(t, running())
	v4 := []string{"10.9.0.2", "10.9.0.3", "10.9.1.4"}
	v6 := []string{"fd09::2", "fd09::3", "fd09:0:0:1::4", "fe80::2%v0"}
	return []host{
		{"IPv4", "udp4", "0.0.0.0:0", v4, server.Do, at},
		{"IPv6", "udp6", "[::]:0", v6, server.Do, at},
		{"both", "udp", ":0", append(v6[1:], v4...), server.Do, at},
	}
}

// running waits until the interface takes packets.
func running() error {
	for ; ; time.Sleep(time.Millisecond) {
		v0, err := net.InterfaceByName("v0")
		if err != nil || v0.Flags&net.FlagRunning != 0 {
			return err
		}
	}
}

// inNetworkOfItsOwn runs the test in a process with a network of its own, or skips it
// where that is not permitted. It reports whether this is that process.
func inNetworkOfItsOwn(t *testing.T) bool {
	const child = "KCP_IN_NETWORK_OF_ITS_OWN"
	if os.Getenv(child) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60m")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, os.ErrPermission):
		t.Skipf("needs the right to make a network namespace: %v", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skip(string(out))
	}
	return false
}

// A server with several addresses answers from each, over a network.
func TestAnswersComeFromAskedAddressOverCable(t *testing.T) {
	if !inNetworkOfItsOwn(t) {
		return
	}
	hosts := distant(t)
	withFeatures(t, func(t *testing.T) {
		for _, h := range hosts {
			for _, how := range []string{"Listen", "Shards", "NewEndpoint"} {
				t.Run(h.name+" "+how, func(t *testing.T) { h.testSources(t, how) })
			}
		}
	})
}
