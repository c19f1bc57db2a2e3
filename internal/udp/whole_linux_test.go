package udp

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

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

// Datagrams arrive by every kind of socket, merged, alone, and with Cut. The socket
// keeps them whole for both families, and is at last as it was.
func TestWholeOnLoopback(t *testing.T) {
	for _, test := range []struct {
		network, from, to string
		want              [2]int // options while the socket is in use
	}{
		{"udp4", "127.0.0.1:0", "127.0.0.1:0", [2]int{unix.IP_PMTUDISC_PROBE, -1}},
		{"udp6", "[::1]:0", "[::1]:0", [2]int{unix.IP_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_PROBE}},
		{"udp", "[::]:0", "127.0.0.1:0", [2]int{unix.IP_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_PROBE}},
		{"udp", "[::]:0", "[::1]:0", [2]int{unix.IP_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_PROBE}},
	} {
		for _, features := range combinations {
			for _, connected := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s from %s to %s %v %v", test.network, test.from, test.to, features, connected), func(t *testing.T) {
					r := listen(t, test.network, test.to)
					var from *net.UDPConn
					want := test.want
					if connected {
						from = dial(t, test.network, "", addrOf(r))
						if addrOf(r).Addr().Is4() {
							want[1] = -1
						}
					} else {
						from = listen(t, test.network, test.from)
					}
					before := discovery(t, from)
					c := newConn(from, features)
					require.True(t, c.KeepsWhole())
					require.Equal(t, want, discovery(t, from))
					batch := to(addrOf(r), 1400, 1400, 5000, 1400)
					batch[2].Cut = true
					require.Empty(t, writeAll(c, batch))
					require.Equal(t, want, discovery(t, from))
					for _, d := range batch {
						n, err := r.Read(make([]byte, 1<<16))
						require.NoError(t, err)
						require.Equal(t, len(d.Buf), n)
					}
					require.NoError(t, c.Release())
					require.Equal(t, before, discovery(t, from))
				})
			}
		}
	}
}

// A socket that is not the system's promises nothing.
func TestWholeElsewhere(t *testing.T) {
	r := listen(t, "udp4", "127.0.0.1:0")
	for _, pc := range []net.PacketConn{
		struct{ net.PacketConn }{listen(t, "udp4", "127.0.0.1:0")},
		addrPorts{listen(t, "udp4", "127.0.0.1:0")},
	} {
		c := New(pc)
		require.False(t, c.KeepsWhole())
		require.NotEmpty(t, c.Merging().Off)
		require.Empty(t, writeAll(c, []Datagram{{Buf: []byte("probe"), Addr: addrOf(r), Cut: true}}))
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
