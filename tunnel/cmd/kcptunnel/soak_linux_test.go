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
	client, local := s.connect(t, "0:"+at, "R:"+s.reverse+":"+at, "-max-retry-interval", "1s")
	client.err.Find(t, "the server listens")
	before, files := runtime.NumGoroutine(), testenv.OpenFiles()

	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	var running sync.WaitGroup
	for i := range 20 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for ctx.Err() == nil {
				s.try(t, local, rng)
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
		s.kill(t, rng.IntN(2) == 0)
		sleepRandom(ctx, rng, time.Second)
		s.serve(t)
	}
	running.Wait()
	testenv.Await(t, func() bool { return runtime.NumGoroutine() <= before+20 && testenv.OpenFiles() <= files+20 })
	code, said := client.stop()
	require.Equal(t, exitOK, code, said)
	testenv.Await(t, func() bool { return !strings.Contains(stacks(), "kcp/tunnel.") })
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
	served
	server          *process
	killed, changed int
	reverse         string // where the server listens for the client

	complete, failed, refused atomic.Int64
}

// newSoak starts a server on a free port.
func newSoak(t *testing.T) *soak {
	s := &soak{reverse: testenv.FreeAddress(t), served: served{
		users: file(t, "users.json", everyone), key: filepath.Join(t.TempDir(), "server.pem"), address: testenv.FreeAddress(t),
	}}
	cert, err := tunnel.LoadKey(s.key)
	require.NoError(t, err)
	s.fingerprint = tunnel.Fingerprint(cert.Leaf)
	s.serve(t)
	return s
}

// serve starts the server, at the same port with the same key.
func (s *soak) serve(t *testing.T) {
	s.server = run(t, "", nil, "server", "-auth", s.users, "-key", s.key, s.address)
}

// signal sends a signal to the server, and all processes that it has begun.
func (s *soak) signal(how syscall.Signal) error { return syscall.Kill(-s.server.cmd.Process.Pid, how) }

// change has the server read other users, or a file with a mistake, or upgrade itself.
// The client's user stays.
func (s *soak) change(t *testing.T, rng *rand.Rand) {
	s.changed++
	switch rng.IntN(3) {
	case 0:
		require.NoError(t, os.WriteFile(s.users, fmt.Appendf(nil, `{"me:secret": [""], "other%d:word": [""]}`, rng.IntN(3)), 0o600))
		_ = s.signal(syscall.SIGHUP)
	case 1:
		require.NoError(t, os.WriteFile(s.users, []byte(`{"me": [""`), 0o600))
		_ = s.signal(syscall.SIGHUP)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, os.WriteFile(s.users, []byte(everyone), 0o600))
	case 2:
		_ = s.signal(syscall.SIGUSR2)
	}
}

// kill ends the server, in order or not, with all processes that it has begun.
func (s *soak) kill(t *testing.T, hard bool) {
	how := syscall.SIGTERM
	if hard {
		how = syscall.SIGKILL
	}
	_ = s.signal(how)
	<-s.server.ended
	testenv.Await(t, func() bool { return s.signal(0) != nil })
	s.killed++
}

// reflect sends back what arrives, and resets the connection if that fails.
func reflect(conn *net.TCPConn) {
	if _, err := io.Copy(conn, conn); err != nil {
		_ = conn.SetLinger(0)
	}
}

// stacks returns the stacks of all goroutines.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// try makes one connection, and looks at how it ends.
func (s *soak) try(t *testing.T, at string, rng *rand.Rand) {
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
