package udp

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is the limit of calls that need one. The test binary has a shorter one.
const patience = time.Hour

// combinations are all ways in which a socket can work.
var combinations = []Features{
	{},
	{Mmsg: true},
	{Mmsg: true, GSO: true},
	{Mmsg: true, GRO: true},
	{Mmsg: true, GSO: true, GRO: true},
}

// eachCombination runs f for the ways that the system has.
func eachCombination(t *testing.T, f func(t *testing.T, features Features)) {
	for _, features := range combinations {
		t.Run(features.String(), func(t *testing.T) {
			requireFeatures(t, features, newConn(listen(t, "udp4", "127.0.0.1:0"), features))
			f(t, features)
		})
	}
}

// listen opens a socket with large buffers, and skips the test where the host
// has no such address.
func listen(tb testing.TB, network, address string) *net.UDPConn {
	tb.Helper()
	addr, err := net.ResolveUDPAddr(network, address)
	require.NoError(tb, err)
	c, err := net.ListenUDP(network, addr)
	if err != nil && network != "udp4" {
		tb.Skipf("no IPv6 here: %v", err)
	}
	require.NoError(tb, err)
	return prepare(tb, c)
}

// dial opens a connected socket. local may be empty.
func dial(tb testing.TB, network, local string, to netip.AddrPort) *net.UDPConn {
	tb.Helper()
	var laddr *net.UDPAddr
	if local != "" {
		var err error
		laddr, err = net.ResolveUDPAddr(network, local)
		require.NoError(tb, err)
	}
	c, err := net.DialUDP(network, laddr, net.UDPAddrFromAddrPort(to))
	require.NoError(tb, err)
	return prepare(tb, c)
}

func prepare(tb testing.TB, c *net.UDPConn) *net.UDPConn {
	tb.Helper()
	tb.Cleanup(func() { _ = c.Close() }) // some tests close it themselves
	require.NoError(tb, SetBuffers(c, 16<<20))
	return c
}

// addrOf returns the address at which c is reached from this host.
func addrOf(c *net.UDPConn) netip.AddrPort {
	addr := Unmap(c.LocalAddr().(*net.UDPAddr).AddrPort())
	if addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addr.Port())
	}
	return addr
}

// packet is a datagram that was received.
type packet struct {
	data string
	from netip.AddrPort
}

// lastWord is the datagram that ends what collect collects.
const lastWord = "that was all"

// collect reads until lastWord comes, in batches of the given size.
func collect(pc net.PacketConn, c Conn, batchSize int) (packets []packet, err error) {
	batch := make([]Datagram, batchSize)
	if err := pc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	for {
		n, err := c.ReadBatch(batch)
		if err != nil {
			return packets, err
		}
		for _, d := range batch[:n] {
			if string(d.Buf) == lastWord {
				return packets, pc.SetReadDeadline(time.Time{})
			}
			packets = append(packets, packet{string(d.Buf), d.Addr})
		}
	}
}

// startCollecting calls collect in a goroutine; the result returns what it did.
func startCollecting(t *testing.T, pc net.PacketConn, c Conn, batchSize int) (result func() []packet) {
	var packets []packet
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		packets, err = collect(pc, c, batchSize)
	}()
	return func() []packet {
		t.Helper()
		<-done
		require.NoError(t, err, "after %d datagrams", len(packets))
		return packets
	}
}

// writeAll writes a batch as a caller does who goes on behind errors, which it
// returns by the index of their datagram.
func writeAll(c Conn, batch []Datagram) map[int]error {
	errs := make(map[int]error)
	for i := 0; i < len(batch); i++ {
		n, err := c.WriteBatch(batch[i:])
		i += n
		if err == nil {
			break
		}
		errs[i] = err
	}
	return errs
}

// largest is the size of the largest datagram that the system takes by default.
func largest() int {
	if runtime.GOOS == "linux" || runtime.GOOS == "windows" {
		return 65507
	}
	return 9000
}

// mixture returns n or some more datagrams as nobody sends them: long and short
// runs of one size, to one or several peers, with empty and huge ones between.
func mixture(rng *rand.Rand, n int, to ...netip.AddrPort) []Datagram {
	var batch []Datagram
	add := func(size int, to netip.AddrPort) {
		batch = append(batch, Datagram{Buf: contents(rng, size), Addr: to, Cut: size == largest()}) // which no interface takes over IPv6
	}
	sizes := []int{1, 24, 500, 1400, 1472}
	for len(batch) < n {
		peer := to[rng.IntN(len(to))]
		switch rng.IntN(8) {
		case 0:
			add(0, peer)
		case 1:
			add(9000, peer)
		case 2:
			add(largest(), peer)
		case 3: // to all in turn
			for i := range 12 {
				add(1400, to[i%len(to)])
			}
		default:
			size := sizes[rng.IntN(len(sizes))]
			for range 1 + rng.IntN(90) {
				add(size, peer)
			}
			add(rng.IntN(size+1), peer)
		}
	}
	return batch
}

func contents(rng *rand.Rand, size int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], rng.Uint64())
	b := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(b) // cannot fail
	return b
}

// received returns what the peer at to has to receive of a batch.
func received(batch []Datagram, to, from netip.AddrPort) []packet {
	var packets []packet
	for _, d := range batch {
		if d.Addr == to {
			packets = append(packets, packet{string(d.Buf), from})
		}
	}
	return packets
}

// requirePackets compares without printing megabytes.
func requirePackets(t *testing.T, want, got []packet) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i].from, got[i].from, "address of datagram %d", i)
		require.Equal(t, len(want[i].data), len(got[i].data), "size of datagram %d", i)
		require.True(t, want[i].data == got[i].data, "contents of datagram %d", i)
	}
	require.Len(t, got, len(want))
}
