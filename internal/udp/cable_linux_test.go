package udp_test

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

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/udp"
)

// What is sent to several hosts is answered from an address of this one, and what is
// sent to a link-local address from that one, by its interface.
func TestAskedAddressOverCable(t *testing.T) {
	a, b := cable(t)
	b.Try(t, "ip addr add 10.9.0.3/24 dev v0\nip addr add fd09::3/64 dev v0 nodad")
	for _, test := range []struct{ network, from, to, local string }{
		{"udp4", "10.9.0.1:0", "10.9.0.3", "10.9.0.3"},
		{"udp4", "10.9.0.1:0", "10.9.0.255", "10.9.0.2"}, // broadcast
		{"udp4", "10.9.0.1:0", "255.255.255.255", "10.9.0.2"},
		{"udp6", "[fd09::1]:0", "fd09::3", "fd09::3"},
		{"udp6", "[fe80::1%v0]:0", "fe80::2%v0", "fe80::2%v0"},
		{"udp6", "[fe80::1%v0]:0", "ff02::1%v0", ""}, // multicast: the system chooses
	} {
		for _, features := range udp.Combinations {
			for _, listen := range []string{"0.0.0.0:0", "[::]:0"} {
				network := test.network
				if listen == "[::]:0" {
					network = "udp"
				} else if network == "udp6" {
					continue
				}
				t.Run(fmt.Sprint(test.to, listen, features), func(t *testing.T) {
					from, pc := a.socket(t, test.network, test.from), b.socket(t, network, listen)
					c := udp.NewConn(pc, features)
					to := netip.AddrPortFrom(netip.MustParseAddr(test.to), udp.AddrOf(pc).Port())
					a.do(t, func() error {
						_, err := from.WriteToUDPAddrPort([]byte("question"), to)
						return err
					})
					// The names of interfaces are looked up in the namespace.
					b.do(t, func() error { return answerOne(pc, c, test.local) })
					buf := make([]byte, 100)
					n, answerer, err := from.ReadFromUDPAddrPort(buf)
					require.NoError(t, err)
					require.Equal(t, "answer", string(buf[:n]))
					if test.local != "" {
						want := netip.AddrPortFrom(netip.MustParseAddr(test.local), to.Port())
						require.Equal(t, want.Addr().WithZone(""), answerer.Addr().Unmap().WithZone(""))
					}
				})
			}
		}
	}
}

// answerOne answers one datagram, which must have been sent to local.
func answerOne(pc net.PacketConn, c udp.Conn, local string) error {
	if err := pc.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		return err
	}
	got := make([]udp.Datagram, 1)
	if _, err := c.ReadBatch(got); err != nil {
		return err
	}
	d := got[0]
	var want netip.Addr
	if local != "" {
		want = netip.MustParseAddr(local)
	}
	if d.Local.Addr() != want {
		return fmt.Errorf("sent to %v, not %v", d.Local.Addr(), want)
	}
	_, err := c.WriteBatch([]udp.Datagram{{Buf: []byte("answer"), Addr: d.Addr, Local: d.Local}})
	return err
}

// Nothing is fragmented, merged or not, and nothing is held to what the kernel
// remembers of the path. What is larger than the interface takes is an error of that
// datagram alone; with Cut it passes in fragments.
func TestWholeOverCable(t *testing.T) {
	a, b := cable(t)
	a.Try(t, `
		ip link set v0 mtu 1300
		ip route replace 10.9.0.2/32 dev v0 mtu 1000`)
	for _, features := range udp.Combinations {
		for _, connected := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v %v", features, connected), func(t *testing.T) {
				r := b.socket(t, "udp4", "10.9.0.2:0")
				from := a.socket(t, "udp4", "10.9.0.1:0")
				if connected {
					require.NoError(t, from.Close())
					a.do(t, func() (err error) {
						from, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(udp.AddrOf(r)))
						return err
					})
					from = udp.Prepare(t, from)
				}
				c := udp.NewConn(from, features)
				fragments := a.counter(t, "FragCreates")
				require.NotEmpty(t, fragments)
				sizes := []int{1272, 1272, 1273, 1273, 1272, 1272, 1272, 3000, 3000, 100, 1272, 1272}
				batch := udp.To(udp.AddrOf(r), sizes...)
				errs := udp.WriteAll(c, batch)
				var failed []int
				for i, err := range errs {
					require.ErrorIs(t, err, syscall.EMSGSIZE)
					failed = append(failed, i)
				}
				require.ElementsMatch(t, []int{2, 3, 7, 8}, failed)
				require.Equal(t, fragments, a.counter(t, "FragCreates"))
				batch[7].Cut = true
				require.Empty(t, udp.WriteAll(c, batch[7:8]))
				require.NotEqual(t, fragments, a.counter(t, "FragCreates"))

				buf := make([]byte, 1<<16)
				for _, want := range []int{1272, 1272, 1272, 1272, 1272, 100, 1272, 1272, 3000} {
					n, err := r.Read(buf)
					require.NoError(t, err)
					require.Equal(t, want, n)
				}
				require.Equal(t, features.GSO, c.Features().GSO)
				require.Zero(t, c.Merging().Refused)
			})
		}
	}
}

// namespace is a thread with a network of its own.
type namespace struct{ *testenv.Host }

// do runs f in the namespace. f must not end the test.
func (ns *namespace) do(t *testing.T, f func() error) {
	t.Helper()
	require.NoError(t, ns.Do(f))
}

// socket opens a socket in the namespace.
func (ns *namespace) socket(t *testing.T, network, address string) (pc *net.UDPConn) {
	t.Helper()
	ns.do(t, func() error {
		addr, err := net.ResolveUDPAddr(network, address)
		if err != nil {
			return err
		}
		pc, err = net.ListenUDP(network, addr)
		return err
	})
	return udp.Prepare(t, pc)
}

// waitRunning waits until the interface takes packets, which is some time after
// both ends were switched on.
func (ns *namespace) waitRunning(t *testing.T) {
	t.Helper()
	ns.do(t, func() error {
		for end := time.Now().Add(time.Hour); ; time.Sleep(time.Millisecond) {
			v0, err := net.InterfaceByName("v0")
			if err != nil {
				return err
			}
			if v0.Flags&net.FlagRunning != 0 {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("the interface is %v", v0.Flags)
			}
		}
	})
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

// cable makes two namespaces with a cable between: 10.9.0.1, fd09::1 and
// fe80::1%v0 at one end, 10.9.0.2, fd09::2 and fe80::2%v0 at the other. The two
// interfaces have one name and number, since package net remembers these for
// all namespaces alike.
func cable(t *testing.T) (a, b *namespace) {
	t.Helper()
	a, b = &namespace{testenv.NewHost(t)}, &namespace{testenv.NewHost(t)}
	a.Try(t, "ip link add v0 index 77 type veth peer name v0 index 77 netns "+b.Path)
	for i, ns := range []*namespace{a, b} {
		ns.Try(t, fmt.Sprintf(`
			ip link set lo up
			ip link set v0 addrgenmode none address 02:00:00:00:00:0%[1]d
			ip link set v0 up
			ip addr add 10.9.0.%[1]d/24 dev v0
			ip addr add fd09::%[1]d/64 dev v0 nodad
			ip addr add fe80::%[1]d/64 dev v0 nodad
			ip neigh add 10.9.0.%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0
			ip neigh add fd09::%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0
			ip neigh add fe80::%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0`, 1+i, 2-i))
	}
	for _, ns := range []*namespace{a, b} {
		ns.waitRunning(t)
	}
	return a, b
}
