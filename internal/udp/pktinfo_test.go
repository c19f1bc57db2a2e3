//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package udp

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// asked opens a connected socket to an address of this host, or skips the test where
// the host has no such address.
func asked(t *testing.T, addr string, port uint16) *net.UDPConn {
	t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Skipf("the host has not %v: %v", addr, err)
	}
	return prepare(t, c)
}

// readOne reads one datagram.
func readOne(t *testing.T, pc net.PacketConn, c Conn) Datagram {
	t.Helper()
	got := make([]Datagram, 1)
	n, err := c.ReadBatch(got)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return got[0]
}

// answerIs reads one datagram of a connected socket, which gets those of its peer's
// address only.
func answerIs(t *testing.T, c *net.UDPConn, want string) {
	t.Helper()
	b := make([]byte, 2000)
	n, err := c.Read(b)
	require.NoError(t, err, "no answer at %v from %v", c.LocalAddr(), c.RemoteAddr())
	require.Equal(t, want, string(b[:n]))
}

// wildcards are sockets that are bound to no address, and addresses of the host that
// they are asked at.
var wildcards = []struct {
	network, listen string
	asked           []string
}{
	{"udp4", "0.0.0.0:0", []string{"127.0.0.1", "127.0.0.2", "127.8.9.10"}},
	{"udp6", "[::]:0", []string{"::1"}},
	{"udp", "[::]:0", []string{"::1", "127.0.0.1", "127.0.0.2"}}, // IPv4-mapped
}

// An answer leaves from the address that was asked, alone or in a batch, as does one
// that may be fragmented. What is merged has one source.
func TestAnswerFromAskedAddress(t *testing.T) {
	for _, w := range wildcards {
		for _, features := range combinations {
			t.Run(fmt.Sprint(w.network, " ", features), func(t *testing.T) {
				pc := listen(t, w.network, w.listen)
				c := newConn(pc, features)
				requireFeatures(t, features, c)
				var batch []Datagram
				var askers []*net.UDPConn
				for i, addr := range w.asked {
					asker := asked(t, addr, addrOf(pc).Port())
					askers = append(askers, asker)
					_, err := asker.Write([]byte{byte(i)})
					require.NoError(t, err)
					d := readOne(t, pc, c)
					require.Equal(t, []byte{byte(i)}, d.Buf)
					require.Equal(t, addrOf(asker), d.Addr)
					require.Equal(t, netip.MustParseAddr(addr), d.Local.Addr())
					_, err = c.WriteBatch([]Datagram{{Buf: []byte("alone"), Addr: d.Addr, Local: d.Local}})
					require.NoError(t, err)
					_, err = c.WriteBatch([]Datagram{{Buf: []byte("fragmented"), Addr: d.Addr, Local: d.Local, Cut: true}})
					require.NoError(t, err)
					for j := range 3 {
						batch = append(batch, Datagram{Buf: []byte{1, byte(j)}, Addr: d.Addr, Local: d.Local})
					}
				}
				require.Empty(t, writeAll(c, batch))
				for _, asker := range askers {
					for _, want := range []string{"alone", "fragmented", "\x01\x00", "\x01\x01", "\x01\x02"} {
						answerIs(t, asker, want)
					}
				}
			})
		}
	}
}

// One peer that asks at several addresses gets each answer from the one that it asked,
// also if the answers are neighbours in a batch that leaves merged.
func TestMergedAnswersHaveOneSource(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		pc, peer := listen(t, "udp4", "0.0.0.0:0"), listen(t, "udp4", "127.0.0.1:0")
		c := newConn(pc, features)
		var batch []Datagram
		for i := range 30 {
			local := netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i/2%3)})
			if runtime.GOOS != "linux" {
				local = netip.MustParseAddr("127.0.0.1")
			}
			batch = append(batch, Datagram{Buf: []byte{byte(i)}, Addr: addrOf(peer), Local: LocalOf(local)})
		}
		require.Empty(t, writeAll(c, batch))
		for i, d := range batch {
			b := make([]byte, 10)
			n, from, err := peer.ReadFromUDPAddrPort(b)
			require.NoError(t, err)
			require.Equal(t, d.Buf, b[:n], "datagram %d", i)
			require.Equal(t, netip.AddrPortFrom(d.Local.Addr(), addrOf(pc).Port()), Unmap(from), "datagram %d", i)
		}
	})
}

