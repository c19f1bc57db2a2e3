// Package lab has what the tests of both ways to upgrade need: processes of a server that
// start one another, players, and a socket in place of systemd's.
package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ServerEnv makes a test binary the server.
const ServerEnv = "KCP_TEST_SERVER"

// limit is the limit of what needs one. The test binary has a shorter one.
const limit = time.Hour

// Service is a server as systemd sees it: a program, and processes that start one
// another.
type Service struct {
	t       *testing.T
	Program string // may be replaced
	First   int    // the process id of the first process
	Addr    string
	log     *log
	notify  *net.UnixConn

	mu      sync.Mutex  // guards handles
	handles map[int]int // by process id: what pidfd_open returns
}

// Start starts the test binary as a server with these arguments besides its address.
func Start(t *testing.T, args ...string) *Service {
	t.Helper()
	dir, err := os.MkdirTemp("", "kcp") // t.TempDir may be too long for the name of a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Service{t: t, Program: filepath.Join(dir, "server"), log: newLog(), handles: make(map[int]int)}
	s.Restore()
	name := filepath.Join(dir, "notify")
	s.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.notify.Close() })
	r, w, err := os.Pipe()
	require.NoError(t, err)
	go s.log.read(r)
	cmd := exec.Command(s.Program, append([]string{"-addr", "127.0.0.1:0"}, args...)...)
	// The race detector would wait for a second at the end.
	cmd.Env = append(os.Environ(), ServerEnv+"=1", "NOTIFY_SOCKET="+name, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = w
	require.NoError(t, cmd.Start())
	_ = w.Close()
	s.First = cmd.Process.Pid
	s.handle(s.First)
	t.Cleanup(s.kill)
	go func() { _ = cmd.Wait() }()
	s.Addr = s.Logged(`serving on (\S+)`)
	require.Equal(t, s.First, s.Ready())
	return s
}

// kill ends all processes that are left.
func (s *Service) kill() {
	for _, fd := range s.handles {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd)
	}
	if s.t.Failed() {
		s.t.Logf("the processes have said:\n%s", s.log.text())
	}
}

// Replace puts another file in place of the program. The old one gets another name.
func (s *Service) Replace(content string) {
	s.t.Helper()
	// A process that is started meanwhile would have the file open for writing, for a
	// moment in which it cannot be executed.
	syscall.ForkLock.RLock()
	err := os.WriteFile(s.Program+".new", []byte(content), 0o755)
	syscall.ForkLock.RUnlock()
	require.NoError(s.t, err)
	s.rename()
}

func (s *Service) rename() {
	s.t.Helper()
	_ = os.Rename(s.Program, s.Program+".old") // there is none at first
	require.NoError(s.t, os.Rename(s.Program+".new", s.Program))
}

// Restore puts the server in place of the program.
func (s *Service) Restore() {
	s.t.Helper()
	exe, err := os.Executable()
	require.NoError(s.t, err)
	if os.Link(exe, s.Program+".new") == nil {
		s.rename()
		return
	}
	content, err := os.ReadFile(exe) // the folder is in another file system
	require.NoError(s.t, err)
	s.Replace(string(content))
}

// handle returns the handle of a process, which stays its own whatever becomes of its id;
// -1: it has ended.
func (s *Service) handle(pid int) int {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.handles[pid]; !ok {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			return -1
		}
		require.NoError(s.t, err)
		s.handles[pid] = fd
	}
	return s.handles[pid]
}

// Signal sends a signal to a process.
func (s *Service) Signal(pid int, signal unix.Signal) {
	s.t.Helper()
	require.NoError(s.t, unix.PidfdSendSignal(s.handle(pid), signal, nil, 0))
}

// Ends waits until a process has ended by itself.
func (s *Service) Ends(pid int) {
	s.t.Helper()
	require.True(s.t, s.ended(pid, limit), "process %d has not ended", pid)
}

// Lives checks that a process has not ended.
func (s *Service) Lives(pid int) {
	s.t.Helper()
	require.False(s.t, s.ended(pid, 0), "process %d has ended", pid)
}

func (s *Service) ended(pid int, d time.Duration) bool {
	handle := s.handle(pid)
	if handle < 0 {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	for end := time.Now().Add(d); ; {
		n, err := unix.Poll(fds, int(max(0, time.Until(end)).Milliseconds()))
		if err != unix.EINTR {
			require.NoError(s.t, err)
			return n > 0
		}
	}
}

// Notified returns the next message to systemd, once it has come.
func (s *Service) Notified() string {
	s.t.Helper()
	require.NoError(s.t, s.notify.SetReadDeadline(time.Now().Add(limit)))
	b := make([]byte, 4096)
	n, err := s.notify.Read(b)
	require.NoError(s.t, err)
	return string(b[:n])
}

// Ready checks that the next message says that a process serves, and returns it.
func (s *Service) Ready() int {
	s.t.Helper()
	message := s.Notified()
	head, rest, _ := bytes.Cut([]byte(message), []byte("\n"))
	require.Equal(s.t, "READY=1\nSTATUS=serving on "+s.Addr, string(rest), message)
	pid, err := strconv.Atoi(string(bytes.TrimPrefix(head, []byte("MAINPID="))))
	require.NoError(s.t, err, message)
	s.handle(pid)
	return pid
}

// Stays checks that the next message says that the process still serves, and why.
func (s *Service) Stays(pid int, why string) {
	s.t.Helper()
	require.Regexp(s.t, fmt.Sprintf(`^MAINPID=%d\nREADY=1\nSTATUS=not upgraded: .*%s`, pid, why), s.Notified())
}

// Upgrades sends SIGHUP to a process, and returns the one that serves then.
func (s *Service) Upgrades(pid int) int {
	s.t.Helper()
	s.Signal(pid, unix.SIGHUP)
	s.Reloading()
	return s.Ready()
}

// Reloading checks that the next message says that an upgrade has begun.
func (s *Service) Reloading() {
	s.t.Helper()
	require.Regexp(s.t, `^RELOADING=1\nMONOTONIC_USEC=[1-9]\d*$`, s.Notified())
}

// Logged waits until a process has said something, and returns the first group of it.
// What was said before the last call of Logged does not count.
func (s *Service) Logged(pattern string) string {
	s.t.Helper()
	found, ok := s.log.find(regexp.MustCompile(pattern))
	require.True(s.t, ok, "not said: %s", pattern)
	return found
}

// Says reports whether a process has said something. It does not wait.
func (s *Service) Says(pattern string) bool {
	return regexp.MustCompile(pattern).Match(s.log.text())
}

// log is what all processes have said.
type log struct {
	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // broadcast at more
	b       []byte
	seen    int // the bytes that find has passed
}

func newLog() *log {
	l := new(log)
	l.changed.L = &l.mu
	return l
}

func (l *log) read(r io.Reader) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		l.mu.Lock()
		l.b = append(l.b, line...)
		l.changed.Broadcast()
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (l *log) text() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b
}

func (l *log) find(pattern *regexp.Regexp) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := false
	stop := time.AfterFunc(limit, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		late = true
		l.changed.Broadcast()
	})
	defer stop.Stop()
	for {
		if m := pattern.FindSubmatchIndex(l.b[l.seen:]); m != nil {
			found := ""
			if len(m) > 2 {
				found = string(l.b[l.seen+m[2] : l.seen+m[3]])
			}
			l.seen += m[1]
			return found, true
		}
		if late {
			return "", false
		}
		l.changed.Wait()
	}
}
