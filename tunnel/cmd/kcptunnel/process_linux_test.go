package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// process is a program in a process of its own.
type process struct {
	cmd      *exec.Cmd
	out, err *testenv.Records
	ended    chan struct{} // closed when it has
}

// run runs a program in a process, with more environment, until the test ends. An empty
// name is that of the command.
func run(t *testing.T, exe string, env []string, args ...string) *process {
	t.Helper()
	if exe == "" {
		exe = os.Args[0]
	}
	p := &process{cmd: exec.Command(exe, args...), out: new(testenv.Records), err: new(testenv.Records)}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.start(t, env)
	return p
}

func (p *process) start(t *testing.T, env []string) {
	t.Helper()
	p.ended = make(chan struct{})
	p.cmd.Env = append(append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1"), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with those that it starts
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
		if t.Failed() && p.err != nil {
			t.Logf("%q:\n%s", p.cmd.Args, p.err)
		}
	})
}

// lives reports whether a process is there, and is no zombie.
func lives(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(state), ") Z ")
}

// unit is a server as systemd runs it, in processes that replace each other.
type unit struct {
	served
	*process
	t      *testing.T
	notify *net.UnixConn // in place of systemd's
	pids   []int
}

// newUnit starts the first process.
func newUnit(t *testing.T, exe string, args ...string) *unit {
	u := prepare(t)
	u.process = run(t, exe, u.env(), u.args(args...)...)
	u.ready()
	return u
}

// prepare returns a unit that was not started.
func prepare(t *testing.T) *unit {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &unit{t: t, notify: conn, served: served{users: file(t, "users.json", everyone), key: filepath.Join(t.TempDir(), "server.pem")}}
}

func (u *unit) env() []string { return []string{"NOTIFY_SOCKET=" + u.notify.LocalAddr().String()} }

func (u *unit) args(more ...string) []string {
	args := append([]string{"server", "-v", "-auth", u.users, "-key", u.key}, more...)
	return append(args, "127.0.0.1:0")
}

// ready waits until another process says that it is the main one.
func (u *unit) ready() {
	u.t.Helper()
	b := make([]byte, 1000)
	for {
		n, err := u.notify.Read(b)
		require.NoError(u.t, err)
		if text, ok := strings.CutPrefix(string(b[:n]), "MAINPID="); ok {
			require.Contains(u.t, text, "\nREADY=1\n")
			pid, err := strconv.Atoi(text[:strings.IndexByte(text, '\n')])
			require.NoError(u.t, err)
			require.NotContains(u.t, u.pids, pid)
			u.pids = append(u.pids, pid)
			break
		}
	}
	if len(u.pids) == 1 && u.err != nil {
		u.address = u.err.Find(u.t, `listening address=(\S+)`)
		u.fingerprint = u.out.Find(u.t, `fingerprint (SHA256:\S+)\n`)
	}
}

// signal sends a signal to the process of a number, from 0.
func (u *unit) signal(n int, s syscall.Signal) {
	u.t.Helper()
	require.NoError(u.t, syscall.Kill(u.pids[n], s))
}

// upgrade replaces the newest process.
func (u *unit) upgrade() {
	u.t.Helper()
	u.signal(len(u.pids)-1, syscall.SIGUSR2)
	u.ready()
}

// gone waits for the end of processes.
func (u *unit) gone(numbers ...int) {
	u.t.Helper()
	for _, n := range numbers {
		testenv.Await(u.t, func() bool { return !lives(u.pids[n]) })
	}
}

// open opens a connection with an echo.
func open(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, echoes(conn))
	return conn
}

func echoes(conn net.Conn) error {
	_, err := io.WriteString(conn, "x")
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	return err
}

// install puts another program in place of one, as install(1) does. It is no process's
// meanwhile.
func install(t *testing.T, exe string, program []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(exe+".new", program, 0o700)
	syscall.ForkLock.RUnlock()
	require.NoError(t, err)
	require.NoError(t, os.Rename(exe+".new", exe))
}

// ownProgram returns the bytes of the command.
func ownProgram(t *testing.T) []byte {
	program, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	return program
}

// heedsHangUp skips a test if SIGHUP is ignored, as under nohup: programs keep that.
func heedsHangUp(t *testing.T) {
	t.Helper()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("SIGHUP is ignored")
	}
}
