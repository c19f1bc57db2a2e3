package tunnel

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

// linkLocal returns a link-local address of this host with its zone, or skips the test.
func linkLocal(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range all {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil || !prefix.Addr().Is6() || !prefix.Addr().IsLinkLocalUnicast() {
				continue
			}
			address := prefix.Addr().WithZone(i.Name).String()
			l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
			if err == nil {
				require.NoError(t, l.Close())
				return address
			}
		}
	}
	t.Skip("no interface has a link-local address")
	return ""
}

// SOCKS5 on a link-local address carries connections and packets.
func TestSocksOnLinkLocalAddress(t *testing.T) {
	at := linkLocal(t)
	t.Parallel()
	_, c := connected(t, net.JoinHostPort(at, "0")+":socks")
	proxy := c.address(t)
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	conn, reply := socksDial(t, proxy, statute.CommandConnect, target(t, echo))
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	exchange(t, conn, 1000)
	_, reply = socksDial(t, proxy, statute.CommandAssociate, "0.0.0.0:0")
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	host, _, err := net.SplitHostPort(proxy)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(reply.BndAddr.String())
	require.NoError(t, err)
	pc, err := net.Dial("udp", net.JoinHostPort(host, port)) // a reply has no place for a zone
	require.NoError(t, err)
	defer pc.Close()
	udpExchange(t, &socksPackets{Conn: pc, target: udpTarget(t)}, 10, 1000)
}
