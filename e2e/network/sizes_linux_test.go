package network

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// takes sets how large packets the link to the server takes, in bytes.
func (p *plan) takes(t *testing.T, mtu int) {
	t.Helper()
	p.router.Must(t, fmt.Sprintf("ip link set rs mtu %d", mtu))
	p.server.Must(t, fmt.Sprintf("ip link set s mtu %d", mtu))
}

// filterICMP has the router say nothing.
func (p *plan) filterICMP(t *testing.T) {
	t.Helper()
	p.router.Try(t, `
		nft add table inet quiet
		nft add chain inet quiet out { type filter hook output priority 0 ; }
		nft add rule inet quiet out ip protocol icmp drop
		nft add rule inet quiet out icmpv6 type packet-too-big drop`)
}

// sniffer is what the router has seen of UDP.
type sniffer struct {
	whole, divisible, fragments atomic.Int64 // packets: with DF, without, and those that are fragments
	largest                     testenv.Peak // bytes that have left to the server
}

// sniff looks at all packets of the router until the test ends.
func (p *plan) sniff(t *testing.T) *sniffer {
	t.Helper()
	s, fd := new(sniffer), -1
	require.NoError(t, p.router.Do(func() (err error) {
		all := uint16(unix.ETH_P_ALL)
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
		return err
	}))
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	var done atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		b := make([]byte, 1<<16)
		for !done.Load() {
			if size, from, err := unix.Recvfrom(fd, b, 0); err == nil {
				s.see(b[:size], from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING)
			}
		}
	})
	t.Cleanup(func() {
		done.Store(true)
		reader.Wait()
		_ = unix.Close(fd)
	})
	return s
}

// see counts a packet.
func (s *sniffer) see(b []byte, leaves bool) {
	const ipv4Header, ipv6Header, fragmentHeader = 20, 40, 44
	switch {
	case len(b) >= ipv4Header && b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP:
		switch flags := binary.BigEndian.Uint16(b[6:]); {
		case flags&0x3fff != 0: // MF, or an offset
			s.fragments.Add(1)
		case flags&0x4000 != 0:
			s.whole.Add(1)
		default:
			s.divisible.Add(1)
		}
	case len(b) >= ipv6Header && b[0]>>4 == 6 && b[6] == fragmentHeader:
		s.fragments.Add(1)
	case len(b) >= ipv6Header && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		s.whole.Add(1)
	default:
		return
	}
	if leaves {
		s.largest.Saw(int64(len(b)))
	}
}

// requireWhole fails the test if anything was, or could be, fragmented.
func (s *sniffer) requireWhole(t *testing.T) {
	t.Helper()
	require.Positive(t, s.whole.Load())
	require.Zero(t, s.fragments.Load(), "fragments")
	require.Zero(t, s.divisible.Load(), "packets without DF")
}

// open opens a socket on the host.
func (h *host) open(t *testing.T, address string) (pc *net.UDPConn) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		addr, err := net.ResolveUDPAddr("udp", address)
		if err == nil {
			pc, err = net.ListenUDP("udp", addr)
		}
		return err
	}))
	t.Cleanup(func() { _ = pc.Close() })
	require.NoError(t, pc.SetReadBuffer(4<<20))
	return pc
}

