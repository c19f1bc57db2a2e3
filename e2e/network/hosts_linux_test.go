package network

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// inside is set in the process whose network is its own: the client's host.
const inside = "KCP_TEST_NETWORK"

// TestMain runs the tests in a process with a network of its own.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is of the thread
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	}
	os.Exit(m.Run()) // each test skips itself
}

// host is a thread with a network of its own, or the whole process.
type host struct {
	path string      // of its namespace
	jobs chan func() // nil: the process
}

// client returns the host that the process is, with nothing in it, or skips the test.
func client(t *testing.T) *host {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs the right to make a network namespace")
	}
	h := &host{path: "/proc/self/ns/net"}
	h.must(t, "ip link set lo up")
	return h
}

// newHost returns a host of one thread.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{jobs: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		h.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		made <- unix.Unshare(unix.CLONE_NEWNET)
		for job := range h.jobs {
			job()
		}
	}()
	err := <-made
	t.Cleanup(func() { close(h.jobs) })
	require.NoError(t, err)
	h.must(t, "ip link set lo up")
	return h
}

// do runs f at the host. f must not end the test.
func (h *host) do(f func() error) error {
	if h.jobs == nil {
		return f()
	}
	done := make(chan error)
	h.jobs <- func() { done <- f() }
	return <-done
}

// run runs programs at the host, one on each line.
func (h *host) run(lines string) error {
	return h.do(func() error {
		for line := range strings.Lines(lines) {
			args := strings.Fields(line)
			if len(args) == 0 {
				continue
			}
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.TrimSpace(line), err, out)
			}
		}
		return nil
	})
}

// must is run where a failure ends the test. It skips the test if a program is missing.
func (h *host) must(t *testing.T, lines string) {
	t.Helper()
	err := h.run(lines)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// set writes a setting of the host's network.
func (h *host) set(t *testing.T, name, value string) {
	t.Helper()
	require.NoError(t, h.do(func() error {
		return os.WriteFile("/proc/sys/net/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
	}))
}

// cable puts a cable between two hosts. Interfaces are there as long as the test runs.
func cable(t *testing.T, a *host, nameA string, b *host, nameB string) {
	t.Helper()
	a.must(t, fmt.Sprintf("ip link add %s type veth peer name %s netns %s", nameA, nameB, b.path))
	t.Cleanup(func() { _ = a.run("ip link del " + nameA) })
	for _, end := range []struct {
		host *host
		name string
	}{{a, nameA}, {b, nameB}} {
		end.host.set(t, "ipv6.conf."+end.name+".accept_dad", "0")
		end.host.must(t, "ip link set "+end.name+" up")
	}
}
