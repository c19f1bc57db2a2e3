package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// process is a program in a process of its own.
type process struct {
	cmd      *exec.Cmd
	out, err *output
	ended    chan struct{} // closed when it has
}

// run runs the command in a process, with more environment, until the test ends.
func run(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return runProgram(t, os.Args[0], env, args...)
}

// runProgram is run for the program in a file.
func runProgram(t *testing.T, exe string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(exe, args...), out: new(output), err: new(output), ended: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with those that it starts
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			t.Logf("%q:\n%s", args[0], p.err)
		}
	})
	return p
}

// lives reports whether a process is there, and is no zombie.
func lives(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(state), ") Z ")
}

// systemd is a socket in place of systemd's.
type systemd struct{ conn *net.UnixConn }

func newSystemd(t *testing.T) (*systemd, []string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &systemd{conn}, []string{"NOTIFY_SOCKET=" + name}
}

// ready waits until a process says that it is the main one, and returns its number.
func (s *systemd) ready(t *testing.T) int {
	t.Helper()
	b := make([]byte, 1000)
	for {
		n, err := s.conn.Read(b)
		require.NoError(t, err)
		if text, ok := strings.CutPrefix(string(b[:n]), "MAINPID="); ok {
			require.Contains(t, text, "\nREADY=1\n")
			pid, err := strconv.Atoi(text[:strings.IndexByte(text, '\n')])
			require.NoError(t, err)
			return pid
		}
	}
}

// A server is replaced several times while connections of each kind carry bytes through a
// link that loses 2 %. None of them ends, and each has its own bytes. With the
// newest process all end.
func TestUpgrades(t *testing.T) {
	times, conns, every := 3, 10, 100*time.Millisecond
	if os.Getenv("KCP_UPGRADES") != "" { // as the field asks for: five in a minute
		times, conns, every = 5, 100, 12*time.Second
	}
	target := "127.0.0.1:" + port(t)
	(*host)(nil).echoes(t, target)
	notified, env := newSystemd(t)
	users, key := file(t, "users.json", `{"me:secret": [""]}`), filepath.Join(t.TempDir(), "server.pem")
	debug, reverse, proxy, packets := "127.0.0.1:"+port(t), "127.0.0.1:"+port(t), "127.0.0.1:"+port(t), "127.0.0.1:"+port(t)
	s := run(t, env, "server", "-auth", users, "-key", key, "-debug", debug, "127.0.0.1:0")
	pids := []int{notified.ready(t)}
	require.Equal(t, s.cmd.Process.Pid, pids[0])
	server := find(t, s.err, `listening address=(\S+)`)
	fingerprint := find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	link := netsim.LinkConfig{Delay: 5 * time.Millisecond, Loss: 0.02}
	relay, err := netsim.NewRelay(server, link, link, 1)
	require.NoError(t, err)
	defer relay.Close()
	forward, local, flows := "127.0.0.1:"+port(t), "127.0.0.1:"+port(t), "127.0.0.1:"+port(t)
	c := run(t, nil, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", relay.Addr().String(),
		forward+":"+target, local+":socks", flows+":"+target+"/udp", "R:"+reverse+":"+target, "R:"+proxy+":socks", "R:"+packets+":"+target+"/udp")
	find(t, c.err, `(?s)(the server listens.*){3}`)

	var running sync.WaitGroup
	failed, stop, rounds := make(chan error, 8*conns+2), make(chan struct{}), new(atomic.Int64)
	for range conns {
		for _, one := range []struct {
			network, at string
			socks       bool
		}{
			{"tcp", forward, false}, {"tcp", local, true}, {"udp", flows, false}, {"udp", local, true},
			{"tcp", reverse, false}, {"tcp", proxy, true}, {"udp", packets, false}, {"udp", proxy, true},
		} {
			conn := openAt(t, nil, one.network, one.at, target, one.socks)
			running.Go(func() {
				failed <- talks(conn, one.network == "udp", stop, rounds)
				_ = conn.Close()
			})
		}
	}
	waits := func() {
		now := rounds.Load()
		await.True(t, func() bool { return rounds.Load() >= now+int64(50*conns) || len(failed) > 0 })
		select {
		case err := <-failed:
			require.NoError(t, err)
			t.Fatal("ended")
		default:
		}
	}
	for _, address := range []string{forward, reverse} { // new ones all the time
		running.Go(func() { failed <- begins(address, stop) })
	}
	waits()
	for range times {
		require.NoError(t, syscall.Kill(pids[len(pids)-1], syscall.SIGUSR2))
		pids = append(pids, notified.ready(t))
		waits()
		select {
		case <-time.After(every):
		case err := <-failed:
			require.NoError(t, err)
		}
	}
	await.True(t, func() bool {
		r, err := http.Get("http://" + debug + "/metrics")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return err == nil && strings.Contains(string(b), "kcp_sessions")
	})
	require.True(t, lives(pids[0]), "it has connections")
	close(stop)
	running.Wait()
	for range 8*conns + 2 {
		require.NoError(t, <-failed)
	}
	transfers(t, forward, 10_000)
	transfers(t, reverse, 10_000)
	require.NoError(t, syscall.Kill(pids[times], syscall.SIGTERM))
	for _, pid := range pids { // those before have flows that are not idle yet
		await.True(t, func() bool { return !lives(pid) })
	}
}

