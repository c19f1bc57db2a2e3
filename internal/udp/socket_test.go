package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/stretchr/testify/require"
)

func TestSetBuffers(t *testing.T) {
	pc := listen(t, "udp4", "127.0.0.1:0")
	require.NoError(t, SetBuffers(pc, 100_000))
	require.ErrorIs(t, SetBuffers(stringConn{}, 100_000), errors.ErrUnsupported)
	require.NoError(t, pc.Close())
	require.ErrorIs(t, SetBuffers(pc, 100_000), net.ErrClosed)
}

func TestListenReusePort(t *testing.T) {
	if runtime.GOOS != "linux" {
		_, err := ListenReusePort("udp", "127.0.0.1:0", 2, nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		return
	}
	for _, network := range []string{"udp", "udp4"} {
		t.Run(network, func(t *testing.T) { testShards(t, network, "127.0.0.1:0") })
	}
	t.Run("any", func(t *testing.T) { testShards(t, "udp", ":0") })
	t.Run("udp6", func(t *testing.T) {
		_ = listen(t, "udp6", "[::1]:0") // skips without IPv6
		testShards(t, "udp6", "[::1]:0")
	})
	t.Run("port", func(t *testing.T) {
		pc := listen(t, "udp4", "127.0.0.1:0")
		require.NoError(t, pc.Close())
		testShards(t, "udp4", pc.LocalAddr().String())
	})
}

// A port that is in use is refused, be it shared or not.
func TestReusePortInUse(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no groups here")
	}
	for _, test := range []struct{ network, address string }{{"udp4", "127.0.0.1:0"}, {"udp", ":0"}, {"udp6", "[::1]:0"}} {
		_ = listen(t, test.network, test.address) // skips without IPv6
		conns, err := ListenReusePort(test.network, test.address, 2, nil)
		require.NoError(t, err)
		port := addrOf(conns[0]).Port()
		for _, address := range []string{conns[0].LocalAddr().String(), fmt.Sprintf(":%d", port)} {
			for n := range 3 {
				_, err := ListenReusePort(test.network, address, n+1, nil)
				require.True(t, neterr.Is(err, syscall.EADDRINUSE), "%v, %d sockets", test, n+1)
			}
		}
		for _, c := range conns {
			require.NoError(t, c.Close())
		}
	}
}

// testShards sends from many sockets: all that is sent arrives, and not all of
// it at one socket.
func testShards(t *testing.T, network, address string) {
	const shards, peers = 4, 64
	conns, err := ListenReusePort(network, address, shards, nil)
	require.NoError(t, err)
	require.Len(t, conns, shards)
	for _, c := range conns {
		prepare(t, c)
		require.Equal(t, conns[0].LocalAddr(), c.LocalAddr())
	}
	for range peers {
		pc := listen(t, "udp4", "127.0.0.1:0")
		if network == "udp6" {
			pc = listen(t, network, "[::1]:0")
		}
		_, err := pc.WriteToUDPAddrPort([]byte("hello"), addrOf(conns[0]))
		require.NoError(t, err)
	}
	type arrival struct {
		shard int
		from  netip.AddrPort
	}
	arrivals := make(chan arrival, peers)
	for i, c := range conns {
		go func() {
			sock := New(c)
			batch := make([]Datagram, sock.BatchSize())
			for {
				n, err := sock.ReadBatch(batch)
				if err != nil {
					return
				}
				for _, d := range batch[:n] {
					arrivals <- arrival{i, d.Addr}
				}
			}
		}()
	}
	seen := make(map[netip.AddrPort]bool)
	var counts [shards]int
	for range peers {
		a := <-arrivals
		seen[a.from] = true
		counts[a.shard]++
	}
	require.Len(t, seen, peers)
	for i, n := range counts {
		require.NotZero(t, n, "socket %d of %v", i, counts)
	}
}

func TestListenReusePortFails(t *testing.T) {
	for _, test := range []struct {
		network, address string
		n                int
	}{
		{"tcp", "127.0.0.1:0", 2},
		{"udp", "127.0.0.1", 2},
		{"udp", "127.0.0.1:http?", 2},
		{"udp", "127.0.0.1:0", 0},
		{"udp4", "192.0.2.1:0", 2}, // not an address of ours
	} {
		_, err := ListenReusePort(test.network, test.address, test.n, nil)
		require.Error(t, err, "%v", test)
	}
	taken := listen(t, "udp4", "127.0.0.1:0")
	_, err := ListenReusePort("udp4", taken.LocalAddr().String(), 2, nil)
	require.True(t, neterr.Is(err, syscall.EADDRINUSE) || !canReusePort && errors.Is(err, errors.ErrUnsupported), "%v", err)
}

// stringConn is a net.PacketConn whose addresses are not those of UDP.
type stringConn struct {
	net.PacketConn
	in  chan string
	out chan string
}

type stringAddr string

func (stringAddr) Network() string  { return "string" }
func (a stringAddr) String() string { return string(a) }

func (c stringConn) ReadFrom(b []byte) (int, net.Addr, error) {
	return copy(b, <-c.in), stringAddr("peer"), nil
}

func (c stringConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	if len(b) == 0 {
		return 0, errors.New("empty")
	}
	c.out <- string(b) + " to " + addr.String()
	return len(b), nil
}

func TestForeignPacketConn(t *testing.T) {
	pc := stringConn{in: make(chan string, 8), out: make(chan string, 8)}
	c := New(pc)
	require.Equal(t, Features{}, c.Features())
	require.Equal(t, 1, c.BatchSize())
	batch := make([]Datagram, 2)
	for _, s := range []string{"one", "", "three"} {
		pc.in <- s
		n, err := c.ReadBatch(batch)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, Datagram{Buf: []byte(s), Peer: stringAddr("peer")}, batch[0])
	}
	errs := writeAll(c, []Datagram{
		{Buf: []byte("a"), Peer: stringAddr("x")},
		{Peer: stringAddr("x")},
		{Buf: []byte("b"), Addr: peerA},
	})
	require.Len(t, errs, 1)
	require.Error(t, errs[1])
	require.Equal(t, "a to x", <-pc.out)
	require.Equal(t, "b to 192.0.2.1:1000", <-pc.out)
	require.NoError(t, c.Release())
}

func TestSplit(t *testing.T) {
	addr, peer := Split(&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1000})
	require.Equal(t, peerA, addr)
	require.Nil(t, peer)
	addr, peer = Split(stringAddr("x"))
	require.False(t, addr.IsValid())
	require.Equal(t, stringAddr("x"), peer)
	_, peer = Split(&net.UDPAddr{Port: 1000})
	require.NotNil(t, peer)
	require.Equal(t, peerA, Unmap(netip.MustParseAddrPort("[::ffff:192.0.2.1]:1000")))
}
