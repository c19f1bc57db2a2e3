package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// Config.Control is called for each socket that Dial and Listen open, and can
// prevent that.
func TestControl(t *testing.T) {
	var calls atomic.Int32
	config := &kcp.Config{Shards: 2, Control: func(network, _ string, c syscall.RawConn) error {
		calls.Add(1)
		if network != "udp4" {
			return errors.New("unexpected network " + network)
		}
		return c.Control(func(uintptr) {})
	}}
	l, err := kcp.Listen("udp4", "127.0.0.1:0", config)
	require.NoError(t, err)
	defer l.Close()
	sockets := calls.Load()
	require.GreaterOrEqual(t, sockets, int32(1))
	c, err := kcp.DialContext(context.Background(), "udp4", l.Addr().String(), config)
	require.NoError(t, err)
	require.Equal(t, sockets+1, calls.Load())
	require.NoError(t, c.Abort())
	refuse := &kcp.Config{Control: func(string, string, syscall.RawConn) error { return os.ErrPermission }}
	_, err = kcp.Dial("udp4", l.Addr().String(), refuse)
	require.ErrorIs(t, err, os.ErrPermission)
	_, err = kcp.Listen("udp4", "127.0.0.1:0", refuse)
	require.ErrorIs(t, err, os.ErrPermission)
}

// Dial returns at once if the socket cannot send to the address.
func TestDialAddress(t *testing.T) {
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer pc.Close()
	e, err := kcp.NewEndpoint(pc, &kcp.Config{DialTimeout: 10 * time.Millisecond, SocketBuffer: 1 << 16})
	require.NoError(t, err)
	defer e.Close()
	for _, tc := range []struct {
		addr net.Addr
		want string
	}{
		{nil, "missing address"},
		{(*net.UDPAddr)(nil), "missing address"},
		{&net.UDPAddr{Port: 9}, "missing address"},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}, "a *net.TCPAddr, not a *net.UDPAddr"},
		{&net.UDPAddr{IP: net.IPv6loopback, Port: 9}, "non-IPv4 address"},
	} {
		_, err := e.Dial(context.Background(), tc.addr)
		var wrong *net.AddrError
		require.ErrorAs(t, err, &wrong, "%v", tc.addr)
		require.Equal(t, tc.want, wrong.Err)
	}
}

// A connected socket dials its peer, and nobody else.
func TestDialConnected(t *testing.T) {
	for _, network := range []string{"udp", "udp4"} {
		l, err := kcp.Listen(network, "127.0.0.1:0", nil)
		require.NoError(t, err)
		other, err := kcp.Listen(network, "127.0.0.1:0", nil)
		require.NoError(t, err)
		pc, err := net.Dial(network, l.Addr().String())
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc.(*net.UDPConn), nil)
		require.NoError(t, err)
		_, err = e.Dial(context.Background(), other.Addr())
		require.ErrorIs(t, err, net.ErrWriteToConnected)
		require.ErrorContains(t, err, other.Addr().String())
		require.Zero(t, l.Stats().Sessions)
		c, err := e.Dial(context.Background(), l.Addr())
		require.NoError(t, err)
		send(t, c, []byte("hello"))
		receive(t, accepted(t, l), []byte("hello"))
		require.NoError(t, e.Close())
		require.NoError(t, pc.Close())
		require.NoError(t, l.Endpoint().Close())
		require.NoError(t, other.Endpoint().Close())
	}
}

// ownAddress requires that dialling addr fails, as it is the endpoint's own.
func ownAddress(t *testing.T, e *kcp.Endpoint, addr net.Addr) {
	t.Helper()
	_, err := e.Dial(context.Background(), addr)
	require.ErrorAs(t, err, new(*net.AddrError))
	require.ErrorContains(t, err, "own address")
	require.ErrorContains(t, err, addr.String())
	require.Zero(t, e.Stats().Sessions)
}

// An endpoint that dials itself knows what it has sent, with a listener and without.
func TestDialOwnAddress(t *testing.T) {
	configs := []kcp.Config{{}, {FEC: kcp.FEC{Data: 2, Parity: 1}}, {Cipher: testCiphers(t, 1)["aes-cfb"]}}
	for seed, cfg := range configs {
		inWorld(t, uint64(seed), clean, func(t *testing.T, w *world) {
			e, _ := w.endpoint(serverAddr, &cfg)
			start := time.Now()
			ownAddress(t, e, e.LocalAddr())
			require.Less(t, time.Since(start), 2*time.Second)
			l, err := e.Listen()
			require.NoError(t, err)
			start = time.Now()
			ownAddress(t, e, e.LocalAddr())
			require.Less(t, time.Since(start), 2*time.Second)
			require.NoError(t, l.SetDeadline(time.Now().Add(time.Second)))
			_, err = l.Accept()
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)

			for _, o := range []kcp.DialOptions{{Quiet: true}, {Quiet: true, Conv: id(9)}} {
				c := w.dialWith(e, serverAddr, o)
				w.say(c, "hello")
				_, err = c.Read(make([]byte, 1))
				require.ErrorContains(t, err, "own address")
			}
		})
	}
}

// Addresses of a socket of the system are known before anything is sent. With TLS and an
// AEAD nothing that comes back counts.
func TestDialOwnSocket(t *testing.T) {
	for _, cfg := range []kcp.Config{{}, *secured(kcp.Config{}), {Cipher: testAEAD(t)}} {
		for _, listen := range []string{"127.0.0.1:0", ":0", "0.0.0.0:0"} {
			l, err := kcp.Listen("udp", listen, &cfg)
			require.NoError(t, err)
			port := l.Addr().(*net.UDPAddr).Port
			for _, ip := range []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4zero} {
				ownAddress(t, l.Endpoint(), &net.UDPAddr{IP: ip, Port: port})
			}
			require.NoError(t, l.Endpoint().Close())
		}
	}
}

