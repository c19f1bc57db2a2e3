package tunnel

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

// socksDial asks for target, and returns the connection and the reply.
func socksDial(t *testing.T, proxy string, command byte, target string) (*net.TCPConn, statute.Reply) {
	t.Helper()
	conn := dial(t, proxy)
	_, err := conn.Write([]byte{5, 1, 0})
	require.NoError(t, err)
	method := make([]byte, 2)
	_, err = io.ReadFull(conn, method)
	require.NoError(t, err)
	require.Equal(t, []byte{5, 0}, method)
	to, err := statute.ParseAddrSpec(target)
	require.NoError(t, err)
	_, err = conn.Write(statute.Request{Version: 5, Command: command, DstAddr: to}.Bytes())
	require.NoError(t, err)
	reply, err := statute.ParseReply(conn)
	require.NoError(t, err)
	return conn, reply
}

func TestSocksConnect(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	_, port, _ := net.SplitHostPort(at)
	s := startServer(t, `{"me:secret": ["^socks$"]}`, nil)
	c := startClient(t, clientConfig(t, s, "0:socks"))
	proxy := c.address(t)
	for _, to := range []string{at, "localhost:" + port} {
		conn, reply := socksDial(t, proxy, statute.CommandConnect, to)
		require.EqualValues(t, statute.RepSuccess, reply.Response, to)
		exchange(t, conn, 300_000)
	}
	_, reply := socksDial(t, proxy, statute.CommandConnect, "no-such-name.invalid:80")
	assert.EqualValues(t, statute.RepHostUnreachable, reply.Response)
	_, reply = socksDial(t, proxy, statute.CommandConnect, "127.0.0.1:1")
	assert.EqualValues(t, statute.RepConnectionRefused, reply.Response)
	_, reply = socksDial(t, proxy, statute.CommandBind, "127.0.0.1:1")
	assert.EqualValues(t, statute.RepCommandNotSupported, reply.Response)
}

// By SOCKS5 a user reaches what is allowed by itself, and nothing else.
func TestSocksRules(t *testing.T) {
	t.Parallel()
	allowed, forbidden := testenv.Target(t, testenv.Echo), testenv.Target(t, testenv.Echo)
	s := startServer(t, `{"me:secret": ["^`+strings.ReplaceAll(allowed, ".", `\\.`)+`$"]}`, nil)
	c := startClient(t, clientConfig(t, s, "0:socks"))
	proxy := c.address(t)
	conn, reply := socksDial(t, proxy, statute.CommandConnect, allowed)
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	exchange(t, conn, 1000)
	_, reply = socksDial(t, proxy, statute.CommandConnect, forbidden)
	require.EqualValues(t, statute.RepRuleFailure, reply.Response)
}

func TestSocksAssociate(t *testing.T) {
	t.Parallel()
	first, second := udpTarget(t), udpTarget(t)
	_, port, _ := net.SplitHostPort(second)
	s := startServer(t, `{"me:secret": ["^socks$"]}`, nil)
	c := startClient(t, clientConfig(t, s, "0:socks"))
	proxy := c.address(t)
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	control, reply := socksDial(t, proxy, statute.CommandAssociate, "0.0.0.0:0")
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	pc := dialUDP(t, reply.BndAddr.String())
	for _, to := range []string{first, "localhost:" + port} {
		testenv.ExchangePackets(t, &socksPackets{Conn: pc, target: to}, 10, 1200, 20_000)
	}
	_, err := pc.Write([]byte("no SOCKS5"))
	require.NoError(t, err)
	testenv.ExchangePackets(t, &socksPackets{Conn: pc, target: first}, 5)
	require.NoError(t, control.Close())
	waitFor(t, func() bool { return c.Status().Connections == 0 && s.Status().Connections == 0 })
}

// socksPackets packs what is written for a target.
type socksPackets struct {
	net.Conn
	target string
}

func (s *socksPackets) Write(b []byte) (int, error) {
	d, err := statute.NewDatagram(s.target, b)
	if err != nil {
		return 0, err
	}
	_, err = s.Conn.Write(d.Bytes())
	return len(b), err
}

func (s *socksPackets) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil {
		return 0, err
	}
	d, err := statute.ParseDatagram(b[:n])
	if err != nil || d.DstAddr.String() != s.target {
		return 0, err
	}
	return copy(b, d.Data), nil
}

// R:socks reaches what the client's machine does, from the server.
func TestReverseSocks(t *testing.T) {
	t.Parallel()
	s := startServer(t, `{"me:secret": ["^R:127\\.0\\.0\\.1:0$"]}`, nil)
	c := startClient(t, clientConfig(t, s, "R:0:socks"))
	proxy := c.address(t)
	conn, reply := socksDial(t, proxy, statute.CommandConnect, testenv.Target(t, testenv.Echo))
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	exchange(t, conn, 100_000)
	_, reply = socksDial(t, proxy, statute.CommandAssociate, "0.0.0.0:0")
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	pc := dialUDP(t, reply.BndAddr.String())
	testenv.ExchangePackets(t, &socksPackets{Conn: pc, target: udpTarget(t)}, 10, 20_000)
}

// A dial ends with the connection that has asked for it, so that who comes and goes
// leaves nothing behind.
func TestSocksDialEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	var dials hanging
	s := startServer(t, everything, func(c *ServerConfig) { c.connect, c.DialTimeout = dials.connect, time.Hour })
	c := startClient(t, clientConfig(t, s, "0:socks"))
	proxy := c.address(t)
	for range 3 {
		var conns []*net.TCPConn
		for range 5 {
			conn := dial(t, proxy)
			_, err := conn.Write([]byte("\x05\x01\x00\x05\x01\x00\x03\x04host\x00\x50"))
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		dials.waitFor(t, len(conns))
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		dials.waitFor(t, 0)
	}
}