// What is to leave from an address that the host has not, or not any more, leaves from
// the one that the system chooses. Others keep theirs, and all merges as before.
func TestAddressGone(t *testing.T) {
	for _, network := range []struct{ name, listen, peer, gone string }{
		{"udp4", "0.0.0.0:0", "127.0.0.1:0", "192.0.2.1"},
		{"udp6", "[::]:0", "[::1]:0", "2001:db8::1"},
		{"udp", "[::]:0", "127.0.0.1:0", "192.0.2.1"},
		{"udp", "[::]:0", "127.0.0.1:0", "2001:db8::1"}, // of the other family
	} {
		for _, features := range combinations {
			t.Run(fmt.Sprint(network, features), func(t *testing.T) {
				pc, peer := listen(t, network.name, network.listen), listen(t, "udp", network.peer)
				c := newConn(pc, features)
				requireFeatures(t, features, c)
				result := startCollecting(t, peer, newConn(peer, Features{}), 1)
				own := addrOf(peer).Addr()
				gone, here := LocalOf(netip.MustParseAddr(network.gone)), LocalOf(own)
				var want []packet
				write := func(size int, locals ...Local) {
					var batch []Datagram
					for _, l := range locals {
						for range 5 {
							b := make([]byte, size)
							b[0] = byte(len(want))
							batch = append(batch, Datagram{Buf: b, Addr: addrOf(peer), Local: l})
							want = append(want, packet{string(b), netip.AddrPortFrom(own, addrOf(pc).Port())})
						}
					}
					require.Empty(t, writeAll(c, batch))
				}
				write(100, gone)
				write(100, here, gone, here, gone, Local{})
				alone := Datagram{Buf: []byte{1}, Addr: addrOf(peer), Local: gone}
				require.Empty(t, writeAll(c, []Datagram{alone}))
				alone.Cut = true
				require.Empty(t, writeAll(c, []Datagram{alone}))
				want = append(want, packet{"\x01", want[0].from}, packet{"\x01", want[0].from})
				require.Empty(t, writeAll(c, []Datagram{{Buf: []byte(lastWord), Addr: addrOf(peer)}}))
				requirePackets(t, want, result())
				require.Equal(t, features, c.Features())
			})
		}
	}
}

// An error that has another cause than the local address stays that of its datagram.
func TestErrorsBesideLocalAddress(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		pc, peer := listen(t, "udp4", "0.0.0.0:0"), listen(t, "udp4", "127.0.0.1:0")
		c := newConn(pc, features)
		result := startCollecting(t, peer, newConn(peer, Features{}), 1)
		here := LocalOf(netip.MustParseAddr("127.0.0.1"))
		nobody := netip.MustParseAddrPort("127.0.0.1:0") // EINVAL on Linux
		batch := []Datagram{
			{Buf: []byte("a"), Addr: addrOf(peer), Local: here},
			{Buf: []byte("b"), Addr: nobody, Local: here},
			{Buf: []byte("c"), Addr: nobody, Local: here},
			{Buf: []byte("d"), Addr: addrOf(peer), Local: here},
			{Buf: []byte(lastWord), Addr: addrOf(peer), Local: here},
		}
		errs := writeAll(c, batch)
		require.Len(t, errs, 2)
		require.Error(t, errs[1])
		require.Error(t, errs[2])
		_, err := c.WriteBatch(batch[1:2])
		require.Error(t, err)
		from := netip.AddrPortFrom(addrOf(peer).Addr(), addrOf(pc).Port())
		requirePackets(t, []packet{{"a", from}, {"d", from}}, result())
		require.Equal(t, features, c.Features())
	})
}

// Sockets that are bound to an address, or connected, need no control messages.
func TestNoControlMessagesWithoutNeed(t *testing.T) {
	peer := listen(t, "udp4", "127.0.0.1:0")
	for name, pc := range map[string]*net.UDPConn{
		"bound":     listen(t, "udp4", "127.0.0.1:0"),
		"connected": dial(t, "udp4", "", addrOf(peer)),
	} {
		for _, features := range combinations {
			c := newConn(pc, features)
			requireOptions(t, pc, 0)
			_, err := peer.WriteToUDPAddrPort([]byte("x"), addrOf(pc))
			require.NoError(t, err)
			require.Equal(t, Local{}, readOne(t, pc, c).Local, "%s %v", name, features)
			require.NoError(t, c.Release())
		}
	}
}

// requireOptions compares the options of control messages.
func requireOptions(t *testing.T, pc *net.UDPConn, want ...int) {
	t.Helper()
	raw, err := pc.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		for _, o := range infoOptions() {
			if v, err := unix.GetsockoptInt(int(fd), o.level, o.name); err == nil {
				require.Contains(t, want, v)
			}
		}
	}))
}

// Release switches off what New has switched on, and nothing that the owner of the
// socket had switched on.
func TestReleaseRestoresControlMessages(t *testing.T) {
	for _, features := range combinations {
		pc := listen(t, "udp4", "0.0.0.0:0")
		first := newConn(pc, features)
		requireOptions(t, pc, 1)
		second := newConn(pc, features)
		require.NoError(t, second.Release())
		requireOptions(t, pc, 1)
		require.NoError(t, first.Release())
		requireOptions(t, pc, 0)
	}
}

func TestLocal(t *testing.T) {
	require.Equal(t, Local{}, LocalOf(netip.Addr{}))
	require.False(t, Local{}.Addr().IsValid())
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")
	require.True(t, LocalOf(a) == LocalOf(netip.AddrFrom4([4]byte{10, 0, 0, 1})))
	require.False(t, LocalOf(a) == LocalOf(b))
	require.Equal(t, b, LocalOf(b).Addr())
	var p packetInfo
	p.zones = new(zones)
	for _, none := range []string{"224.0.0.1", "255.255.255.255", "0.0.0.0", "::", "ff02::1", "::ffff:224.0.0.1"} {
		require.Equal(t, Local{}, p.local(netip.MustParseAddr(none), 1), none)
	}
	require.Equal(t, a, p.local(netip.MustParseAddr("::ffff:10.0.0.1"), 7).Addr())
	require.Equal(t, "fe80::1%4000000", p.local(netip.MustParseAddr("fe80::1"), 4000000).Addr().String())
	require.Equal(t, "fe80::1%4000001", p.local(netip.MustParseAddr("fe80::1"), 4000001).Addr().String())
	require.Equal(t, "2001:db8::1", p.local(netip.MustParseAddr("2001:db8::1"), 4000001).Addr().String())
}