// connect opens a session from the client to the server over sockets at these
// addresses.
func (p *plan) connect(t *testing.T, from, to string, config *kcp.Config) (a, b *kcp.Conn) {
	t.Helper()
	pc := p.server.open(t, to)
	server, err := kcp.NewEndpoint(pc, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	l, err := server.Listen()
	require.NoError(t, err)
	client, err := kcp.NewEndpoint(p.client.open(t, from), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	host, _, err := net.SplitHostPort(to)
	require.NoError(t, err)
	if host == "::" { // any address
		host = "10.3.0.2"
	}
	a, err = client.Dial(t.Context(), &net.UDPAddr{IP: net.ParseIP(host), Port: pc.LocalAddr().(*net.UDPAddr).Port}, nil)
	require.NoError(t, err)
	b, err = l.AcceptKCP(t.Context())
	require.NoError(t, err)
	return a, b
}

// bulk starts to send n bytes, and returns a function that compares them at the other
// end.
func bulk(t *testing.T, from, to *kcp.Conn, n int, seed uint64) (end func()) {
	t.Helper()
	want := testenv.Content(seed, n)
	testenv.Send(t, from, want)
	return func() {
		t.Helper()
		testenv.Receive(t, to, want)
	}
}

// transfer sends n bytes, compares them at the other end, and returns the segments
// sent for the first time, and again.
func transfer(t *testing.T, from, to *kcp.Conn, n int, seed uint64) (sent, again uint64) {
	t.Helper()
	before := from.Stats()
	bulk(t, from, to, n, seed)()
	after := from.Stats()
	return after.SegmentsSent - before.SegmentsSent, after.Retransmits() - before.Retransmits()
}

// Bulk over a path that takes less than the session begins with: from the beginning, or
// from the middle of the transfer on; with the router's ICMP messages and without; as
// the client, whose interface takes more, and as the server, whose interface refuses.
// The size is found, nothing is fragmented, and nothing could be. TestPathBelowTheBase
// counts what is sent again, in virtual time.
func TestBulkOverANarrowPath(t *testing.T) {
	for _, test := range []struct {
		name, from, to string
		mtu, most      int // of the path, and of the UDP payload
		mapped         bool
	}{
		{"IPv4", "10.1.0.2:0", "10.3.0.2:0", 1280, 1252, false},
		{"IPv6", "[fd01::2]:0", "[fd03::2]:0", 1280, 1232, false},
		{"IPv4-mapped", "[::]:0", "[::]:0", 1280, 1252, true},
	} {
		for _, icmp := range []bool{false, true} {
			for _, gso := range []string{"0", "1"} {
				for _, later := range []bool{false, true} {
					name := fmt.Sprintf("%s, ICMP %v, GSO off %s, later %v", test.name, icmp, gso, later)
					t.Run(name, func(t *testing.T) {
						if !testenv.InFull() && (icmp != test.mapped || gso == "1" || later == test.mapped || test.name == "IPv6") {
							t.Skip("takes seconds; KCP_LONG=1 has it")
						}
						t.Setenv("KCP_DISABLE_GSO", gso)
						p := newPlan(t, client(t))
						if !icmp {
							p.filterICMP(t)
						}
						s := p.sniff(t)
						if !later {
							p.takes(t, test.mtu)
						}
						to := test.to
						a, b := p.connect(t, test.from, to, nil)
						for i, way := range [][2]*kcp.Conn{{a, b}, {b, a}} {
							if later && i == 0 {
								p.takes(t, 1500)
								transfer(t, way[0], way[1], 4<<20, 1)
								require.Greater(t, way[0].Stats().PathMTU.MTU, test.most)
								wrote := bulk(t, way[0], way[1], 8<<20, 2)
								p.takes(t, test.mtu)
								wrote()
							}
							found := func() bool {
								mtu := way[0].Stats().PathMTU.MTU
								return mtu > 1200 && mtu <= test.most
							}
							for round := uint64(3); !found(); round++ {
								transfer(t, way[0], way[1], 2<<20, round)
							}
							sent, again := transfer(t, way[0], way[1], 2<<20, 40)
							t.Logf("%+v: %d segments, %d again", way[0].Stats().PathMTU, sent, again)
						}
						s.requireWhole(t)
						require.LessOrEqual(t, a.Stats().PathMTU.BlackHoles, uint64(1))
					})
				}
			}
		}
	}
}

// Sessions that the package opens the sockets of, connected ones among them, over an
// interface that takes little. ICMP messages of the path end nothing, and are no error.
func TestDialOverANarrowPath(t *testing.T) {
	for _, mtu := range []int{1280, 1000} {
		for _, shards := range []int{1, 2} {
			if !testenv.InFull() && (mtu == 1000) == (shards == 1) {
				continue
			}
			t.Run(fmt.Sprintf("%d, %d shards", mtu, shards), func(t *testing.T) {
				p := newPlan(t, client(t))
				p.takes(t, mtu)
				config := &kcp.Config{TLS: testenv.TLS(), Shards: shards}
				var l *kcp.Listener
				require.NoError(t, p.server.Do(func() (err error) {
					l, err = kcp.Listen("udp", "10.3.0.2:0", config)
					return err
				}))
				t.Cleanup(func() { _ = l.Close() })
				a, err := kcp.Dial("udp", l.Addr().String(), config)
				require.NoError(t, err)
				t.Cleanup(func() { _ = a.Abort(0, "") })
				b := ends.Accepted(t, l)
				found := func(c *kcp.Conn) bool { return c.Stats().PathMTU.MTU <= max(mtu-28, 1200) }
				for i := uint64(0); !(found(a) && found(b)); i++ {
					transfer(t, a, b, 2<<20, i)
					transfer(t, b, a, 2<<20, i)
				}
				transfer(t, a, b, 2<<20, 100)
				transfer(t, b, a, 2<<20, 101)
				require.Zero(t, l.Endpoint().Stats().WriteErrors)
				t.Logf("%+v, %+v", a.Stats().PathMTU, b.Stats().PathMTU)
			})
		}
	}
}

// Datagrams of the size that MaxDatagramSize says arrive, as the client, for which the
// router drops larger ones without a word, and as the server, whose interface refuses them.
// The path takes less from the beginning, and less again later.
func TestDatagramsOverANarrowPath(t *testing.T) {
	const headers, own = 28, 12
	p := newPlan(t, client(t))
	p.filterICMP(t)
	s := p.sniff(t)
	p.takes(t, 1420)
	a, b := p.connect(t, "10.1.0.2:0", "10.3.0.2:0", nil)
	for _, mtu := range []int{1420, 1280, 900} {
		if !testenv.InFull() && mtu < 1200 {
			continue // TestPathBelowTheBase has it in virtual time
		}
		p.takes(t, mtu)
		for _, way := range [][2]*kcp.Conn{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			arrived := make(chan []byte, 1)
			compat.HandleDatagrams(to, func(b []byte) {
				select {
				case arrived <- bytes.Clone(b):
				default:
				}
			})
			echoed := func(number byte) bool {
				want := bytes.Repeat([]byte{number}, from.MaxDatagramSize())
				_ = from.SendDatagram(want) // it may have become too large
				select {
				case got := <-arrived:
					return bytes.Equal(want, got)
				case <-time.After(100 * time.Millisecond):
					return false
				}
			}
			fits := func() bool {
				size := from.MaxDatagramSize() + headers + own
				return size <= mtu && size > min(mtu, 1200)-60 && from.Stats().PathMTU.MTU <= mtu-headers
			}
			number := byte(0)
			for in := 0; in < 20; number++ { // in a row: the size has been found
				if in++; !echoed(number) || !fits() {
					in = 0
				}
			}
			t.Logf("%d: %d bytes, %+v, the %dth", mtu, from.MaxDatagramSize(), from.Stats().PathMTU, number)
		}
	}
	s.requireWhole(t)
}
