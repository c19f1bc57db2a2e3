package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Host is a thread with a network of its own, which is a network namespace, or the whole
// process. Tests that have no right to make one skip themselves.
type Host struct {
	Path string // of its namespace, in /proc

	jobs chan func() // nil: the process
}

// ProcessHost returns the host that the process is.
func ProcessHost() *Host { return &Host{Path: fmt.Sprintf("/proc/%d/ns/net", os.Getpid())} }

// NewHost returns a host with a network of its own, with nothing in it, as long as the test
// runs. It skips the test where that is not permitted.
func NewHost(t testing.TB) *Host {
	t.Helper()
	h := &Host{jobs: make(chan func())}
	made := make(chan error)
	go h.work(made)
	err := <-made
	t.Cleanup(func() { close(h.jobs) })
	if err != nil {
		t.Skipf("needs the right to make a network namespace: %v", err)
	}
	return h
}

// work makes the network, and runs what Do is given. It sends to made what came of it.
func (h *Host) work(made chan error) {
	runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		// ProcessHost names the network of this thread. While it is locked, another
		// goroutine has another one.
		elsewhere := make(chan error)
		go h.work(elsewhere)
		err := <-elsewhere
		runtime.UnlockOSThread()
		made <- err
		return
	}
	h.Path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	made <- unix.Unshare(unix.CLONE_NEWNET)
	for job := range h.jobs {
		job()
	}
}

// Do runs f at the host. f must not end the test.
func (h *Host) Do(f func() error) error {
	if h.jobs == nil {
		return f()
	}
	done := make(chan error)
	h.jobs <- func() { done <- f() }
	return <-done
}

// Run runs programs at the host, one on each line, until one fails.
func (h *Host) Run(lines string) error {
	return h.Do(func() error {
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

// Must is Run where a failure ends the test. It skips the test if a program is missing.
func (h *Host) Must(t testing.TB, lines string) {
	t.Helper()
	err := h.Run(lines)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// Try is Run where a failure skips the test: the system does not have what it is to be
// tested with.
func (h *Host) Try(t testing.TB, lines string) {
	t.Helper()
	if err := h.Run(lines); err != nil {
		t.Skip(err)
	}
}
