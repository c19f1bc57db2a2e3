package sockets

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// A server that listens on all addresses answers from the one that was asked. Clients
// with connected sockets, as those of Dial are, get nothing from another.

// host is what a server listens at, and how clients ask it.
type host struct {
	name            string
	network, listen string
	asked           []string // addresses of the host
}

// loopbacks are hosts on the loopback interface. Only Linux has all of 127.0.0.0/8
// there.
func loopbacks(t *testing.T) (hosts []host) {
	second := "127.0.0.2"
	switch runtime.GOOS {
	case "linux":
	case "darwin", "freebsd":
		second = "127.0.0.1"
	default:
		t.Skip("the system does not tell")
	}
	hosts = append(hosts, host{"IPv4", "udp4", "0.0.0.0:0", []string{"127.0.0.1", second}})
	if pc, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		_ = pc.Close()
		hosts = append(hosts, host{"both", "udp", ":0", []string{"::1", "127.0.0.1", second}})
	}
	return hosts
}

// tellsSource tells each peer where its session is, and echoes.
func tellsSource(c *kcp.Conn) {
	defer c.Close()
	if _, err := io.WriteString(c, c.LocalAddr().String()+"\n"); err == nil {
		_, _ = io.Copy(c, c)
	}
}

// asks dials a server at an address, which must answer, and name that address.
func asks(t *testing.T, address string, config *kcp.Config) {
	t.Helper()
	c, err := kcp.Dial("udp", address, config)
	require.NoError(t, err)
	defer c.Abort(0, "")
	want := testenv.Content(1, 100_000) // enough for merged packets
	testenv.Send(t, c, want)
	testenv.Receive(t, c, append([]byte(address+"\n"), want...))
}

// answered sends a packet of no session from a connected socket, again as long as it is
// lost, and waits for an answer that is one. Others may be late answers to what was sent
// before.
func answered(t *testing.T, c net.Conn, packet []byte, isOne func(answer []byte) bool) {
	t.Helper()
	b := make([]byte, 2000)
	testenv.Await(t, func() bool {
		_, err := c.Write(packet)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		n, err := c.Read(b)
		return err == nil && isOne(b[:n])
	})
}

// stray is a connected socket.
func stray(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ping is a PING of a conversation, and answers reports whether a packet is a signal of
// that kind of it.
func ping(conv uint32) []byte {
	return testenv.PacketOf(conv, testenv.Segment(83, 6, 2, 1, 0, ""))
}

func answers(conv uint32, kind byte) func(p []byte) bool {
	return func(p []byte) bool { return binary.LittleEndian.Uint32(p) == conv && p[5] == kind }
}

// opened returns a listener on all addresses of the host, with one socket or two, or on a
// socket of the caller's.
func (h *host) opened(t *testing.T, how string, config kcp.Config) (l *kcp.Listener) {
	t.Helper()
	var err error
	switch how {
	case "NewEndpoint":
		pc, err := net.ListenPacket(h.network, h.listen)
		require.NoError(t, err)
		t.Cleanup(func() { _ = pc.Close() })
		e, err := kcp.NewEndpoint(pc, &config)
		require.NoError(t, err)
		l, err = e.Listen()
		require.NoError(t, err)
	case "Shards":
		config.Shards = 2
		fallthrough
	default:
		l, err = kcp.Listen(h.network, h.listen, &config)
		require.NoError(t, err)
	}
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	go serve(l, tellsSource)
	return l
}

// testSources asks a server at each address, for sessions and for answers outside any.
func (h *host) testSources(t *testing.T, how string, config *kcp.Config) {
	l := h.opened(t, how, *config)
	port := l.Addr().(*net.UDPAddr).Port
	for _, addr := range h.asked {
		address := joinPort(addr, port)
		asks(t, address, config)
		switch {
		case config.TLS != nil:
			unknown := testenv.Content(9, 200)
			unknown[4] = 0xa2 // under the keys of a session (WIRE.md §4): a stateless reset comes
			answered(t, stray(t, address), unknown, func([]byte) bool { return true })
			_, err := kcp.Dial("udp", address, nil)
			require.ErrorIs(t, err, kcp.ErrTLSRequired)
		case config.Cipher == nil: // RESET; others are for who had the port before
			answered(t, stray(t, address), ping(77), answers(77, 8))
		}
	}
	if require.NoError(t, l.Close()); how != "NewEndpoint" {
		return // the socket is closed, too
	}
	for _, addr := range h.asked {
		_, err := kcp.Dial("udp", joinPort(addr, port), config)
		require.ErrorIs(t, err, kcp.ErrRefused, addr)
	}
}

// joinPort returns "host:port" as net.UDPAddr.String does.
func joinPort(addr string, port int) string {
	return (&net.UDPAddr{IP: net.ParseIP(addr), Port: port}).String()
}

func TestAnswersComeFromAskedAddress(t *testing.T) {
	secured := testenv.TLS()
	for _, off := range []string{"KCP_NOTHING", "KCP_DISABLE_GSO", "KCP_DISABLE_MMSG"} {
		t.Setenv(off, "1")
		for _, h := range loopbacks(t) {
			for _, how := range []string{"Listen", "Shards", "NewEndpoint"} {
				for name, config := range map[string]*kcp.Config{
					"plain":       {},
					"cookie":      {AddressValidation: kcp.ValidateAlways},
					"AES-GCM":     {Cipher: testenv.AEAD(t)},
					"TLS":         {TLS: secured},
					"TLS, cookie": {TLS: secured, AddressValidation: kcp.ValidateAlways},
				} {
					t.Run(fmt.Sprint(off, h.name, how, name), func(t *testing.T) { h.testSources(t, how, config) })
				}
			}
		}
	}
}

// What is remembered of an ended session answers from the address that was asked, too.
func TestTimeWaitAnswersFromAskedAddress(t *testing.T) {
	for _, h := range loopbacks(t) {
		l := h.opened(t, "Listen", kcp.Config{})
		for _, addr := range h.asked {
			pc := stray(t, joinPort(addr, l.Addr().(*net.UDPAddr).Port)).(*net.UDPConn)
			e, err := kcp.NewEndpoint(pc, nil)
			require.NoError(t, err)
			c, err := e.Dial(t.Context(), pc.RemoteAddr(), nil)
			require.NoError(t, err)
			require.NoError(t, c.Close())
			testenv.Await(t, func() bool { return l.Endpoint().Stats().Sessions == 0 })
			require.NoError(t, e.Close())
			answered(t, pc, ping(c.Conv()), answers(c.Conv(), 5))
		}
	}
}
