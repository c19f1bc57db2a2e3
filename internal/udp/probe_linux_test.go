package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// discovery returns the options for path MTU discovery that c has.
func discovery(t *testing.T, c *net.UDPConn) (values [2]int) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		var errs [2]error
		values[0], errs[0] = unix.GetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER)
		values[1], errs[1] = unix.GetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER)
		for i, err := range errs {
			if err != nil {
				values[i] = -1
			}
		}
	}))
	return values
}

// A probe arrives by every kind of socket, which is afterwards as it was.
func TestProbesOnLoopback(t *testing.T) {
	for _, test := range []struct{ network, from, to string }{
		{"udp4", "127.0.0.1:0", "127.0.0.1:0"},
		{"udp6", "[::1]:0", "[::1]:0"},
		{"udp", "[::]:0", "127.0.0.1:0"},
		{"udp", "[::]:0", "[::1]:0"},
	} {
		for _, features := range combinations {
			for _, connected := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s from %s to %s %v %v", test.network, test.from, test.to, features, connected), func(t *testing.T) {
					r := listen(t, test.network, test.to)
					var from *net.UDPConn
					if connected {
						from = dial(t, test.network, "", addrOf(r))
					} else {
						from = listen(t, test.network, test.from)
					}
					c := newConn(from, features)
					require.True(t, c.CanProbe())
					before := discovery(t, from)
					require.NoError(t, c.WriteProbe(&Datagram{Buf: make([]byte, 5000), Addr: addrOf(r)}))
					require.Equal(t, before, discovery(t, from))
					require.NoError(t, r.SetReadDeadline(time.Now().Add(patience)))
					n, err := r.Read(make([]byte, 1<<16))
					require.NoError(t, err)
					require.Equal(t, 5000, n)
				})
			}
		}
	}
}

// counter returns a counter of IP in the namespace.
func (ns *namespace) counter(t *testing.T, name string) (value string) {
	t.Helper()
	ns.do(t, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		values := strings.Fields(lines[1])
		for i, field := range strings.Fields(lines[0]) {
			if field == name {
				value = values[i]
			}
		}
		return nil
	})
	return value
}

// A probe is never fragmented and not held to what the kernel remembers of the
// path; what is larger than the interface takes is an error at once.
func TestProbesOverCable(t *testing.T) {
	a, b := cable(t)
	a.run(t, `
		ip link set v0 mtu 1300
		ip route replace 10.9.0.2/32 dev v0 mtu 1000`)
	for _, features := range combinations {
		t.Run(features.String(), func(t *testing.T) {
			from, r := a.socket(t, "udp4", "10.9.0.1:0"), b.socket(t, "udp4", "10.9.0.2:0")
			c := newConn(from, features)
			buf := make([]byte, 1<<16)
			got := func() int {
				require.NoError(t, r.SetReadDeadline(time.Now().Add(patience)))
				n, err := r.Read(buf)
				require.NoError(t, err)
				return n
			}
			fragments := a.counter(t, "FragCreates")
			require.NotEmpty(t, fragments)
			require.ErrorIs(t, c.WriteProbe(&Datagram{Buf: make([]byte, 1273), Addr: addrOf(r)}), syscall.EMSGSIZE)
			require.NoError(t, c.WriteProbe(&Datagram{Buf: make([]byte, 1272), Addr: addrOf(r)}))
			require.Equal(t, 1272, got())
			require.Equal(t, fragments, a.counter(t, "FragCreates"))

			// Others pass all the same.
			for _, size := range []int{1272, 1273, 3000} {
				_, err := c.WriteBatch([]Datagram{{Buf: make([]byte, size), Addr: addrOf(r)}})
				require.NoError(t, err)
				require.Equal(t, size, got())
			}
			require.NotEqual(t, fragments, a.counter(t, "FragCreates"))
		})
	}
}

// Where a socket is not the system's, a probe is a datagram like others.
func TestProbesElsewhere(t *testing.T) {
	r := listen(t, "udp4", "127.0.0.1:0")
	for _, pc := range []net.PacketConn{
		struct{ net.PacketConn }{listen(t, "udp4", "127.0.0.1:0")},
		addrPorts{listen(t, "udp4", "127.0.0.1:0")},
	} {
		c := New(pc)
		require.False(t, c.CanProbe())
		require.NoError(t, c.WriteProbe(&Datagram{Buf: []byte("probe"), Addr: addrOf(r)}))
		require.NoError(t, r.SetReadDeadline(time.Now().Add(patience)))
		n, err := r.Read(make([]byte, 100))
		require.NoError(t, err)
		require.Equal(t, 5, n)
	}
}

// addrPorts is a net.PacketConn that speaks AddrPorts and is no socket.
type addrPorts struct{ net.PacketConn }

func (a addrPorts) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	return a.PacketConn.(*net.UDPConn).ReadFromUDPAddrPort(b)
}

func (a addrPorts) WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	return a.PacketConn.(*net.UDPConn).WriteToUDPAddrPort(b, addr)
}
