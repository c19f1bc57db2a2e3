package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// The processes are this test binary.
const asServer = "UPGRADE_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// service is a program, and processes that start one another.
type service struct {
	*testing.T
	program string // may be replaced
	addr    string
	first   int // process id
	log     testenv.Records
	systemd *net.UnixConn
}

func start(t *testing.T) *service {
	dir, err := os.MkdirTemp("", "kcp") // t.TempDir may be too long for the name of a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &service{T: t, program: filepath.Join(dir, "server")}
	s.installServer()
	notifications := filepath.Join(dir, "notify")
	s.systemd, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notifications, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.systemd.Close() })
	cmd := exec.Command(s.program, "-addr", "127.0.0.1:0", "-pid", filepath.Join(dir, "pid"))
	cmd.Env = append(os.Environ(), asServer+"=1", "NOTIFY_SOCKET="+notifications)
	cmd.Stderr, cmd.SysProcAttr = &s.log, &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	s.first = cmd.Process.Pid
	t.Cleanup(func() {
		_ = syscall.Kill(-s.first, syscall.SIGKILL) // all of them
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	s.addr = s.log.Find(t, `serving on (\S+)`)
	require.Equal(t, s.first, s.ready())
	return s
}

// install puts a file in place of the program.
func (s *service) install(content []byte) {
	s.Helper()
	// A process that is started meanwhile would have the file open for writing, for a
	// moment in which it cannot be executed.
	syscall.ForkLock.RLock()
	err := os.WriteFile(s.program+".new", content, 0o755)
	syscall.ForkLock.RUnlock()
	require.NoError(s, err)
	require.NoError(s, os.Rename(s.program+".new", s.program))
}

func (s *service) installServer() {
	s.Helper()
	exe, err := os.Executable()
	require.NoError(s, err)
	b, err := os.ReadFile(exe)
	require.NoError(s, err)
	s.install(b)
}

// ready returns the process that tells systemd that it serves. Its id is in the file, too.
func (s *service) ready() (pid int) {
	s.Helper()
	b := make([]byte, 100)
	n, err := s.systemd.Read(b)
	require.NoError(s, err)
	_, err = fmt.Sscanf(string(b[:n]), "MAINPID=%d\nREADY=1", &pid)
	require.NoError(s, err, "%q", b[:n])
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.program), "pid"))
	require.NoError(s, err)
	require.Equal(s, fmt.Sprintln(pid), string(text))
	return pid
}

// client is a session with a server.
type client struct {
	*kcp.Conn
	*bufio.Reader
}

func (s *service) join() *client {
	s.Helper()
	conn, err := kcp.Dial("udp", s.addr, config)
	require.NoError(s, err)
	s.Cleanup(func() { _ = conn.Abort(0, "") })
	return &client{conn, bufio.NewReader(conn)}
}

// talks checks that a client is with a process.
func (s *service) talks(c *client, pid int) {
	s.Helper()
	_, err := fmt.Fprintln(c.Conn, "hello")
	require.NoError(s, err)
	answer, err := c.ReadString('\n')
	require.NoError(s, err)
	require.Equal(s, fmt.Sprintf("%d: hello\n", pid), answer)
}

// Clients stay with their processes while others come, and each new client is with the
// newest. A process that was replaced ends with its last client.
func TestClientsOutliveUpgrades(t *testing.T) {
	t.Parallel()
	s := start(t)
	pids, clients := []int{s.first}, []*client{s.join()}
	for i := range 3 {
		require.NoError(t, syscall.Kill(pids[i], syscall.SIGHUP))
		pids = append(pids, s.ready())
		s.log.Find(t, fmt.Sprintf(`upgrade\[%d\]: another process has taken over`, pids[i]))
		clients = append(clients, s.join())
		for i, c := range clients {
			s.talks(c, pids[i])
		}
	}
	for _, i := range []int{1, 0, 2} {
		require.NoError(t, clients[i].Close())
		s.log.Find(t, fmt.Sprintf(`upgrade\[%d\]: the last client has left`, pids[i]))
		s.talks(clients[3], pids[3])
	}
	require.NoError(t, syscall.Kill(pids[3], syscall.SIGTERM))
	_, err := clients[3].ReadString('\n')
	require.Equal(t, io.EOF, err)
}

// A program that does not start, or does not take over, leaves all as it was.
func TestProgramsThatFail(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.join()
	for program, why := range map[string]string{
		"nothing\x00that runs":                      "exec format error",
		"#!/bin/sh\nexit 3\n":                       "exit status 3",
		"#!/bin/sh\nprintf t >&3\nexit 4\n":         "hand over .*exit status 4",
		"#!/bin/sh\nprintf t >&3\nexec sleep 100\n": "hand over .*signal: killed",
	} {
		s.install([]byte(program))
		require.NoError(t, syscall.Kill(s.first, syscall.SIGHUP))
		s.log.Find(t, "not upgraded: .*"+why)
		s.talks(c, s.first)
		s.talks(s.join(), s.first)
	}
	s.installServer()
	require.NoError(t, syscall.Kill(s.first, syscall.SIGHUP))
	newest := s.ready()
	s.talks(s.join(), newest)
	s.talks(c, s.first)
}
