package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/arqnet/kcp/tunnel"
	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary the program itself if it is asked to be, so that a
// test can kill a server.
func TestMain(m *testing.M) {
	if os.Getenv("KCPTUNNEL_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// Random connections both ways while the server is killed and restarted, upgraded,
// and reads its users again.
// Each of them ends truly: it has all of its bytes, or an error. Nothing is left behind.
// KCP_SOAK is for how long, such as 10m; else the server is killed once.
func TestSoak(t *testing.T) {
	var until time.Time
	if long, err := time.ParseDuration(os.Getenv("KCP_SOAK")); err == nil {
		until = time.Now().Add(long)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go echoOrReset(l)
	s := newSoak(t)
	client, stop := s.client(t, l.Addr().String())
	before, files := runtime.NumGoroutine(), openFiles()
	var running sync.WaitGroup
	var over atomic.Bool
	for i := range 20 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for !over.Load() {
				s.connect(t, rng)
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 100))
	for killed := 0; killed == 0 || time.Now().Before(until); killed++ {
		for range rng.IntN(3) {
			s.use(t, rng)
			signalGroup(s.server, []syscall.Signal{reloads, upgrades}[rng.IntN(2)])
		}
		s.use(t, rng)
		s.kill(killed%2 == 0)
		s.startServer(t)
		s.use(t, rng)
	}
	over.Store(true)
	running.Wait()
	await.True(t, func() bool { return client.Status().Connections == 0 })
	await.True(t, func() bool { return runtime.NumGoroutine() <= before+20 && openFiles() <= files+20 })
	stop()
	t.Logf("%d connections complete, %d ended with an error, or were not accepted", s.complete.Load(), s.failed.Load())
}

// openFiles returns how many descriptors the process has; 0 where there is no /proc.
func openFiles() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// soak is what TestSoak works with.
type soak struct {
	users, key, address, fingerprint string
	server                           *exec.Cmd
	reverse                          string // where the server listens for the client
	local                            atomic.Pointer[string]
	complete, failed                 atomic.Int64 // connections
}

// newSoak starts a server on a free port.
func newSoak(t *testing.T) *soak {
	s := &soak{
		users: file(t, "users.json", `{"me:secret": [""]}`), key: filepath.Join(t.TempDir(), "server.pem"),
		address: "127.0.0.1:" + port(t), reverse: "127.0.0.1:" + port(t),
	}
	cert, err := tunnel.LoadKey(s.key)
	require.NoError(t, err)
	s.fingerprint = tunnel.Fingerprint(cert.Leaf)
	s.startServer(t)
	t.Cleanup(func() { s.kill(true) })
	return s
}

// startServer starts the server, at the same port with the same key.
func (s *soak) startServer(t *testing.T) {
	s.server = exec.Command(os.Args[0], "server", "-auth", s.users, "-key", s.key, s.address)
	s.server.Env = append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1")
	startGroup(s.server)
	require.NoError(t, s.server.Start())
}

// use waits until some connections are complete.
func (s *soak) use(t *testing.T, rng *rand.Rand) {
	enough := s.complete.Load() + 1 + rng.Int64N(100)
	await.True(t, func() bool { return s.complete.Load() >= enough })
}

// kill ends the server, in order or not, with all processes that it has begun.
func (s *soak) kill(hard bool) {
	how := os.Signal(syscall.SIGTERM)
	if hard {
		how = os.Kill
	}
	signalGroup(s.server, how)
	_ = s.server.Wait()
	awaitGroup(s.server)
}

// echoOrReset sends back what comes, or resets a connection that begins with 0.
func echoOrReset(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var ask [1]byte
			_, err := io.ReadFull(conn, ask[:])
			if err == nil && ask[0] != 0 {
				_, err = io.Copy(conn, conn)
			} else {
				err = errors.New("asked for")
			}
			if err != nil {
				_ = conn.(*net.TCPConn).SetLinger(0)
			}
		}()
	}
}

// client runs a client of the server until stop is called.
func (s *soak) client(t *testing.T, at string) (c *tunnel.Client, stop func()) {
	var remotes []tunnel.Remote
	for _, text := range []string{"0:" + at, "R:" + s.reverse + ":" + at} {
		r, err := tunnel.ParseRemote(text)
		require.NoError(t, err)
		remotes = append(remotes, r)
	}
	c, err := tunnel.NewClient(&tunnel.ClientConfig{
		Servers: []string{s.address}, Remotes: remotes, Fingerprints: []string{s.fingerprint}, User: "me", Password: "secret", MaxRetryAfter: time.Second,
		Listening: func(r tunnel.Remote, a net.Addr) {
			if at := a.String(); !r.Reverse {
				s.local.Store(&at)
			}
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	await.True(t, func() bool { return c.Status().Sessions == 1 })
	return c, func() {
		cancel()
		require.NoError(t, <-ended)
		stacks := make([]byte, 1<<20)
		await.True(t, func() bool { return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "kcp/tunnel.") })
	}
}

// connect makes one connection, and looks at how it ends.
func (s *soak) connect(t *testing.T, rng *rand.Rand) {
	at := *s.local.Load()
	if rng.IntN(3) == 0 {
		at = s.reverse
	}
	conn, err := net.Dial("tcp", at)
	if err != nil { // nobody listens at the server now
		s.failed.Add(1)
		time.Sleep(10 * time.Millisecond)
		return
	}
	defer conn.Close()
	want := content(uint32(1 + rng.IntN(1<<rng.IntN(22))))
	want[0] = byte(rng.IntN(3)) // the target may reset it
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(want)
		if err == nil {
			err = conn.(*net.TCPConn).CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(conn)
	switch err = errors.Join(err, <-sent); {
	case err != nil:
		s.failed.Add(1)
	case want[0] == 0 || !bytes.Equal(got, want[1:]):
		t.Errorf("a connection with %s has ended without an error after %d bytes of %d", at, len(got), len(want))
	default:
		s.complete.Add(1)
	}
}

// content returns n bytes.
func content(n uint32) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}
