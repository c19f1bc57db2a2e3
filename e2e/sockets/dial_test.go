package sockets

import (
	"context"
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
	"github.com/arqnet/kcp/internal/testenv/life/ends"
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
	l := listen(t, config)
	sockets := calls.Load()
	require.GreaterOrEqual(t, sockets, int32(1))
	dial(t, l, config)
	require.Equal(t, sockets+1, calls.Load())
	refuse := &kcp.Config{Control: func(string, string, syscall.RawConn) error { return os.ErrPermission }}
	_, err := kcp.Dial("udp4", l.Addr().String(), refuse)
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
		_, err := e.Dial(context.Background(), tc.addr, nil)
		var wrong *net.AddrError
		require.ErrorAs(t, err, &wrong, "%v", tc.addr)
		require.Equal(t, tc.want, wrong.Err)
	}
}

// A connected socket dials its peer, and nobody else. Sessions have the address of a
// socket that has one.
func TestDialConnected(t *testing.T) {
	for _, network := range []string{"udp", "udp4"} {
		l, other := listen(t, nil), listen(t, nil)
		pc, err := net.Dial(network, l.Addr().String())
		require.NoError(t, err)
		defer pc.Close()
		e, err := kcp.NewEndpoint(pc.(*net.UDPConn), nil)
		require.NoError(t, err)
		defer e.Close()
		_, err = e.Dial(t.Context(), other.Addr(), nil)
		require.ErrorIs(t, err, net.ErrWriteToConnected)
		require.ErrorContains(t, err, other.Addr().String())
		c, err := e.Dial(t.Context(), l.Addr(), nil)
		require.NoError(t, err)
		s := accepted(t, l)
		testenv.BothWays(t, c, s, []byte("hello"), []byte("hello"))
		require.Equal(t, pc.LocalAddr(), c.LocalAddr())
		require.Equal(t, l.Addr(), s.LocalAddr())
	}
}

// Addresses of a socket of the system are known before anything is sent. With TLS and an
// AEAD nothing that comes back counts.
func TestDialOwnSocket(t *testing.T) {
	for _, cfg := range []kcp.Config{{}, {TLS: testenv.TLS()}, {Cipher: testenv.AEAD(t)}} {
		for _, listen := range []string{"127.0.0.1:0", ":0", "0.0.0.0:0"} {
			l, err := kcp.Listen("udp", listen, &cfg)
			require.NoError(t, err)
			port := l.Addr().(*net.UDPAddr).Port
			for _, ip := range []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4zero} {
				ends.OwnAddress(t, l.Endpoint(), &net.UDPAddr{IP: ip, Port: port})
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
	_, err = e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, nil) // no port
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
	for _, addrs := range [][]string{{"127.0.0.4"}, {"127.0.0.2", "127.0.0.4"}, {"127.0.0.2", "127.0.0.3", "127.0.0.4"}} {
		withNames(t, addrs...)
		c, err := kcp.Dial("udp", "server.example:"+port, nil)
		require.NoError(t, err, "%v", addrs)
		require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
		require.NoError(t, c.Abort(0, ""))
		require.NoError(t, accepted(t, l).Abort(0, ""))
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
	require.NoError(t, c.Abort(0, ""))
}

func TestDialErrors(t *testing.T) {
	for _, bad := range [][2]string{{"unix", "127.0.0.1:1"}, {"udp9", "127.0.0.1:1"}, {"", "127.0.0.1:1"}, {"udp", "127.0.0.1:notaport"}} {
		_, err := kcp.Dial(bad[0], bad[1], nil)
		require.Error(t, err)
		_, err = kcp.Listen(bad[0], bad[1], nil)
		require.Error(t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := (&kcp.Dialer{}).DialContext(ctx, "udp", "127.0.0.1:1")
	require.ErrorAs(t, err, new(*net.OpError))
}