// begins begins one connection after the other, and sends a little through each.
func begins(address string, stop <-chan struct{}) error {
	for n := uint32(0); ; n++ {
		select {
		case <-stop:
			return nil
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		want := content(100 + n%100)
		_, err = conn.Write(want)
		got := make([]byte, len(want))
		if err == nil {
			_, err = io.ReadFull(conn, got)
		}
		_ = conn.Close()
		if err != nil {
			return fmt.Errorf("connection %d with %s: %w", n, address, err)
		}
		if string(got) != string(want) {
			return errors.New("other bytes")
		}
	}
}

// A program that was started through a link is replaced by what the link leads to then.
func TestUpgradeThroughALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	link := filepath.Join(dir, "kcptunnel")
	lead := func(to string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), program, 0o700))
		require.NoError(t, os.Symlink(to, link+".new"))
		require.NoError(t, os.Rename(link+".new", link))
	}
	lead("kcptunnel-1")
	users, key := file(t, "users.json", `{"me:secret": [""]}`), filepath.Join(dir, "server.pem")
	for i, env := range [][]string{nil, {"PATH=" + dir + ":/usr/bin:/bin"}} {
		notified, more := newSystemd(t)
		exe := link
		if i == 1 {
			exe = "/usr/bin/env"
		}
		args := []string{"server", "-auth", users, "-key", key, "127.0.0.1:0"}
		if i == 1 {
			args = append([]string{"kcptunnel"}, args...)
		}
		runProgram(t, exe, append(more, env...), args...)
		first := notified.ready(t)
		lead(fmt.Sprintf("kcptunnel-%d", i+2))
		require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
		runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", notified.ready(t)))
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, fmt.Sprintf("kcptunnel-%d", i+2)), runs)
	}
}

// A program that does not start, or takes over nothing, leaves all as it was.
func TestUpgradeToNothing(t *testing.T) {
	t.Parallel()
	at := echo(t)
	dir := t.TempDir()
	exe := filepath.Join(dir, "kcptunnel")
	program, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	install := func(text []byte) { // as install(1): another file of that name
		require.NoError(t, os.WriteFile(exe+".new", text, 0o700))
		require.NoError(t, os.Rename(exe+".new", exe))
	}
	install(program)
	notified, env := newSystemd(t)
	s := runProgram(t, exe, env, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(dir, "server.pem"), "127.0.0.1:0")
	first := notified.ready(t)
	server, fingerprint := find(t, s.err, `listening address=(\S+)`), find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	c := start(t, "client", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
	local := find(t, c.err, `msg=listening .*address=(\S+)`)
	for i, text := range []string{"no program\x00", "#!/bin/sh\nexit 3\n", "#!/bin/sh\nprintf t >&5\nexit 4\n"} {
		install([]byte(text))
		require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
		await.True(t, func() bool { return strings.Count(s.err.String(), "not upgraded") == i+1 })
		transfers(t, local, 1000)
	}
	install(program)
	require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
	second := notified.ready(t)
	transfers(t, local, 1000)
	require.NotEqual(t, first, second)
	await.True(t, func() bool { return !lives(first) })
}

// heedsHangUp skips a test if SIGHUP is ignored, as under nohup: programs keep that.
func heedsHangUp(t *testing.T) {
	t.Helper()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("SIGHUP is ignored")
	}
}

