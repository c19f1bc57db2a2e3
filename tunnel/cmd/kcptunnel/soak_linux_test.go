package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

	"github.com/arqnet/kcp/internal/testenv"
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

// Random connections both ways while the server is killed and restarted, upgraded, and
// has other users. Each of them ends truly: it has all of its bytes, or an error. Nothing
// is left behind.
// KCP_SOAK is for how long, such as 10m.
func TestSoak(t *testing.T) {
	long := 4 * time.Second
	if text := os.Getenv("KCP_SOAK"); text != "" {
		var err error
		long, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d, for %v", seed, long)
	s := newSoak(t)
	at := testenv.Target(t, reflect)
	client, stop := s.client(t, at)
	before, files := runtime.NumGoroutine(), testenv.OpenFiles()

	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	var running sync.WaitGroup
	for i := range 20 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for ctx.Err() == nil {
				s.connect(t, rng)
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 100))
	for ctx.Err() == nil {
		for range rng.IntN(4) {
			sleepRandom(ctx, rng, min(long/8, 4*time.Second))
			s.change(t, rng)
		}
		sleepRandom(ctx, rng, min(long/4, 8*time.Second))
		s.kill(rng.IntN(2) == 0)
		sleepRandom(ctx, rng, time.Second)
		s.startServer(t)
	}
	running.Wait()
	testenv.Await(t, func() bool { return client.Status().Connections == 0 })
	testenv.Await(t, func() bool { return runtime.NumGoroutine() <= before+20 && testenv.OpenFiles() <= files+20 })
	stop()
	t.Logf("%d connections complete, %d ended with an error, %d not accepted; server killed or ended %d times, changed %d times",
		s.complete.Load(), s.failed.Load(), s.refused.Load(), s.killed, s.changed)
	require.Positive(t, s.complete.Load())
	require.Positive(t, s.failed.Load()+s.refused.Load())
}

// sleepRandom sleeps for up to most.
func sleepRandom(ctx context.Context, rng *rand.Rand, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(rng.Int64N(int64(most)))):
	}
}

// soak is what TestSoak works with.
type soak struct {
	users, key, address, fingerprint string
	server                           *exec.Cmd
	killed, changed                  int
	reverse                          string // where the server listens for the client
	local                            atomic.Pointer[string]

	complete, failed, refused atomic.Int64
}

// newSoak starts a server on a free port.
func newSoak(t *testing.T) *soak {
	s := &soak{
		users: file(t, "users.json", `{"me:secret": [""]}`), key: filepath.Join(t.TempDir(), "server.pem"),
		address: testenv.FreeAddress(t), reverse: testenv.FreeAddress(t),
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

// change has the server read other users, or a file with a mistake, or upgrade itself.
// The client's user stays.
func (s *soak) change(t *testing.T, rng *rand.Rand) {
	s.changed++
	switch rng.IntN(3) {
	case 0:
		require.NoError(t, os.WriteFile(s.users, fmt.Appendf(nil, `{"me:secret": [""], "other%d:word": [""]}`, rng.IntN(3)), 0o600))
		signalGroup(s.server, reloads)
	case 1:
		require.NoError(t, os.WriteFile(s.users, []byte(`{"me": [""`), 0o600))
		signalGroup(s.server, reloads)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, os.WriteFile(s.users, []byte(`{"me:secret": [""]}`), 0o600))
	case 2:
		signalGroup(s.server, upgrades)
	}
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
	s.killed++
}

// reflect sends back what arrives, and resets the connection if that fails.
func reflect(conn *net.TCPConn) {
	if _, err := io.Copy(conn, conn); err != nil {
		_ = conn.SetLinger(0)
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
	testenv.Await(t, func() bool { return c.Status().Sessions == 1 })
	return c, func() {
		cancel()
		require.NoError(t, <-ended)
		testenv.Await(t, func() bool { return !strings.Contains(stacks(), "kcp/tunnel.") })
	}
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// connect makes one connection, and looks at how it ends.
func (s *soak) connect(t *testing.T, rng *rand.Rand) {
	at := *s.local.Load()
	if rng.IntN(3) == 0 {
		at = s.reverse
	}
	conn, err := net.Dial("tcp", at)
	if err != nil { // nobody listens at the server now
		s.refused.Add(1)
		time.Sleep(10 * time.Millisecond)
		return
	}
	defer conn.Close()
	const most = 60 * time.Second
	_ = conn.SetDeadline(time.Now().Add(most))
	size := uint32(rng.IntN(1 << rng.IntN(22)))
	err = converse(conn.(*net.TCPConn), size)
	switch {
	case err == nil:
		s.complete.Add(1)
	case errors.Is(err, errIncomplete), errors.Is(err, os.ErrDeadlineExceeded):
		t.Errorf("connection with %s, %d bytes: %v", at, size, err)
	default:
		s.failed.Add(1)
	}
}

var errIncomplete = errors.New("the connection ended without an error, and without all of its bytes")

// converse sends bytes to the echo, and compares what it gets.
func converse(conn *net.TCPConn, size uint32) error {
	want := testenv.Random(int(size))
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(want)
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(conn)
	if sending := <-sent; err == nil {
		err = sending
	}
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%w: %d of %d", errIncomplete, len(got), len(want))
	}
	return err
}
