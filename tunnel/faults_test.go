package tunnel

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

func TestReverse(t *testing.T) {
	t.Parallel()
	s := startServer(t, `{"me:secret": ["^R:127\\.0\\.0\\.1:0$"]}`, nil)
	c := startClient(t, clientConfig(t, s, "R:127.0.0.1:0:"+testenv.Target(t, testenv.Echo)))
	at := c.address(t)
	exchange(t, dial(t, at), 1_000_000)
	require.NoError(t, c.stop())
	waitForRefusal(t, at)
}

// waitForRefusal waits until nobody listens at a TCP address.
func waitForRefusal(t *testing.T, address string) {
	t.Helper()
	waitFor(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

// What listens on an address of IPv4 does so there alone, and localhost needs no
// resolver. A target that refuses is in the client's log.
func TestReverseAddresses(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(testenv.Target(t, testenv.Echo))
	require.NoError(t, err)
	_, err = net.Dial("tcp", "127.0.0.1:1")
	var refused *os.SyscallError
	require.ErrorAs(t, err, &refused)
	_, c := connected(t, "R:0:localhost:"+port, "R:0:localhost:1")
	for range 2 {
		at := c.address(t)
		_, p, err := net.SplitHostPort(at)
		require.NoError(t, err)
		if conn, err := net.Dial("tcp", "[::1]:"+p); err == nil {
			conn.Close()
			t.Errorf("%s is reached by IPv6", at)
		}
		b, _ := tryHello(t, "127.0.0.1:"+p)
		if !strings.Contains(string(b), "hello") {
			waitFor(t, func() bool { return strings.Contains(c.log.String(), `level=WARN msg="target failed"`) })
			require.Contains(t, c.log.String(), refused.Error())
		}
	}
	require.Contains(t, c.log.String(), refused.Error())
}

// What the system says is told to the other end by its code, whatever number the system
// has for it.
func TestCodesOfSystemErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = net.Listen("tcp", l.Addr().String())
	require.ErrorIs(t, listenError(err), codeInUse)
	require.NoError(t, l.Close())
	_, err = net.Dial("tcp", l.Addr().String())
	require.Equal(t, codeConnRefused, dialRefusal(err), "%v", err)
	require.EqualValues(t, statute.RepConnectionRefused, socksReply(dialRefusal(err)))
}

// A port that is taken is tried again, and the log names it.
func TestReversePortInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	_, c := connected(t, "R:"+at+":"+testenv.Target(t, testenv.Echo))
	waitFor(t, func() bool {
		return strings.Contains(c.log.String(), "already in use") && strings.Contains(c.log.String(), at)
	})
	require.NoError(t, l.Close())
	require.Equal(t, at, c.address(t))
	exchange(t, dial(t, at), 1000)
}

// Standard input and output are a connection, which ends with the target's.
func TestStdio(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	in, write := io.Pipe()
	read, out := io.Pipe()
	config := clientConfig(t, s, "stdio:"+testenv.Target(t, func(conn *net.TCPConn) {
		b := make([]byte, 5)
		_, _ = io.ReadFull(conn, b)
		_, _ = conn.Write(append(b, " and bye"...))
	}))
	config.Stdin, config.Stdout = in, out
	c := startClient(t, config)
	go func() { _, _ = io.WriteString(write, "hello") }()
	b, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Equal(t, "hello and bye", string(b))
	<-c.ended
	require.NoError(t, c.err)
	require.NoError(t, write.Close()) // ends the Read of standard input

	config = clientConfig(t, s, "stdio:127.0.0.1:1")
	config.Stdin, config.Stdout = strings.NewReader("x"), io.Discard
	err = run(t, config)
	require.ErrorIs(t, err, codeConnRefused)
	require.ErrorContains(t, err, "127.0.0.1:1")
}

// Connections end with a reset when the server is lost; new ones go to the server
// that begins in its place, with the same key at the same address.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	s := startServer(t, everything, nil)
	address := s.Addr().String()
	c := startClient(t, clientConfig(t, s, "0:"+at, "R:127.0.0.1:0:"+at))
	local, reverse := c.address(t), c.address(t)
	for range 3 {
		conn, back := dial(t, local), dial(t, reverse)
		require.NoError(t, echoes(conn))
		require.NoError(t, echoes(back))
		cert := s.config.Certificate
		s.stop()
		_, err := io.ReadAll(conn)
		requireReset(t, err)
		_, err = io.ReadAll(back)
		requireReset(t, err)

		early := dial(t, local) // waits for the server
		s = startServer(t, everything, func(c *ServerConfig) { c.Addr, c.Certificate = address, cert })
		exchange(t, early, 1000)
		reverse = c.address(t)
		exchange(t, dial(t, reverse), 1000)
	}
}

// Of two servers the one with fewer connections takes the next; when one is lost,
// the other takes all.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	first, second := startServer(t, everything, nil), startServer(t, everything, nil)
	config := clientConfig(t, first, "0:"+at)
	config.Servers = append(config.Servers, second.Addr().String())
	config.Fingerprints = append(config.Fingerprints, second.Fingerprint())
	c := startClient(t, config)
	local := c.address(t)
	waitFor(t, func() bool { return c.Status().Sessions == 2 })
	var conns []net.Conn
	for i := range 11 {
		if i == 10 {
			require.Equal(t, 5, first.Status().Connections)
			require.Equal(t, 5, second.Status().Connections)
			first.stop()
			waitFor(t, func() bool { return c.Status().Sessions == 1 })
		}
		conns = append(conns, dial(t, local))
		require.NoError(t, echoes(conns[i]))
	}
	require.Equal(t, 6, second.Status().Connections)
	lost := 0
	for _, conn := range conns {
		if echoes(conn) != nil {
			lost++
		}
	}
	require.Equal(t, 5, lost, "those of the lost server alone")
}

// While there is no server, connections wait, and are reset in the end.
func TestNoServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	config := clientConfig(t, s, "0:host:80")
	s.stop()
	config.OpenTimeout = 100 * time.Millisecond
	c := startClient(t, config)
	_, err := tryHello(t, c.address(t))
	requireReset(t, err)
	require.NoError(t, c.stop())

	for n, want := range map[int]string{1: "given up after 1 retry: ", 2: "given up after 2 retries: "} {
		config.MaxRetries = n
		require.ErrorContains(t, run(t, config), want)
	}
}

// A server that does not answer the hello does not hold the client for ever.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	cert := key(t)
	l, err := kcp.Listen("udp", "127.0.0.1:0", &kcp.Config{TLS: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{protocol}}})
	require.NoError(t, err)
	defer l.Endpoint().Close()
	fingerprint, err := certificateFingerprint(&cert)
	require.NoError(t, err)
	r, err := ParseRemote("0:host:80")
	require.NoError(t, err)
	err = run(t, &ClientConfig{
		Servers: []string{l.Addr().String()}, Fingerprints: []string{fingerprint}, Remotes: []Remote{r}, User: "me", Password: "secret",
		OpenTimeout: 100 * time.Millisecond, RetryAfter: time.Millisecond, MaxRetries: 1,
	})
	require.ErrorContains(t, err, "does not answer the hello")
}
