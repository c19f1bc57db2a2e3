package netsim

import (
	"maps"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socket opens a real UDP socket on loopback.
func socket(t testing.TB, ip net.IP) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	enlargeBuffers(c)
	return c
}

var loopback = net.IPv4(127, 0, 0, 1)

// await is testenv.Await, which imports this package.
func await(t testing.TB, condition func() bool) {
	t.Helper()
	for !condition() && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
}

func relay(t testing.TB, target net.Addr, up, down LinkConfig) *Relay {
	t.Helper()
	r, err := NewRelay(target.String(), up, down, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func dial(t testing.TB, r *Relay) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, r.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	enlargeBuffers(c)
	return c
}

func write(t testing.TB, c *net.UDPConn, s string) {
	t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(t, err)
}

// read returns the next packet and where it came from.
func read(t testing.TB, c *net.UDPConn) (string, netip.AddrPort) {
	t.Helper()
	buf := make([]byte, 1<<16)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	require.NoError(t, err)
	return string(buf[:n]), unmapped(from)
}

func TestRelayBothWays(t *testing.T) {
	for _, ip := range []net.IP{loopback, net.IPv6loopback} {
		t.Run(ip.String(), func(t *testing.T) {
			probe, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
			if err != nil {
				t.Skip("no such loopback: ", err)
			}
			probe.Close()
			target := socket(t, ip)
			r := relay(t, target.LocalAddr(), LinkConfig{}, LinkConfig{})
			require.True(t, r.Addr().IP.Equal(ip))
			client := dial(t, r)
			for i, size := range []int{5, 0, 1400, 30_000} {
				ping := strings.Repeat(string(rune('a'+i)), size)
				write(t, client, ping)
				got, from := read(t, target)
				require.True(t, ping == got, "%d bytes, want %d", len(got), size)
				_, err := target.WriteToUDPAddrPort([]byte(ping+"?"), from)
				require.NoError(t, err)
				got, _ = read(t, client)
				require.True(t, ping+"?" == got, "%d bytes, want %d", len(got), size+1)
			}
			await(t, func() bool {
				up, down := r.Stats()
				return up == LinkStats{Sent: Tally{4, 31405}, Delivered: Tally{4, 31405}} &&
					down == LinkStats{Sent: Tally{4, 31409}, Delivered: Tally{4, 31409}}
			})
		})
	}
}

func TestRelayLinks(t *testing.T) {
	target := socket(t, loopback)
	delay := LinkConfig{Delay: 20 * time.Millisecond, Jitter: 20 * time.Millisecond}
	r := relay(t, target.LocalAddr(), delay, LinkConfig{Loss: 1})
	client := dial(t, r)
	start := time.Now()
	const packets = 100 // few enough for any socket buffer
	for i := range packets {
		write(t, client, string(number(i, 4)))
	}
	var from netip.AddrPort
	for i := range packets {
		var got string
		got, from = read(t, target)
		require.Equal(t, i, numberOf([]byte(got)), "out of order")
	}
	require.GreaterOrEqual(t, time.Since(start), delay.Delay)

	answer := func(s string) {
		_, err := target.WriteToUDPAddrPort([]byte(s), from)
		require.NoError(t, err)
	}
	answer("lost")
	await(t, func() bool { _, down := r.Stats(); return down.Lost.Packets == 1 })
	require.NoError(t, r.Play(nil, Script{{Change: func(c *LinkConfig) { *c = LinkConfig{Duplicate: 1} }}}))
	answer("twice")
	for range 2 {
		got, _ := read(t, client)
		require.Equal(t, "twice", got)
	}
	await(t, func() bool { _, down := r.Stats(); return down.Delivered.Packets == 2 })
	up, down := r.Stats()
	requireBalanced(t, up)
	requireBalanced(t, down)
}

// A target that is away must not end the relay, for it may come back.
func TestRelaySurvivesRefusal(t *testing.T) {
	target := socket(t, loopback)
	addr := target.LocalAddr().(*net.UDPAddr)
	r := relay(t, addr, LinkConfig{}, LinkConfig{})
	client := dial(t, r)
	write(t, client, "first")
	_, from := read(t, target)
	require.NoError(t, target.Close())
	for i := range int64(100) {
		write(t, client, "to nobody")
		await(t, func() bool {
			up, _ := r.Stats()
			return up.Delivered.Packets+up.Unreachable.Packets == i+2
		})
	}
	renewed, err := net.ListenUDP("udp", addr)
	require.NoError(t, err)
	defer renewed.Close()
	write(t, client, "again")
	got, fromNow := read(t, renewed)
	require.Equal(t, "again", got)
	require.Equal(t, from, fromNow)
	_, err = renewed.WriteToUDPAddrPort([]byte("back"), fromNow)
	require.NoError(t, err)
	got, _ = read(t, client)
	require.Equal(t, "back", got)
}

func TestRelayBoundsQueue(t *testing.T) {
	target := socket(t, loopback)
	r := relay(t, target.LocalAddr(), LinkConfig{Delay: time.Hour}, LinkConfig{})
	c := &relayClient{}
	packet := make([]byte, 1<<20)
	for range 70 {
		r.up.accept(c, packet)
	}
	up, _ := r.Stats()
	require.Equal(t, LinkStats{Sent: Tally{70, 70 << 20}, Overflow: Tally{6, 6 << 20}}, up)
}

func TestRelayBoundsClients(t *testing.T) {
	target := socket(t, loopback)
	r := relay(t, target.LocalAddr(), LinkConfig{}, LinkConfig{})
	first := dial(t, r)
	write(t, first, "first")
	read(t, target)
	r.mu.Lock()
	for i := range relayMaxClients - 1 { // as though they had come
		r.clients[relayKey{addr: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i+1))}] = nil
	}
	r.mu.Unlock()
	defer func() { // Close does not expect them
		r.mu.Lock()
		defer r.mu.Unlock()
		maps.DeleteFunc(r.clients, func(_ relayKey, c *relayClient) bool { return c == nil })
	}()
	write(t, dial(t, r), "one too many")
	await(t, func() bool { up, _ := r.Stats(); return up.Overflow == Tally{1, 12} })
	write(t, first, "still served")
	got, _ := read(t, target)
	require.Equal(t, "still served", got)
}

func TestRelayErrors(t *testing.T) {
	_, err := NewRelay("no port", LinkConfig{}, LinkConfig{}, 1)
	require.Error(t, err)
	_, err = NewRelay("127.0.0.1:1", LinkConfig{Loss: -1}, LinkConfig{MTU: -1}, 1)
	require.ErrorContains(t, err, "Loss")
	require.ErrorContains(t, err, "MTU")
}

// goroutines counts those that run this package's relay code.
func goroutines() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "netsim.(*Relay).") +
		strings.Count(string(buf[:runtime.Stack(buf, true)]), "netsim.(*pipe).")
}
