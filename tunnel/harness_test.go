package tunnel

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// shortly is how long ends in order take at most, on a path without a delay.
const shortly = 10 * time.Second

// TestMain waits at the end for the goroutines of this package.
func TestMain(m *testing.M) {
	code := m.Run()
	for code == 0 && len(goroutines()) > 0 {
		time.Sleep(time.Millisecond)
	}
	os.Exit(code)
}

// goroutines returns the stacks of the goroutines that this package has started,
// but for those of tests.
func goroutines() (found []string) {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(g, "arqnet/kcp/tunnel.") && !strings.Contains(g, "testing.tRunner") && !strings.Contains(g, "_test.go") {
			found = append(found, g)
		}
	}
	return found
}

// testServer is a server that runs.
type testServer struct {
	*Server
	log  *testenv.Records
	stop func() // waits until it has ended
}

// startServer runs a server for users, with the settings that edit makes.
func startServer(t *testing.T, users string, edit func(*ServerConfig)) *testServer {
	t.Helper()
	u := parsed(t, users)
	config := &ServerConfig{Addr: "127.0.0.1:0", Users: u, failureDelay: 50 * time.Millisecond, shutdown: shortly}
	if edit != nil {
		edit(config)
	}
	if config.Certificate.Certificate == nil {
		config.Certificate = key(t)
	}
	s := &testServer{log: new(testenv.Records)}
	var err error
	if config.Logger == nil {
		config.Logger = s.log.Logger()
	}
	for s.Server == nil || overTCP(t) && s.tcp == nil && config.TakeOver.Control == nil { // another program has the port of TCP
		if s.Server != nil {
			require.NoError(t, s.Close())
		}
		s.Server, err = Listen(config)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(s.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the server:\n%s", s.log)
		}
	})
	return s
}

// testClient is a client that runs.
type testClient struct {
	*Client
	log       *testenv.Records
	stop      func() error // waits until it has ended, with what Run has returned
	ended     chan struct{}
	err       error
	listening chan net.Addr
}

// clientConfig returns the settings of a client of a server.
func clientConfig(t *testing.T, s *testServer, remotes ...string) *ClientConfig {
	t.Helper()
	config := &ClientConfig{
		Servers: []string{s.Addr().String()}, Fingerprints: []string{s.Fingerprint()}, User: "me", Password: "secret",
		tcpOnly: overTCP(t), shutdown: shortly, RetryAfter: 20 * time.Millisecond, MaxRetryAfter: 100 * time.Millisecond,
	}
	for _, text := range remotes {
		r, err := ParseRemote(text)
		require.NoError(t, err)
		config.Remotes = append(config.Remotes, r)
	}
	return config
}

// overTCP reports whether clients of a test run over TCP.
func overTCP(t *testing.T) bool { return strings.HasPrefix(t.Name(), "TestOverTCP/") }

// startClient runs a client.
func startClient(t *testing.T, config *ClientConfig) *testClient {
	t.Helper()
	c := &testClient{log: new(testenv.Records), ended: make(chan struct{}), listening: make(chan net.Addr, 16)}
	config.Logger = c.log.Logger()
	config.Listening = func(_ Remote, at net.Addr) { c.listening <- at }
	var err error
	c.Client, err = NewClient(config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(c.ended)
		c.err = c.Run(ctx)
	}()
	c.stop = func() error {
		cancel()
		<-c.ended
		return c.err
	}
	t.Cleanup(func() { _ = c.stop() })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the client:\n%s", c.log)
		}
	})
	return c
}

// connected runs a server for everything, and a client of it.
func connected(t *testing.T, remotes ...string) (*testServer, *testClient) {
	t.Helper()
	s := startServer(t, everything, nil)
	return s, startClient(t, clientConfig(t, s, remotes...))
}

// address returns the next address where the client, or its server, listens.
func (c *testClient) address(t *testing.T) string {
	t.Helper()
	select {
	case a := <-c.listening:
		return a.String()
	case <-c.ended:
		t.Fatalf("the client has ended: %v", c.err)
	}
	return ""
}

// dial connects with a TCP address.
func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// dialUDP returns a socket that is connected with an address.
func dialUDP(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tryHello connects with a TCP address, says hello, and returns what it gets, and why
// that ends. A connection may be reset before Dial has returned.
func tryHello(t *testing.T, address string) ([]byte, error) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "hello")
	_ = conn.(*net.TCPConn).CloseWrite()
	return io.ReadAll(conn)
}

// echoes exchanges a byte with an echo.
func echoes(conn net.Conn) error {
	_, err := io.WriteString(conn, "x")
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	return err
}

// requireReset requires that a connection has ended with a reset.
func requireReset(t *testing.T, err error) {
	t.Helper()
	require.True(t, neterr.Is(err, syscall.ECONNRESET), "%v", err)
}

// exchange sends n bytes to an echo through conn, compares what returns, and ends both
// directions.
func exchange(t *testing.T, conn *net.TCPConn, n int) {
	t.Helper()
	testenv.Exchange(t, conn, n)
	require.NoError(t, conn.CloseWrite())
	rest, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, rest)
}

// everything is the text of users of whom "me" may reach everything.
const everything = `{"me:secret": [""]}`

// parsed returns the users of a text.
func parsed(t *testing.T, text string) *Users {
	t.Helper()
	u, err := ParseUsers([]byte(text))
	require.NoError(t, err)
	return u
}

// key returns the certificate of a new key.
func key(t *testing.T) tls.Certificate {
	t.Helper()
	cert, err := LoadKey(filepath.Join(t.TempDir(), "server.pem"))
	require.NoError(t, err)
	return cert
}
