package udp

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		for _, features := range combinations {
			for _, listen := range []string{"0.0.0.0:0", "[::]:0"} {
				network := test.network
				if listen == "[::]:0" {
					network = "udp"
				} else if network == "udp6" {
					continue
				}
				t.Run(fmt.Sprint(test.to, listen, features), func(t *testing.T) {
					from, pc := a.socket(t, test.network, test.from), b.socket(t, network, listen)
					c := newConn(pc, features)
					to := netip.AddrPortFrom(netip.MustParseAddr(test.to), addrOf(pc).Port())
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
func answerOne(pc net.PacketConn, c Conn, local string) error {
	if err := pc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	got := make([]Datagram, 1)
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
	_, err := c.WriteBatch([]Datagram{{Buf: []byte("answer"), Addr: d.Addr, Local: d.Local}})
	return err
}
