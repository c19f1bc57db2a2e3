package e2e

import (
	"bufio"
	"context"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// A server that listens on all addresses answers from the one that was asked. Clients
// with connected sockets, as those of Dial are, get nothing from another.

// host is a server's host, and how clients ask it.
type host struct {
	name            string
	network, listen string
	asked           []string                   // addresses of the host
	here, there     func(f func() error) error // open sockets at the server, and at clients
}

func at(f func() error) error { return f() }

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
	hosts = append(hosts, host{"IPv4", "udp4", "0.0.0.0:0", []string{"127.0.0.1", second}, at, at})
	if pc, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		_ = pc.Close()
		hosts = append(hosts, host{"both", "udp", ":0", []string{"::1", "127.0.0.1", second}, at, at})
	}
	return hosts
}

// servesSources accepts sessions, tells each peer where its session is, and echoes.
func servesSources(t *testing.T, e *kcp.Endpoint) *kcp.Listener {
	l, err := e.Listen()
	require.NoError(t, err)
	go echoSources(l)
	return l
}

func echoSources(l *kcp.Listener) {
	for {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			line, err := r.ReadString('\n')
			if err == io.EOF {
				return // closed without a question
			}
			if err != nil || line != "where\n" {
				_ = c.Abort()
				return
			}
			if _, err := io.WriteString(c, c.LocalAddr().String()+"\n"); err == nil {
				_, _ = io.Copy(c, r)
			}
		}()
	}
}

// asks dials a server at an address, which must answer, and name that address.
func (h *host) asks(t *testing.T, address string, config *kcp.Config) {
	t.Helper()
	var c *kcp.Conn
	require.NoError(t, h.there(func() (err error) {
		c, err = kcp.Dial("udp", address, config)
		return err
	}))
	defer c.Abort()
	_, err := io.WriteString(c, "where\n")
	require.NoError(t, err)
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, address+"\n", line)
	want := content(1, 100_000) // enough for merged packets
	go func() { _, _ = c.Write(want) }()
	got := make([]byte, len(want))
	_, err = io.ReadFull(r, got)
	require.NoError(t, err)
	require.True(t, string(want) == string(got))
}

