package sizes

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// host is a thread with a network of its own.
type host struct {
	path string // of its namespace, in /proc
	jobs chan func()
}

// newHost makes a host, or skips the test without the right to.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{jobs: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		h.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", unix.Getpid(), unix.Gettid())
		made <- unix.Unshare(unix.CLONE_NEWNET)
		for job := range h.jobs {
			job()
		}
	}()
	err := <-made
	t.Cleanup(func() { close(h.jobs) })
	if err != nil {
		t.Skipf("needs the right to make a network namespace: %v", err)
	}
	return h
}

// do runs f on the host. f must not end the test.
func (h *host) do(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	h.jobs <- func() { done <- f() }
	require.NoError(t, <-done)
}

// run runs programs on the host, one a line. If one fails, the test is skipped: the
// system does not have what it is to be tested with.
func (h *host) run(t *testing.T, lines string) {
	t.Helper()
	var failed error
	h.do(t, func() error {
		for line := range strings.Lines(lines) {
			args := strings.Fields(line)
			if len(args) == 0 {
				continue
			}
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				failed = fmt.Errorf("%s: %w: %s", line, err, out)
				break
			}
		}
		return nil
	})
	if failed != nil {
		t.Skip(failed)
	}
}

// narrow is a client, a router and a server. The link from the router to the server
// takes less than that from the client to the router.
type narrow struct{ client, router, server *host }

// newNarrow makes a path of 1500 bytes. The client is 10.1.0.2 and fd01::2, the server
// 10.2.0.2 and fd02::2.
func newNarrow(t *testing.T) narrow {
	t.Helper()
	n := narrow{newHost(t), newHost(t), newHost(t)}
	n.router.run(t, fmt.Sprintf(`
		ip link set lo up
		ip link add c0 type veth peer name v0 netns %s
		ip link add s0 type veth peer name v0 netns %s
		ip link set c0 addrgenmode none
		ip link set s0 addrgenmode none
		ip link set c0 up
		ip link set s0 up
		ip addr add 10.1.0.1/24 dev c0
		ip addr add 10.2.0.1/24 dev s0
		ip addr add fd01::1/64 dev c0 nodad
		ip addr add fd02::1/64 dev s0 nodad
		sysctl -qw net.ipv4.ip_forward=1
		sysctl -qw net.ipv6.conf.all.forwarding=1`, n.client.path, n.server.path))
	for i, h := range []*host{n.client, n.server} {
		h.run(t, fmt.Sprintf(`
			ip link set lo up
			ip link set v0 addrgenmode none
			ip link set v0 up
			ip addr add 10.%[1]d.0.2/24 dev v0
			ip addr add fd0%[1]d::2/64 dev v0 nodad
			ip route add default via 10.%[1]d.0.1
			ip route add default via fd0%[1]d::1`, i+1))
	}
	return n
}

// takes sets how large packets the link to the server takes, in bytes.
func (n narrow) takes(t *testing.T, mtu int) {
	t.Helper()
	n.router.run(t, fmt.Sprintf("ip link set s0 mtu %d", mtu))
	n.server.run(t, fmt.Sprintf("ip link set v0 mtu %d", mtu))
}

// filterICMP has the router say nothing.
func (n narrow) filterICMP(t *testing.T) {
	t.Helper()
	n.router.run(t, `
		nft add table inet quiet
		nft add chain inet quiet out { type filter hook output priority 0 ; }
		nft add rule inet quiet out ip protocol icmp drop
		nft add rule inet quiet out icmpv6 type packet-too-big drop`)
}

// sniffer is what the router has seen of UDP.
type sniffer struct {
	whole, divisible, fragments atomic.Int64 // packets: with DF, without, and those that are fragments
	largest                     atomic.Int64 // bytes that have left to the server
}

// sniff looks at all packets of the router until the test ends.
func (n narrow) sniff(t *testing.T) *sniffer {
	t.Helper()
	s, fd := new(sniffer), -1
	n.router.do(t, func() (err error) {
		all := uint16(unix.ETH_P_ALL)
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
		return err
	})
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
	if leaves && int64(len(b)) > s.largest.Load() {
		s.largest.Store(int64(len(b)))
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
	h.do(t, func() error {
		addr, err := net.ResolveUDPAddr("udp", address)
		if err == nil {
			pc, err = net.ListenUDP("udp", addr)
		}
		return err
	})
	t.Cleanup(func() { _ = pc.Close() })
	require.NoError(t, pc.SetReadBuffer(4<<20))
	return pc
}

// connect opens a session from the client to the server over sockets at these
// addresses.
func (n narrow) connect(t *testing.T, from, to string, config *kcp.Config) (a, b *kcp.Conn) {
	t.Helper()
	pc := n.server.open(t, to)
	server, err := kcp.NewEndpoint(pc, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	l, err := server.Listen()
	require.NoError(t, err)
	client, err := kcp.NewEndpoint(n.client.open(t, from), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	host, _, err := net.SplitHostPort(to)
	require.NoError(t, err)
	if host == "" { // of any address
		host = "10.2.0.2"
	}
	a, err = client.Dial(ctx, &net.UDPAddr{IP: net.ParseIP(host), Port: pc.LocalAddr().(*net.UDPAddr).Port})
	require.NoError(t, err)
	b, err = l.AcceptKCP(ctx)
	require.NoError(t, err)
	return a, b
}

// transfer sends n bytes, compares them at the other end, and returns the segments
// sent for the first time, and again.
func transfer(t *testing.T, from, to *kcp.Conn, n int, seed uint64) (sent, again uint64) {
	t.Helper()
	before := from.Stats()
	want := testenv.Content(seed, n)
	wrote := make(chan error, 1)
	go func() {
		_, err := from.Write(want)
		wrote <- err
	}()
	require.NoError(t, to.SetReadDeadline(time.Now().Add(2*time.Minute)))
	got, buf := make([]byte, 0, n), make([]byte, 1<<16)
	for len(got) < n {
		k, err := to.Read(buf)
		require.NoError(t, err, "after %d bytes, %+v", len(got), from.Stats().PathMTU)
		got = append(got, buf[:k]...)
	}
	require.NoError(t, <-wrote)
	require.True(t, bytes.Equal(want, got))
	after := from.Stats()
	return after.SegmentsSent - before.SegmentsSent, after.Retransmits() - before.Retransmits()
}

func TestFigures(t *testing.T) {
	for _, icmp := range []bool{false, true} {
		for _, dir := range []string{"up", "down"} {
			t.Run(fmt.Sprint(icmp, dir), func(t *testing.T) {
				n := newNarrow(t)
				n.router.run(t, "true")
				n.router.run(t, "tc qdisc add dev s0 root tbf rate 16mbit burst 16kb latency 100ms")
				n.takes(t, 1280)
				if !icmp {
					n.filterICMP(t)
				}
				s := n.sniff(t)
				a, b := n.connect(t, "10.1.0.2:0", "10.2.0.2:0", nil)
				if dir == "down" {
					a, b = b, a
				}
				for i := range 6 {
					start := time.Now()
					sent, again := transfer(t, a, b, 4<<20, uint64(i))
					st := a.Stats()
					t.Logf("%v sent %d again %d mtu %+v whole %d div %d frag %d rate %.1f MB/s", time.Since(start), sent, again, st.PathMTU, s.whole.Load(), s.divisible.Load(), s.fragments.Load(), 4/time.Since(start).Seconds())
				}
			})
		}
	}
}
