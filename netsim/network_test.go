package netsim

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func listen(t testing.TB, n *Network, addr string) *PacketConn {
	t.Helper()
	c, err := n.Listen(addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t testing.TB, from, to *PacketConn, packet []byte) {
	t.Helper()
	n, err := from.WriteToAddrPort(packet, to.AddrPort())
	require.NoError(t, err)
	require.Equal(t, len(packet), n)
}

// arrival is what a reader saw.
type arrival struct {
	at   time.Duration
	from netip.AddrPort
	data string
}

// receiveAll reads until nothing has come for an hour of virtual time.
func receiveAll(t testing.TB, c *PacketConn, start time.Time) (all []arrival) {
	t.Helper()
	buf := make([]byte, 2000)
	for {
		assert.NoError(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
		n, from, err := c.ReadFromAddrPort(buf)
		if err != nil {
			return all
		}
		all = append(all, arrival{time.Since(start), from, string(buf[:n])})
	}
}

func TestNetworkMostExactRuleCounts(t *testing.T) {
	// Rules in the order of their weight; each is named by its delay in ms.
	rules := []struct{ from, to string }{
		{"10.0.0.1:1", "10.0.0.2:2"}, {"10.0.0.1:1", "10.0.0.2"}, {"10.0.0.1:1", ""},
		{"10.0.0.1", "10.0.0.2:2"}, {"10.0.0.1", "10.0.0.2"}, {"10.0.0.1", ""},
		{"", "10.0.0.2:2"}, {"", "10.0.0.2"}, {"", ""},
	}
	for weight := range rules {
		synctest.Test(t, func(t *testing.T) {
			n := NewNetwork(1, LinkConfig{Delay: time.Hour})
			a, b := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:2")
			send(t, b, a, nil) // the way back has the default
			for i := weight; i < len(rules); i++ {
				n.SetLink(rules[i].from, rules[i].to, LinkConfig{Delay: time.Duration(1+i) * time.Millisecond})
			}
			start := time.Now()
			send(t, a, b, nil)
			_, _, err := b.ReadFromAddrPort(nil)
			require.NoError(t, err)
			require.Equal(t, time.Duration(1+weight)*time.Millisecond, time.Since(start))
			_, _, err = a.ReadFromAddrPort(nil)
			require.NoError(t, err)
			require.Equal(t, time.Hour, time.Since(start))
		})
	}
	n := NewNetwork(1, LinkConfig{})
	require.Panics(t, func() { n.SetLink("somewhere", "", LinkConfig{}) })
	require.Panics(t, func() { n.SetLink("", "", LinkConfig{Loss: 2}) })
}

// Sockets of two hosts share the rate between them, unless a rule names one.
func TestNetworkHostsShareALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := LinkConfig{Rate: 1000}
		n := NewNetwork(1, LinkConfig{})
		n.SetLink("10.0.0.1", "", slow)
		n.SetLink("10.0.0.1:3", "", slow)
		to := listen(t, n, "10.0.0.2:1")
		start := time.Now()
		for port := 1; port <= 3; port++ {
			send(t, listen(t, n, fmt.Sprintf("10.0.0.1:%d", port)), to, make([]byte, 1000))
		}
		var at []time.Duration
		for _, a := range receiveAll(t, to, start) {
			at = append(at, a.at)
		}
		require.Equal(t, []time.Duration{time.Second, time.Second, 2 * time.Second}, at)
	})
}

func TestNetworkSetLinkKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n := NewNetwork(1, LinkConfig{Delay: time.Second})
		a, b := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		send(t, a, b, []byte("default"))
		n.SetLink("10.0.0.1:1", "10.0.0.2:1", LinkConfig{Delay: time.Millisecond})
		send(t, a, b, []byte("own link"))
		n.SetLink("10.0.0.1:1", "10.0.0.2:1", LinkConfig{})
		send(t, a, b, []byte("changed"))
		time.Sleep(2 * time.Second)
		send(t, a, b, []byte("later"))
		require.Equal(t, []arrival{
			{2 * time.Second, a.AddrPort(), "default"},
			{2 * time.Second, a.AddrPort(), "own link"},
			{2 * time.Second, a.AddrPort(), "changed"},
			{2 * time.Second, a.AddrPort(), "later"},
		}, receiveAll(t, b, start))
	})
}

func TestNetworkFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{})
		a, b := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		var tapped []string
		n.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
			tapped = append(tapped, string(packet))
			if string(packet) == "bad" {
				n.Inject(to, from, []byte("refused")) // may use the network
				return false
			}
			return from == a.AddrPort() && to == b.AddrPort()
		})
		send(t, a, b, []byte("good"))
		send(t, a, b, []byte("bad"))
		send(t, b, a, []byte("wrong way"))
		n.SetFilter(nil)
		send(t, b, a, []byte("open"))
		require.Equal(t, []string{"good", "bad", "wrong way"}, tapped)
		require.Equal(t, []arrival{{0, a.AddrPort(), "good"}}, receiveAll(t, b, time.Now()))
		require.Equal(t, []arrival{{0, b.AddrPort(), "refused"}, {0, b.AddrPort(), "open"}}, receiveAll(t, a, time.Now()))
		stats := n.Stats()
		require.Equal(t, Tally{2, 12}, stats.Filtered)
		requireBalanced(t, stats)
	})
}

func TestNetworkInject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{Delay: time.Second, Loss: 1})
		n.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
		c := listen(t, n, "10.0.0.1:1")
		spoofed := netip.MustParseAddrPort("192.0.2.1:99")
		packet := []byte("forged")
		n.Inject(spoofed, c.AddrPort(), packet)
		packet[0] = 'X'
		require.Equal(t, []arrival{{0, spoofed, "forged"}}, receiveAll(t, c, time.Now()))

		n.Inject(spoofed, netip.MustParseAddrPort("10.0.0.1:2"), packet)
		stats := n.Stats()
		require.Equal(t, LinkStats{Sent: Tally{2, 12}, Delivered: Tally{1, 6}, Unreachable: Tally{1, 6}}, stats)
	})
}

// What is due at the same instant has been sent before, so it comes first.
func TestNetworkInjectComesAfterWhatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{Delay: time.Second})
		a, b := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		buf := make([]byte, 10)
		for range 100 {
			due := time.Now().Add(time.Second)
			send(t, a, b, []byte("sent"))
			time.Sleep(time.Until(due))
			n.Inject(a.AddrPort(), b.AddrPort(), []byte("injected"))
			for _, want := range []string{"sent", "injected"} {
				size, _, err := b.ReadFromAddrPort(buf)
				require.NoError(t, err)
				require.Equal(t, want, string(buf[:size]))
			}
		}
	})
}

// A packet goes to whoever has the address when it arrives.
func TestNetworkDeliversToThePresentSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(1, LinkConfig{Delay: time.Second})
		a, old := listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:1")
		send(t, a, old, []byte("for whom"))
		require.NoError(t, old.Close())
		renewed := listen(t, n, "10.0.0.2:1")
		require.Len(t, receiveAll(t, renewed, time.Now()), 1)

		send(t, a, renewed, []byte("too late"))
		require.NoError(t, renewed.Close())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, Tally{1, 8}, n.Stats().Unreachable)
	})
}

func TestNetworkListen(t *testing.T) {
	n := NewNetwork(1, LinkConfig{})
	for _, bad := range []string{"", "10.0.0.1", "example.org:1", "0.0.0.0:1", "[::]:1"} {
		_, err := n.Listen(bad)
		require.Error(t, err, bad)
	}
	first := listen(t, n, "10.0.0.1:4000")
	for _, same := range []string{"10.0.0.1:4000", "[::ffff:10.0.0.1]:4000"} {
		_, err := n.Listen(same)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	require.NoError(t, first.Close())
	listen(t, n, "10.0.0.1:4000")

	listen(t, n, "10.0.0.1:49153")
	one, two := listen(t, n, "10.0.0.1:0"), listen(t, n, "10.0.0.1:0")
	require.Equal(t, "10.0.0.1:49152", one.LocalAddr().String())
	require.Equal(t, "10.0.0.1:49154", two.LocalAddr().String())
	require.NoError(t, two.Close())
	require.Equal(t, "10.0.0.1:49155", listen(t, n, "10.0.0.1:0").LocalAddr().String(), "a port was used again at once")
	require.Equal(t, "[2001:db8::1]:49152", listen(t, n, "[2001:db8::1]:0").LocalAddr().String())
}

func TestNetworkPortsRunOut(t *testing.T) {
	n := NewNetwork(1, LinkConfig{})
	for range 1<<16 - firstEphemeralPort {
		_, err := n.Listen("10.0.0.1:0")
		require.NoError(t, err)
	}
	_, err := n.Listen("10.0.0.1:0")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, n.sockets[netip.MustParseAddrPort("10.0.0.1:50000")].Close())
	c, err := n.Listen("10.0.0.1:0")
	require.NoError(t, err)
	require.EqualValues(t, 50000, c.AddrPort().Port())
}