// stray is a connected socket that sends packets of no session.
func (h *host) stray(t *testing.T, address string) net.Conn {
	t.Helper()
	var c net.Conn
	require.NoError(t, h.there(func() (err error) {
		c, err = net.Dial("udp", address)
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answered sends a packet, again as long as it is lost, and waits for an answer that is
// one. Others may be late answers to what was sent before.
func answered(t *testing.T, c net.Conn, packet []byte, isOne func(answer []byte) bool) {
	t.Helper()
	b := make([]byte, 2000)
	await.True(t, func() bool {
		_, err := c.Write(packet)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		n, err := c.Read(b)
		return err == nil && isOne(b[:n])
	})
}

// sourceConfigs are the configurations of both ends.
func sourceConfigs(t *testing.T) map[string]*kcp.Config {
	return map[string]*kcp.Config{
		"plain":         {},
		"plain, cookie": {AddressValidation: kcp.ValidateAlways},
		"AES-GCM":       {Cipher: testAEAD(t)},
		"TLS":           {TLS: testTLS()},
		"TLS, cookie":   {TLS: testTLS(), AddressValidation: kcp.ValidateAlways},
	}
}

// opened returns an endpoint on all addresses of the host, by Listen with one socket or
// two, or on a socket of the caller's.
func (h *host) opened(t *testing.T, how string, config kcp.Config) (e *kcp.Endpoint, l *kcp.Listener) {
	t.Helper()
	if how == "Shards" {
		config.Shards = 2
	}
	require.NoError(t, h.here(func() error {
		if how != "NewEndpoint" {
			var err error
			if l, err = kcp.Listen(h.network, h.listen, &config); err == nil {
				e = l.Endpoint()
			}
			return err
		}
		pc, err := net.ListenPacket(h.network, h.listen)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = pc.Close() })
		e, err = kcp.NewEndpoint(pc, &config)
		return err
	}))
	t.Cleanup(func() { _ = e.Close() })
	if l == nil {
		return e, servesSources(t, e)
	}
	go echoSources(l)
	return e, l
}

// testSources asks a server at each address, for sessions and for answers outside any.
func (h *host) testSources(t *testing.T, how string) {
	for name, config := range sourceConfigs(t) {
		t.Run(name, func(t *testing.T) {
			e, l := h.opened(t, how, *config)
			port := l.Addr().(*net.UDPAddr).Port
			for _, addr := range h.asked {
				address := joinPort(addr, port)
				h.asks(t, address, config)
				h.askStrays(t, e, address, config)
			}
			if require.NoError(t, l.Close()); how != "NewEndpoint" {
				return // the socket is closed, too
			}
			for _, addr := range h.asked {
				err := h.there(func() error {
					_, err := kcp.Dial("udp", joinPort(addr, port), config)
					return err
				})
				require.ErrorIs(t, err, kcp.ErrRefused, addr)
			}
		})
	}
}

// askStrays sends packets of no session to an address, which must be answered from there.
func (h *host) askStrays(t *testing.T, e *kcp.Endpoint, address string, config *kcp.Config) {
	t.Helper()
	switch {
	case config.TLS != nil:
		unknown := content(9, 200)
		unknown[4] = 0xa2                                                            // under the keys of a session (WIRE.md §4)
		answered(t, h.stray(t, address), unknown, func([]byte) bool { return true }) // stateless reset
		err := h.there(func() error {
			_, err := kcp.Dial("udp", address, nil)
			return err
		})
		require.ErrorIs(t, err, kcp.ErrTLSRequired)
	case config.Cipher == nil:
		ping := packetOf(77, bytesOf(signal{sigPing, 1, 2}))
		answered(t, h.stray(t, address), ping, func(p []byte) bool { // others are for who had the port before
			return decodeHeader(p).conv == 77 && decodeHeader(p).frg == uint8(sigReset)
		})
	}
}

// joinPort returns "host:port" as net.UDPAddr.String does.
func joinPort(addr string, port int) string {
	ip, _ := net.ResolveIPAddr("ip", addr)
	return (&net.UDPAddr{IP: ip.IP, Zone: ip.Zone, Port: port}).String()
}

// withFeatures runs f with all means to be fast, and without some.
func withFeatures(t *testing.T, f func(t *testing.T)) {
	for _, off := range []string{"", "KCP_DISABLE_GSO", "KCP_DISABLE_MMSG"} {
		t.Run("without "+off, func(t *testing.T) {
			if off != "" {
				t.Setenv(off, "1")
			}
			f(t)
		})
	}
}

func TestAnswersComeFromAskedAddress(t *testing.T) {
	withFeatures(t, func(t *testing.T) {
		for _, h := range loopbacks(t) {
			for _, how := range []string{"Listen", "Shards", "NewEndpoint"} {
				t.Run(h.name+" "+how, func(t *testing.T) { h.testSources(t, how) })
			}
		}
	})
}

// What is remembered of an ended session answers from the address that was asked, too.
func TestTimeWaitAnswersFromAskedAddress(t *testing.T) {
	for _, h := range loopbacks(t) {
		server, l := h.opened(t, "Listen", kcp.Config{})
		for _, addr := range h.asked {
			pc := h.stray(t, joinPort(addr, l.Addr().(*net.UDPAddr).Port)).(*net.UDPConn)
			e, err := kcp.NewEndpoint(pc, nil)
			require.NoError(t, err)
			c, err := e.Dial(t.Context(), pc.RemoteAddr())
			require.NoError(t, err)
			require.NoError(t, c.Close())
			await.True(t, func() bool { return server.Stats().Sessions == 0 })
			require.NoError(t, e.Close())
			answered(t, pc, packetOf(c.Conv(), bytesOf(signal{sigPing, 1, 2})), func(p []byte) bool {
				return decodeHeader(p).conv == c.Conv() && decodeHeader(p).frg == uint8(sigPing|sigAnswer)
			})
		}
	}
}

// A session that is dialled, or whose socket has an address, has that of its socket.
func TestLocalAddrIsTheSockets(t *testing.T) {
	l, err := kcp.Listen("udp4", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	pc, err := net.ListenPacket("udp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer pc.Close()
	e, err := kcp.NewEndpoint(pc, nil)
	require.NoError(t, err)
	defer e.Close()
	c, err := e.Dial(t.Context(), l.Addr())
	require.NoError(t, err)
	require.Equal(t, pc.LocalAddr(), c.LocalAddr())
	accepted, err := l.AcceptKCP(t.Context())
	require.NoError(t, err)
	require.Equal(t, l.Addr(), accepted.LocalAddr())
}
