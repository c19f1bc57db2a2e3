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

	"github.com/arqnet/kcp/internal/testenv"
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

// long skips a test that takes seconds.
func long(t *testing.T) {
	t.Helper()
	if !testenv.InFull() {
		t.Skip("takes seconds; KCP_LONG=1 has it")
	}
}

// host is a thread with a network of its own, or the whole process.
type host struct{ *testenv.Host }

// client returns the host that the process is, with nothing in it, or skips the test.
func client(t *testing.T) *host {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs the right to make a network namespace")
	}
	h := &host{testenv.ProcessHost()}
	h.Must(t, "ip link set lo up")
	return h
}

// newHost returns a host of one thread.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{testenv.NewHost(t)}
	h.Must(t, "ip link set lo up")
	return h
}

// set writes a setting of the host's network.
func (h *host) set(t *testing.T, name, value string) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		return os.WriteFile("/proc/sys/net/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)
	}))
}

// cable puts a cable between two hosts. Interfaces are there as long as the test runs.
func cable(t *testing.T, a *host, nameA string, b *host, nameB string) {
	t.Helper()
	a.Must(t, fmt.Sprintf("ip link add %s type veth peer name %s netns %s", nameA, nameB, b.Path))
	t.Cleanup(func() { _ = a.Run("ip link del " + nameA) })
	for _, end := range []struct {
		host *host
		name string
	}{{a, nameA}, {b, nameB}} {
		end.host.set(t, "ipv6.conf."+end.name+".accept_dad", "0")
		end.host.Must(t, "ip link set "+end.name+" up")
	}
}