// A reload at the newest process revokes what it does in those before, and a signal to an
// old one reaches the newest.
func TestReloadAcrossUpgrades(t *testing.T) {
	heedsHangUp(t)
	at := echo(t)
	notified, env := newSystemd(t)
	users := file(t, "users.json", `{"me:secret": [""]}`)
	s := run(t, env, "server", "-auth", users, "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	first := notified.ready(t)
	server, fingerprint := find(t, s.err, `listening address=(\S+)`), find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	c := start(t, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
	local := find(t, c.err, `msg=listening .*address=(\S+)`)
	conn, err := net.Dial("tcp", local)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "x")
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
	second := notified.ready(t)
	find(t, s.err, `another process serves`)
	require.NoError(t, os.WriteFile(users, []byte(`{"you:secret": [""]}`), 0o600))
	require.NoError(t, syscall.Kill(first, syscall.SIGHUP))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	await.True(t, func() bool { return strings.Count(s.err.String(), "users reloaded") == 2 })
	require.True(t, lives(second))
}

// Signals that arrive while a new process begins are not lost: they reach that, which may
// have read the files before they changed.
func TestSignalsDuringAnUpgrade(t *testing.T) {
	heedsHangUp(t)
	dir := t.TempDir()
	exe, begun, on := filepath.Join(dir, "kcptunnel"), filepath.Join(dir, "begun"), filepath.Join(dir, "on")
	program, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	install := func(name string, text []byte) {
		require.NoError(t, os.WriteFile(name+".new", text, 0o700))
		require.NoError(t, os.Rename(name+".new", name))
	}
	install(exe, program)
	notified, env := newSystemd(t)
	users := file(t, "users.json", `{"me:secret": [""]}`)
	s := runProgram(t, exe, env, "server", "-auth", users, "-key", filepath.Join(dir, "server.pem"), "127.0.0.1:0")
	first := notified.ready(t)
	install(exe+"2", program)
	slow := fmt.Sprintf("#!/bin/sh\n: >%s\nwhile [ ! -e %s ]; do sleep 0.01; done\nexec %s2 \"$@\"\n", begun, on, exe)
	install(exe, []byte(slow))
	require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
	await.True(t, func() bool { _, err := os.Stat(begun); return err == nil })
	require.NoError(t, syscall.Kill(first, syscall.SIGHUP))
	find(t, s.err, "users reloaded")
	require.NoError(t, syscall.Kill(first, syscall.SIGHUP))
	require.NoError(t, os.WriteFile(on, nil, 0o600))
	second := notified.ready(t)
	require.NotEqual(t, first, second)
	await.True(t, func() bool { return strings.Count(s.err.String(), "users reloaded") >= 3 })
}

// A signal that arrives while the program begins does not end it.
func TestSignalAtTheStart(t *testing.T) {
	heedsHangUp(t)
	users := filepath.Join(t.TempDir(), "users.json")
	require.NoError(t, syscall.Mkfifo(users, 0o600))
	s := run(t, nil, "server", "-auth", users, "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	for i := range 2 { // at the start, and as the signal wants
		f, err := os.OpenFile(users, os.O_WRONLY, 0) // waits for the program
		require.NoError(t, err)
		if i == 0 {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
		}
		_, err = io.WriteString(f, `{"me:secret": [""]}`)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		find(t, s.err, "msg=listening")
	}
	find(t, s.err, "users reloaded")
	require.True(t, lives(s.cmd.Process.Pid))
}

// When a process in the middle is killed, the one before it has nobody to hand over to,
// as another one serves. It goes on for its connections, says so, and tries no more.
func TestMiddleProcessIsKilled(t *testing.T) {
	t.Parallel()
	at := echo(t)
	notified, env := newSystemd(t)
	s := run(t, env, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	first := notified.ready(t)
	server, fingerprint := find(t, s.err, `listening address=(\S+)`), find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	c := start(t, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
	local := find(t, c.err, `msg=listening .*address=(\S+)`)
	open := func() net.Conn {
		conn, err := net.Dial("tcp", local)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	echoes := func(conn net.Conn) error {
		_, err := io.WriteString(conn, "x")
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		return err
	}
	pids, conns := []int{first}, []net.Conn{open()}
	require.NoError(t, echoes(conns[0]))
	for i := range 2 {
		require.NoError(t, syscall.Kill(pids[i], syscall.SIGUSR2))
		pids = append(pids, notified.ready(t))
		await.True(t, func() bool { return strings.Count(c.err.String(), "session begun") == i+2 })
		conns = append(conns, open())
		require.NoError(t, echoes(conns[i+1]))
	}
	require.NoError(t, syscall.Kill(pids[1], syscall.SIGKILL))
	find(t, s.err, "another process has taken over")
	require.Error(t, echoes(conns[1]))
	require.NoError(t, echoes(conns[0]))
	require.NoError(t, echoes(conns[2]))
	transfers(t, local, 1000)
	require.NotContains(t, s.err.String(), "another one is started")
}

// SIGTERM at the newest process ends all, and none is begun again, although one before it
// still waits for a client that does not answer.
func TestEndAfterAnUpgrade(t *testing.T) {
	t.Parallel()
	at := echo(t)
	notified, env := newSystemd(t)
	s := run(t, env, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	first := notified.ready(t)
	server, fingerprint := find(t, s.err, `listening address=(\S+)`), find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	c := run(t, nil, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
	conn, err := net.Dial("tcp", find(t, c.err, `msg=listening .*address=(\S+)`))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "x")
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
	second := notified.ready(t)
	find(t, c.err, "(?s)session begun.*session begun")
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, syscall.Kill(second, syscall.SIGTERM))
	<-s.ended
	require.False(t, lives(second))
	require.NotContains(t, s.err.String(), "is started")
	require.Equal(t, 2, strings.Count(s.err.String(), "msg=listening address="))
}

// When the process that serves dies, and the one before it has no socket any more as its
// sessions have gone, all end: whoever began the first one can begin it again.
func TestLastProcessIsKilled(t *testing.T) {
	t.Parallel()
	at := echo(t)
	notified, env := newSystemd(t)
	s := run(t, env, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	pids := []int{notified.ready(t)}
	server, fingerprint := find(t, s.err, `listening address=(\S+)`), find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	c := start(t, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
	conn, err := net.Dial("tcp", find(t, c.err, `msg=listening .*address=(\S+)`))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "x")
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	require.NoError(t, err)
	for i := range 2 {
		require.NoError(t, syscall.Kill(pids[i], syscall.SIGUSR2))
		pids = append(pids, notified.ready(t))
		await.True(t, func() bool { return strings.Count(c.err.String(), "session begun") == i+2 })
	}
	find(t, s.err, "session ended") // of the second
	require.True(t, lives(pids[1]), "it waits for the first")
	require.NoError(t, syscall.Kill(pids[2], syscall.SIGKILL))
	for _, pid := range pids {
		await.True(t, func() bool { return !lives(pid) })
	}
	require.Contains(t, s.err.String(), "this one has no socket")
}

// A socket of systemd's is used in place of the address.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	at := echo(t)
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	socket, err := pc.File()
	require.NoError(t, err)
	defer socket.Close()
	address := pc.LocalAddr().String()
	require.NoError(t, pc.Close())
	notified, env := newSystemd(t)
	p := &process{out: new(output), err: new(output)}
	// The number of a process is known to itself alone before it runs.
	p.cmd = exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0],
		"server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), ":1")
	p.cmd.Env = append(append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1", "LISTEN_FDS=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = p.out, p.err, []*os.File{socket}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.cmd.Start())
	defer func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Wait()
	}()
	first := notified.ready(t)
	require.Equal(t, address, find(t, p.err, `listening address=(\S+)`))
	c := start(t, "client", "-fingerprint", find(t, p.out, `fingerprint (SHA256:\S+)\n`), "-auth", "me:secret", address, "0:"+at)
	local := find(t, c.err, `msg=listening .*address=(\S+)`)
	transfers(t, local, 1000)
	require.NoError(t, syscall.Kill(first, syscall.SIGUSR2))
	second := notified.ready(t)
	await.True(t, func() bool { return !lives(first) })
	transfers(t, local, 1000)
	require.True(t, lives(second))
}

// SIGHUP, with which units reload, ends no client that runs without a terminal, and has
// it read its certificate again. It ends one that carries standard input, as ssh wants.
func TestHangUpOfClients(t *testing.T) {
	heedsHangUp(t)
	t.Parallel()
	at := echo(t)
	s := start(t, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	server, fingerprint := find(t, s.err, `listening address=(\S+)`), find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	var all []*process
	for _, args := range [][]string{
		{"client", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:" + at},
		{"kcptun-client", "-l", "127.0.0.1:0", "-r", "127.0.0.1:1"},
		{"kcptun-server", "-l", "127.0.0.1:0"},
	} {
		p := run(t, nil, args...)
		find(t, p.err, `msg=listening`)
		all = append(all, p)
	}
	for range 2 {
		for i, p := range all {
			before := strings.Count(p.err.String(), "nothing to reload")
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
			await.True(t, func() bool {
				return strings.Count(p.err.String(), "nothing to reload") > before || !lives(p.cmd.Process.Pid)
			})
			require.True(t, lives(p.cmd.Process.Pid), "%d", i)
		}
	}
	transfers(t, find(t, all[0].err, `msg=listening .*address=(\S+)`), 1000)

	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	ssh := exec.Command(os.Args[0], "client", "-fingerprint", fingerprint, "-auth", "me:secret", server, "stdio:"+at)
	ssh.Env = append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1")
	ssh.Stdin = r
	said := new(output)
	ssh.Stderr = said
	require.NoError(t, ssh.Start())
	find(t, said, `session begun`)
	before := strings.Count(s.err.String(), "closed by the peer")
	require.NoError(t, ssh.Process.Signal(syscall.SIGHUP))
	require.NoError(t, ssh.Wait(), "in order, so that the server knows")
	await.True(t, func() bool { return strings.Count(s.err.String(), "closed by the peer") > before })
}

// Whoever reads what the program writes may go away: a server, whose log that is, serves
// on, and a client with stdio ends its session in order.
func TestReadersThatEnd(t *testing.T) {
	t.Parallel()
	at := echo(t)
	logs, log, err := os.Pipe()
	require.NoError(t, err)
	defer log.Close()
	out := new(output)
	s := exec.Command(os.Args[0], "server", "-v", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	s.Env, s.Stdout, s.Stderr = append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1"), out, log
	require.NoError(t, s.Start())
	defer func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	}()
	scan := bufio.NewReader(logs)
	server := ""
	for server == "" {
		line, err := scan.ReadString('\n')
		require.NoError(t, err)
		_, rest, _ := strings.Cut(line, "msg=listening address=")
		server, _, _ = strings.Cut(rest, " ")
	}
	fingerprint := find(t, out, `fingerprint (SHA256:\S+)\n`)
	waits := start(t, "client", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
	local := find(t, waits.err, `msg=listening .*address=(\S+)`)
	transfers(t, local, 1000)

	r, w, err := os.Pipe()
	require.NoError(t, err)
	in, give, err := os.Pipe()
	require.NoError(t, err)
	defer give.Close()
	ssh := exec.Command(os.Args[0], "client", "-fingerprint", fingerprint, "-auth", "me:secret", server, "stdio:"+at)
	ssh.Env, ssh.Stdin, ssh.Stdout = append(os.Environ(), "KCPTUNNEL_TEST_MAIN=1"), in, w
	require.NoError(t, ssh.Start())
	require.NoError(t, w.Close())
	_, err = io.WriteString(give, "hello")
	require.NoError(t, err)
	_, err = io.ReadFull(r, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, r.Close())
	_, err = io.WriteString(give, "hello")
	require.NoError(t, err)
	_ = ssh.Wait()
	require.Equal(t, exitFailed, ssh.ProcessState.ExitCode(), "%v", ssh.ProcessState)
	for {
		line, err := scan.ReadString('\n')
		require.NoError(t, err)
		if strings.Contains(line, "session ended") {
			require.Contains(t, line, "closed by the peer")
			break
		}
	}

	require.NoError(t, logs.Close())
	for range 20 {
		transfers(t, local, 1000)
	}
}

// A reverse remote is served again soon after its client was killed and begun again.
func TestReverseAfterKill(t *testing.T) {
	at, reverse := echo(t), "127.0.0.1:"+port(t)
	s := run(t, nil, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	args := []string{"client", "-fingerprint", find(t, s.out, `fingerprint (SHA256:\S+)\n`), "-auth", "me:secret", find(t, s.err, `listening address=(\S+)`), "R:" + reverse + ":" + at}
	c := run(t, nil, args...)
	find(t, c.err, "the server listens")
	var longest time.Duration
	for range 5 {
		transfers(t, reverse, 1000)
		require.NoError(t, c.cmd.Process.Kill())
		killed := time.Now()
		<-c.ended
		c = run(t, nil, args...)
		find(t, c.err, "the server listens")
		transfers(t, reverse, 1000)
		longest = max(longest, time.Since(killed))
	}
	t.Logf("served again after %v at the latest", longest.Round(time.Millisecond))
}
