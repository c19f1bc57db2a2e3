package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// upgraded is a kcp listen -k -d that may be replaced, and the processes that replace it,
// all with the same stdout and stderr.
type upgraded struct {
	t       *testing.T
	program string // may be replaced
	cmd     *exec.Cmd
	addr    string
	out     testenv.Records
	err     testenv.Records
	closed  chan struct{} // once all processes have ended
}

// serveUpgradable starts the first process, which has no terminal.
func serveUpgradable(t *testing.T, stdin io.Reader, args ...string) *upgraded {
	u := &upgraded{t: t, program: filepath.Join(t.TempDir(), "kcp"), closed: make(chan struct{})}
	u.restore()
	u.cmd = exec.Command(u.program, append([]string{"listen", "127.0.0.1:0", "-k", "-v"}, args...)...)
	u.cmd.Env = append(os.Environ(), "KCP_TEST_AS_COMMAND=1", "GORACE=atexit_sleep_ms=0")
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	u.cmd.Stdin, u.cmd.Stdout, u.cmd.Stderr = stdin, &u.out, &u.err
	require.NoError(t, u.cmd.Start())
	go func() {
		_ = u.cmd.Wait() // also for the end of both streams
		close(u.closed)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-u.cmd.Process.Pid, syscall.SIGKILL) // all processes are in its group
		<-u.closed
		if t.Failed() {
			t.Logf("stderr:\n%s", &u.err)
		}
	})
	u.addr = u.err.Find(t, `listening on (\S+)\n`)
	return u
}

// replace puts another file in place of the program. The old one gets another name.
func (u *upgraded) replace(content []byte) {
	// A process that is started meanwhile would have the file open for writing, for a
	// moment in which it cannot be executed.
	syscall.ForkLock.RLock()
	err := os.WriteFile(u.program+".new", content, 0o755)
	syscall.ForkLock.RUnlock()
	require.NoError(u.t, err)
	_ = os.Rename(u.program, u.program+".old") // there is none at first
	require.NoError(u.t, os.Rename(u.program+".new", u.program))
}

// restore puts the command in place of the program.
func (u *upgraded) restore() {
	content, err := os.ReadFile(os.Args[0])
	require.NoError(u.t, err)
	u.replace(content)
}

// hangUp sends SIGHUP to a process.
func (u *upgraded) hangUp(pid int) { require.NoError(u.t, syscall.Kill(pid, syscall.SIGHUP)) }

// upgrade makes a process hand over, and returns the new one.
func (u *upgraded) upgrade(pid int) int {
	u.t.Helper()
	u.hangUp(pid)
	next, err := strconv.Atoi(u.says(`process (\d+) has taken over; this one ends with its last session\n`))
	require.NoError(u.t, err)
	return next
}

// says waits for what was written to stderr since it has last returned.
func (u *upgraded) says(pattern string) string {
	u.t.Helper()
	found := u.err.Find(u.t, `(?s)`+pattern)
	u.err.Forget(found)
	return found
}

// sender is a kcp dial that sends what it is told to.
type sender struct {
	*process
	stdin *io.PipeWriter
}

func (u *upgraded) dial() *sender {
	r, w := io.Pipe()
	u.t.Cleanup(func() { _ = w.Close() })
	return &sender{dial(u.t.Context(), r, u.addr), w}
}

func (s *sender) send(t *testing.T, text string) {
	_, err := io.WriteString(s.stdin, text)
	require.NoError(t, err)
}

func (s *sender) end(t *testing.T) {
	_ = s.stdin.Close()
	require.Equal(t, exitOK, s.wait(t), s.err.String())
}