// NoAnswerError says what the socket said, and nothing twice.
func TestErrorTexts(t *testing.T) {
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer pc.Close()
	e, err := kcp.NewEndpoint(pc, &kcp.Config{DialTimeout: 10 * time.Millisecond, SocketBuffer: 1 << 16})
	require.NoError(t, err)
	defer e.Close()
	_, err = e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) // no port
	var silent *kcp.NoAnswerError
	require.ErrorAs(t, err, &silent)
	require.Error(t, silent.Socket)
	require.ErrorIs(t, err, silent.Socket)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Equal(t, "kcp: no answer from the peer in 1.23s (host down, backlog full, or keys differ)", (&kcp.NoAnswerError{Waited: 1234567 * time.Microsecond}).Error())
	require.Equal(t, "kcp: no answer from the peer in 1.23ms (host down, backlog full, or keys differ): EOF", (&kcp.NoAnswerError{Waited: 1234567, Socket: io.EOF}).Error())
	require.Equal(t, "kcp: peer lost: nothing received for 40.5s", (&kcp.PeerLostError{Silence: 40500123456}).Error())
	require.Equal(t, "kcp: session reset by the peer", kcp.ErrReset.Error())
	require.ErrorIs(t, kcp.ErrReset, syscall.ECONNRESET)
	require.ErrorIs(t, kcp.ErrRefused, syscall.ECONNREFUSED)
	require.ErrorIs(t, kcp.ErrPeerClosed, syscall.EPIPE)
}

// withNames makes the resolver of Go answer every query for a name with the given
// IPv4 addresses, until the test ends.
func withNames(t *testing.T, addrs ...string) {
	t.Helper()
	before := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = before })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe() // no net.PacketConn: a query has its length in front
		go func() {
			defer server.Close()
			var size [2]byte
			if _, err := io.ReadFull(server, size[:]); err != nil {
				return
			}
			query := make([]byte, binary.BigEndian.Uint16(size[:]))
			var m dnsmessage.Message
			if _, err := io.ReadFull(server, query); err != nil || m.Unpack(query) != nil {
				return
			}
			m.Response, m.Additionals = true, nil
			if len(addrs) == 0 {
				m.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range addrs {
				if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60},
						Body:   &dnsmessage.AResource{A: netip.MustParseAddr(a).As4()},
					})
				}
			}
			answer, err := m.AppendPack(make([]byte, 2))
			if err != nil {
				return
			}
			binary.BigEndian.PutUint16(answer, uint16(len(answer)-2))
			_, _ = server.Write(answer)
		}()
		return client, nil
	}}
}

// Dial tries all addresses of a name: one that nobody listens at, one that says
// nothing, and one with a listener.
func TestDialTriesAllAddresses(t *testing.T) {
	l, err := kcp.Listen("udp4", "127.0.0.4:0", nil)
	if err != nil {
		t.Skip(err) // 127.0.0.1 is the only such address
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	silent, err := net.ListenPacket("udp4", "127.0.0.3:"+port)
	require.NoError(t, err)
	defer silent.Close()
	for _, addrs := range [][]string{{"127.0.0.4"}, {"127.0.0.2", "127.0.0.4"}, {"127.0.0.3", "127.0.0.4"}, {"127.0.0.2", "127.0.0.3", "127.0.0.4"}} {
		withNames(t, addrs...)
		c, err := kcp.Dial("udp", "server.example:"+port, nil)
		require.NoError(t, err, "%v", addrs)
		require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
		require.NoError(t, c.Abort())
		c, err = l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, c.Abort())
	}
	withNames(t, "127.0.0.2", "127.0.0.5")
	_, err = kcp.Dial("udp", "server.example:"+port, nil)
	require.ErrorIs(t, err, kcp.ErrRefused)
	withNames(t)
	_, err = kcp.Dial("udp", "server.example:"+port, nil)
	var failed *net.DNSError
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.IsNotFound, "%v", failed)
	withNames(t, "127.0.0.2", "127.0.0.4")
	c, err := kcp.Dial("udp", "server.example:"+port, &kcp.Config{DialTimeout: -1})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.2:"+port, c.RemoteAddr().String(), "there is no answer to go by")
	require.NoError(t, c.Abort())
}

// A Dial that does not wait leaves its errors to Read and Err.
func TestErrorsAfterADialThatDoesNotWait(t *testing.T) {
	secured := testenv.TLS()
	mistrustful := testenv.TLS()
	mistrustful.RootCAs = x509.NewCertPool()
	for _, tc := range []struct {
		name           string
		client, server *tls.Config
		listens        bool
		want           error // nil: a *HandshakeError
	}{
		{"no listener", nil, nil, false, kcp.ErrRefused},
		{"the server wants TLS", nil, secured, true, kcp.ErrTLSRequired},
		{"the server has no TLS", secured, nil, true, kcp.ErrNoTLS},
		{"the certificate is not trusted", mistrustful, secured, true, nil},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			server, _ := w.endpoint(serverAddr, &kcp.Config{TLS: tc.server})
			if tc.listens {
				_, err := server.Listen()
				require.NoError(t, err)
			}
			e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{TLS: tc.client, DialTimeout: -1})
			c, err := e.Dial(context.Background(), server.LocalAddr())
			require.NoError(t, err, tc.name)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
			_, err = c.Read(make([]byte, 1))
			for _, err := range []error{err, c.Err()} {
				if tc.want != nil {
					require.ErrorIs(t, err, tc.want, tc.name)
				} else {
					require.ErrorAs(t, err, new(*kcp.HandshakeError), tc.name)
				}
			}
		})
	}
}
