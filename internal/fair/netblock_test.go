package fair

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Addresses count together by /48 and /64, or by /24 and one by one, however they are
// written.
func TestBlockOf(t *testing.T) {
	for _, test := range []struct {
		a, b         string
		site, subnet bool // the same
	}{
		{"10.0.0.1", "10.0.0.1", true, true},
		{"10.0.0.1", "10.0.0.255", true, false},
		{"10.0.0.1", "10.0.1.1", false, false},
		{"10.0.0.1", "::ffff:10.0.0.1", true, true},
		{"10.0.0.1", "::ffff:10.0.0.2", true, false},
		{"10.0.0.1", "::ffff:10.0.1.1", false, false},
		{"::ffff:10.0.0.1", "::ffff:10.0.0.1%eth0", true, true},
		{"2001:db8::1", "2001:db8::ffff:2", true, true},
		{"2001:db8::1", "2001:db8:0:1::1", true, false},
		{"2001:db8::1", "2001:db8:1::1", false, false},
		{"fe80::1%eth0", "fe80::2%eth1", true, true},
		{"::", "::1", true, true},
	} {
		a, b := BlockOf(netip.MustParseAddr(test.a), ""), BlockOf(netip.MustParseAddr(test.b), "")
		require.Equal(t, test.site, a.Site == b.Site, "%s and %s", test.a, test.b)
		require.Equal(t, test.subnet, a.Subnet == b.Subnet, "%s and %s", test.a, test.b)
		require.NotEqual(t, Block{}, a)
		for _, other := range []string{"memory a", "memory b", "", "::", "10.0.0.1"} {
			require.NotEqual(t, a.Site, BlockOf(netip.Addr{}, other).Site)
			require.NotEqual(t, a.Subnet, BlockOf(netip.Addr{}, other).Subnet)
		}
	}
	require.NotEqual(t, BlockOf(netip.Addr{}, "memory a"), BlockOf(netip.Addr{}, "memory b"))
}

// An address of package net counts as what it stands for.
func TestBlockOfAddr(t *testing.T) {
	udp := func(s string) net.Addr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }
	require.Equal(t, BlockOf(netip.MustParseAddr("10.0.0.1"), ""), BlockOfAddr(udp("[::ffff:10.0.0.1]:7")))
	require.Equal(t, BlockOfAddr(udp("10.0.0.1:1")), BlockOfAddr(udp("10.0.0.1:2")))
	require.Equal(t, BlockOfAddr(udp("10.0.0.1:1")), BlockOfAddr(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 2}))
	unix := func(name string) net.Addr { return &net.UnixAddr{Name: name, Net: "unixgram"} }
	require.Equal(t, BlockOfAddr(unix("/a")), BlockOfAddr(unix("/a")))
	require.NotEqual(t, BlockOfAddr(unix("/a")), BlockOfAddr(unix("/b")))
	require.Equal(t, Block{}, BlockOfAddr(nil))
}
