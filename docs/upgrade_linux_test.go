package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
)

// In the old process, which has started the new one. It returns when the last session
// has ended. Those that are left after a time are closed.
func leave(ctx context.Context, l *kcp.Listener, successor *net.UnixConn, patience time.Duration) error {
	timer := time.AfterFunc(patience, func() { _ = l.Endpoint().Shutdown(ctx) })
	defer timer.Stop()
	return l.HandOver(ctx, successor)
}

// In the new process, which gets all new sessions from then on.
func enter(ctx context.Context, predecessor *net.UnixConn, config *kcp.Config) (*kcp.Listener, error) {
	return kcp.TakeOver(ctx, predecessor, config)
}

// spawn starts the new process, and returns the socket that leads to it.
func spawn(cmd *exec.Cmd) (*net.UnixConn, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	cmd.ExtraFiles = []*os.File{theirs} // 3: 0 to 2 are the standard streams
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return unixSocket(ours)
}

// inherited returns the socket that leads to the old process, in the new one. Tell it
// that there is one, such as by its environment.
func inherited() (*net.UnixConn, error) {
	f := os.NewFile(3, "inherited")
	defer f.Close()
	return unixSocket(f)
}

func unixSocket(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f) // has a copy of f
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// A session that does not end by itself is closed after the time that leave gives it.
func TestLeaveAndEnter(t *testing.T) {
	old, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	addr := old.Addr().String()
	stays, err := kcp.Dial("udp", addr, nil)
	require.NoError(t, err)
	defer stays.Close()
	_, err = old.Accept()
	require.NoError(t, err)

	pair := testenv.UnixPair(t)
	unhurried := takeover.WithFactor(t.Context(), 1000) // the machine may be busy
	left := make(chan error, 1)
	go func() { left <- leave(unhurried, old, pair[0], 300*time.Millisecond) }()
	l, err := enter(unhurried, pair[1], nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	comes, err := kcp.Dial("udp", addr, nil)
	require.NoError(t, err)
	defer comes.Abort(0, "")
	_, err = l.Accept()
	require.NoError(t, err)
	require.NoError(t, <-left)
	_, err = stays.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// The socket that the new process inherits leads to the old one.
func TestSpawn(t *testing.T) {
	const spawned = "KCP_DOCS_SPAWNED"
	if os.Getenv(spawned) != "" {
		c, err := inherited()
		require.NoError(t, err)
		_, err = c.Write([]byte("the new process"))
		require.NoError(t, err)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSpawn$")
	cmd.Env = append(os.Environ(), spawned+"=1")
	c, err := spawn(cmd)
	require.NoError(t, err)
	defer c.Close()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "the new process", string(got))
	require.NoError(t, cmd.Wait())
}

// serveMetrics serves the figures of this process on a port of its own, which it names in
// a file of the folder, until ctx ends.
func serveMetrics(ctx context.Context, folder, host string, handler http.Handler) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	file := filepath.Join(folder, fmt.Sprintf("%d.json", os.Getpid()))
	if err := os.WriteFile(file, fmt.Appendf(nil, `[{"targets": [%q]}]`, l.Addr()), 0o644); err != nil {
		return errors.Join(err, l.Close())
	}
	defer os.Remove(file)
	return http.Serve(l, handler)
}

// TestServeMetrics finds the figures of a process as Prometheus does.
func TestServeMetrics(t *testing.T) {
	folder, ended := t.TempDir(), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- serveMetrics(ctx, folder, "127.0.0.1", http.NotFoundHandler()) }()
	var found []struct{ Targets []string }
	testenv.Await(t, func() bool {
		files, _ := filepath.Glob(filepath.Join(folder, "*.json"))
		text, err := os.ReadFile(strings.Join(files, ""))
		return err == nil && json.Unmarshal(text, &found) == nil
	})
	response, err := http.Get("http://" + found[0].Targets[0])
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, response.StatusCode)
	cancel()
	require.ErrorIs(t, <-ended, net.ErrClosed)
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, files)
}
