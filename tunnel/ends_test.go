package tunnel

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// flood writes until the connection fails.
func flood(conn *net.TCPConn) {
	for b := make([]byte, 64<<10); ; {
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}

// Both ends end while connections take nothing, or wait behind the end of one
// direction, and so does a session.
func TestEndsWithStuckConnections(t *testing.T) {
	for _, c := range []struct {
		name   string
		target func(conn *net.TCPConn, release <-chan struct{})
		local  func(conn *net.TCPConn)
	}{
		{"local application reads nothing", func(conn *net.TCPConn, _ <-chan struct{}) { flood(conn) }, func(*net.TCPConn) {}},
		{"target reads nothing", func(_ *net.TCPConn, release <-chan struct{}) { <-release }, func(conn *net.TCPConn) { go flood(conn) }},
		{"target ends and waits", func(conn *net.TCPConn, release <-chan struct{}) {
			_ = conn.CloseWrite()
			<-release
		}, func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) }},
		{"local application ends and waits", func(conn *net.TCPConn, release <-chan struct{}) {
			_, _ = io.Copy(io.Discard, conn)
			<-release
		}, func(conn *net.TCPConn) { _ = conn.CloseWrite() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			at := testenv.Target(t, func(conn *net.TCPConn) { c.target(conn, release) })
			defer close(release)
			s := startServer(t, everything, nil)
			client := startClient(t, clientConfig(t, s, "0:"+at, "R:127.0.0.1:0:"+at))
			for range 2 {
				c.local(dial(t, client.address(t)))
			}
			waitFor(t, func() bool { return client.Status().Connections == 2 && s.Status().Connections == 2 })
			time.Sleep(200 * time.Millisecond) // buffers fill up

			s.mu.Lock()
			for each := range s.sessions {
				_ = each.conn.Abort(0, "")
			}
			s.mu.Unlock()
			again := client.address(t) // the client has connected again
			c.local(dial(t, again))
			waitFor(t, func() bool { return client.Status().Connections == 1 && s.Status().Connections == 1 })
			time.Sleep(200 * time.Millisecond)
			require.NoError(t, client.stop())
			waitFor(t, func() bool { return s.Status().Sessions == 0 })
			s.stop()
		})
	}
}

// A reset passes to a connection that takes nothing.
func TestResetOfStuckConnection(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	release := make(chan struct{})
	s := startServer(t, everything, nil)
	c := startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, func(conn *net.TCPConn) {
		_ = conn.SetReadBuffer(4096) // else it grows, and takes a little more now and then
		<-release
		_, err := io.Copy(io.Discard, conn)
		ended <- err
	})))
	conn := dial(t, c.address(t))
	b := make([]byte, 64<<10)
	stuck := func() (all bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		all = len(s.sessions) > 0
		for each := range s.sessions {
			each.session.mu.Lock()
			for stream := range each.carry {
				all = all && stream.(*kcp.Stream).Stats().ReadBuffered > 0
			}
			each.session.mu.Unlock()
		}
		return all
	}
	for full := false; !full; { // until all buffers are full
		_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		_, err := conn.Write(b)
		full = err != nil && stuck()
	}
	for _, each := range c.pool.all() {
		each.session.mu.Lock()
		for stream := range each.carry {
			_ = stream.Reset(uint64(codeGone))
		}
		each.session.mu.Unlock()
	}
	waitFor(t, func() bool { return s.Status().Connections == 0 })
	close(release)
	requireReset(t, <-ended)
}

// What is cut off does not look complete, however the session ends.
func TestCutOffIsReset(t *testing.T) {
	nobody := parsed(t, `{"other:word": []}`)
	for name, how := range map[string]func(s *testServer, c *testClient){
		"user revoked": func(s *testServer, _ *testClient) { _ = s.SetUsers(nobody) },
		"server ends":  func(s *testServer, _ *testClient) { go s.stop() },
		"client ends":  func(_ *testServer, c *testClient) { go func() { _ = c.stop() }() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds := 5
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				s := startServer(t, everything, nil)
				begun, ends := make(chan error, 8), make(chan error, 8)
				read := func(conn net.Conn) {
					_, err := io.ReadFull(conn, make([]byte, 1))
					begun <- err
					_, err = io.Copy(io.Discard, conn)
					ends <- err
				}
				download := testenv.Target(t, flood)
				upload := testenv.Target(t, func(conn *net.TCPConn) { read(conn) })
				c := startClient(t, clientConfig(t, s, "0:"+download, "0:"+upload))
				from, to := c.address(t), c.address(t)
				for range 3 {
					go read(dial(t, from))
					go flood(dial(t, to))
				}
				for range 6 {
					require.NoError(t, <-begun)
				}
				how(s, c)
				for range 6 {
					require.Error(t, <-ends)
				}
				require.NoError(t, c.stop())
				s.stop()
			}
		})
	}
}

// A connection whose target answers while the session ends is reset as well.
func TestLateConnectionIsReset(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	at := testenv.Target(t, testenv.Echo)
	c := startClient(t, clientConfig(t, s, "0:"+at, "R:127.0.0.1:0:"+at))
	forward, reverse := c.address(t), c.address(t)
	s.mu.Lock()
	for each := range s.sessions {
		each.resetAll()
	}
	s.mu.Unlock()
	for _, address := range []string{forward, reverse} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			continue // it no longer listens
		}
		_, err = io.ReadAll(conn)
		requireReset(t, err)
		require.NoError(t, conn.Close())
	}
}