// The session of before three upgrades goes on. Those that come later are served by the
// new processes after it, in their order, and each process ends with its sessions.
// systemd learns which process is the newest, whose live page is there.
func TestListenUpgrades(t *testing.T) {
	dir, err := os.MkdirTemp("", "kcp") // t.TempDir may be too long for the name of a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	name := filepath.Join(dir, "notify")
	t.Setenv("NOTIFY_SOCKET", name)
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = notify.Close() })
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	page := free.Addr().String()
	require.NoError(t, free.Close())
	newest := func(pid int) {
		b := make([]byte, 1000)
		n, err := notify.Read(b)
		require.NoError(t, err)
		require.Equal(t, "MAINPID="+strconv.Itoa(pid)+"\nREADY=1", string(b[:n]))
		resp, err := http.Get("http://" + page + "/")
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	u := serveUpgradable(t, nil, "-d", "-debug", page)
	newest(u.cmd.Process.Pid)
	first := u.dial()
	first.send(t, "a0 ")
	u.out.Find(t, "(a0 )")
	second := u.upgrade(u.cmd.Process.Pid)
	newest(second)
	third := u.upgrade(second)
	newest(third)
	u.ends(second) // it has no session
	c := u.dial()
	c.send(t, "c0 ")
	fourth := u.upgrade(third)
	d := u.dial()
	d.send(t, "d0 ")
	first.send(t, "a1 ")
	u.out.Find(t, "(^a0 a1 $)")
	first.end(t)
	u.ends(u.cmd.Process.Pid)
	u.out.Find(t, "(^a0 a1 c0 $)")
	c.send(t, "c1 ")
	c.end(t)
	u.ends(third)
	u.out.Find(t, "(^a0 a1 c0 c1 d0 $)")
	d.end(t)
	require.NoError(t, syscall.Kill(fourth, syscall.SIGTERM))
	<-u.closed
	require.Equal(t, "a0 a1 c0 c1 d0 ", u.out.String())
}

// ends waits until processes have ended.
func (u *upgraded) ends(pids ...int) {
	u.t.Helper()
	for _, pid := range pids {
		await.True(u.t, func() bool {
			status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			_, state, _ := bytes.Cut(status, []byte(") "))
			return err != nil || state[0] == 'Z' // nobody may wait for it
		})
	}
}

// A program that does not start, or does not take over, leaves all as it was.
func TestListenIsNotUpgraded(t *testing.T) {
	t.Parallel()
	u := serveUpgradable(t, nil, "-d")
	s := u.dial()
	s.send(t, "a")
	u.out.Find(t, "(a)")
	for program, why := range map[string]string{
		"nothing\x00that runs":                 "exec format error",
		"#!/bin/sh\nexit 3\n":                  "the new process has ended: exit status 3",
		"#!/bin/sh\nprintf t >&4\nsleep 0.1\n": "hand over .*the new process has ended: exit status 0",
	} {
		u.replace([]byte(program))
		u.hangUp(u.cmd.Process.Pid)
		u.says("(kcp listen: not upgraded: [^\n]*" + why + "\n)")
	}
	s.send(t, "b")
	s.end(t)
	u.out.Find(t, "(^ab$)")
	next := u.dial()
	next.send(t, "c")
	u.out.Find(t, "(^abc$)")
	u.restore()
	newest := u.upgrade(u.cmd.Process.Pid)
	next.end(t)
	u.ends(u.cmd.Process.Pid)
	last := u.dial()
	last.send(t, "d")
	last.end(t)
	u.out.Find(t, "(^abcd$)")
	u.hangUp(newest)
	u.says("(has taken over)")
}

// What is read from stdin belongs to one process.
func TestListenReadsStdin(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	u := serveUpgradable(t, r)
	u.hangUp(u.cmd.Process.Pid)
	u.says("(not upgraded: this process reads standard input; use -d\n)")
	d := u.dial()
	_, err = w.WriteString("stdin")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	d.end(t)
	require.Equal(t, "stdin", d.out.String())
	u.upgrade(u.cmd.Process.Pid)
	u.ends(u.cmd.Process.Pid)
}

// SIGHUP goes on to the process that has taken over. If that has failed, another one is
// started.
func TestListenUpgradesAgain(t *testing.T) {
	t.Parallel()
	u := serveUpgradable(t, nil, "-d")
	s := u.dial()
	s.send(t, "a")
	u.out.Find(t, "(a)")
	second := u.upgrade(u.cmd.Process.Pid)
	third := u.upgrade(u.cmd.Process.Pid)
	u.ends(second)
	require.NotEqual(t, second, third)
	s.send(t, "b")
	u.out.Find(t, "(^ab$)")
	s.end(t)
	u.ends(u.cmd.Process.Pid)

	next := u.dial()
	next.send(t, "c")
	u.out.Find(t, "(^abc$)")
	fourth := u.upgrade(third)
	require.NoError(t, syscall.Kill(fourth, syscall.SIGKILL))
	u.says("(the process that has taken over: signal: killed; SIGHUP starts another\n)")
	next.send(t, "d")
	u.out.Find(t, "(^abcd$)")
	u.upgrade(third)
	next.end(t)
	last := u.dial()
	last.send(t, "e")
	last.end(t)
	u.out.Find(t, "(^abcde$)")
}
