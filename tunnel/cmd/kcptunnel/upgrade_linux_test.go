package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// A server is replaced several times. What was connected goes on, new connections and the
// live page are at the newest process. A reload reaches all of them, whichever has the
// signal. When one in the middle is killed, the one before it has nobody to hand over to,
// as another one serves: it goes on for its connections, says so, and tries no more. With
// the newest the others end.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	debug := testenv.FreeAddress(t)
	u := newUnit(t, "", "-debug", debug)
	metrics := func() string {
		r, err := http.Get("http://" + debug + "/metrics")
		require.NoError(t, err) // at no time
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, u.cmd.Process.Pid, u.pids[0])
	c, local := u.connect(t, "0:"+testenv.Target(t, testenv.Echo))
	conns := []net.Conn{open(t, local)}
	for n := range 3 {
		u.upgrade()
		testenv.Await(t, func() bool { return strings.Count(c.err.String(), "session begun") == n+2 })
		conns = append(conns, open(t, local))
		for _, conn := range conns {
			require.NoError(t, echoes(conn))
		}
		testenv.Await(t, func() bool { // of all processes
			text := metrics()
			for _, pid := range u.pids[:n+1] {
				if !strings.Contains(text, fmt.Sprintf(`kcptunnel_sessions{before="%d",user="me"} 1`, pid)) {
					return false
				}
			}
			return strings.Contains(text, "\nkcptunnel_sessions{user=\"me\"} 1")
		})
	}
	if !signal.Ignored(syscall.SIGHUP) {
		u.signal(0, syscall.SIGHUP)
		testenv.Await(t, func() bool { return strings.Count(u.err.String(), "users reloaded") == len(u.pids) })
	}
	u.signal(1, syscall.SIGKILL)
	u.err.Find(t, "another process has taken over")
	for i, conn := range conns {
		require.Equal(t, i == 1, echoes(conn) != nil, i)
	}
	exchange(t, local, 1000)
	require.NotContains(t, u.err.String(), "another one is started")
	require.NoError(t, conns[0].Close())
	u.gone(0, 1)
	u.signal(3, syscall.SIGTERM)
	u.gone(2, 3)
}

// A program that was started through a link is replaced by what the link leads to then.
func TestUpgradeThroughALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "kcptunnel")
	lead := func(to string) {
		install(t, filepath.Join(dir, to), ownProgram(t))
		require.NoError(t, os.Symlink(to, link+".new"))
		require.NoError(t, os.Rename(link+".new", link))
	}
	lead("kcptunnel-1")
	for i, by := range []string{link, "/usr/bin/env"} {
		u := prepare(t)
		env, args := u.env(), u.args()
		if i == 1 {
			env, args = append(env, "PATH="+dir+":/usr/bin:/bin"), append([]string{"kcptunnel"}, args...)
		}
		u.process = run(t, by, env, args...)
		u.ready()
		lead(fmt.Sprintf("kcptunnel-%d", i+2))
		u.upgrade()
		runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", u.pids[1]))
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, fmt.Sprintf("kcptunnel-%d", i+2)), runs)
	}
}

// A program that does not start, or takes over nothing, leaves all as it was.
func TestUpgradeToNothing(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "kcptunnel")
	install(t, exe, ownProgram(t))
	u := newUnit(t, exe)
	_, local := u.connect(t, "0:"+testenv.Target(t, testenv.Echo))
	for i, text := range []string{"no program\x00", "#!/bin/sh\nexit 3\n", "#!/bin/sh\nprintf t >&5\nexit 4\n"} {
		install(t, exe, []byte(text))
		u.signal(0, syscall.SIGUSR2)
		testenv.Await(t, func() bool { return strings.Count(u.err.String(), "not upgraded") == i+1 })
		exchange(t, local, 1000)
	}
	install(t, exe, ownProgram(t))
	u.upgrade()
	exchange(t, local, 1000)
	u.gone(0)
}

// Signals that arrive while a new process begins are not lost: they reach that, which may
// have read the files before they changed.
func TestSignalsDuringAnUpgrade(t *testing.T) {
	heedsHangUp(t)
	t.Parallel()
	dir := t.TempDir()
	exe, begun, on := filepath.Join(dir, "kcptunnel"), filepath.Join(dir, "begun"), filepath.Join(dir, "on")
	install(t, exe, ownProgram(t))
	u := newUnit(t, exe)
	install(t, exe+"2", ownProgram(t))
	install(t, exe, fmt.Appendf(nil, "#!/bin/sh\n: >%s\nwhile [ ! -e %s ]; do sleep 0.01; done\nexec %s2 \"$@\"\n", begun, on, exe))
	u.signal(0, syscall.SIGUSR2)
	testenv.Await(t, func() bool { _, err := os.Stat(begun); return err == nil })
	u.signal(0, syscall.SIGHUP)
	u.err.Find(t, "users reloaded")
	u.signal(0, syscall.SIGHUP)
	require.NoError(t, os.WriteFile(on, nil, 0o600))
	u.ready()
	testenv.Await(t, func() bool { return strings.Count(u.err.String(), "users reloaded") >= 3 })
}

// A signal that arrives while the program begins does not end it.
func TestSignalAtTheStart(t *testing.T) {
	heedsHangUp(t)
	t.Parallel()
	users := filepath.Join(t.TempDir(), "users.json")
	require.NoError(t, syscall.Mkfifo(users, 0o600))
	s := run(t, "", nil, "server", "-auth", users, "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	for i := range 2 { // at the start, and as the signal wants
		f, err := os.OpenFile(users, os.O_WRONLY, 0) // waits for the program
		require.NoError(t, err)
		if i == 0 {
			require.NoError(t, s.cmd.Process.Signal(syscall.SIGHUP))
		}
		_, err = io.WriteString(f, `{"me:secret": [""]}`)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		s.err.Find(t, "msg=listening")
	}
	s.err.Find(t, "users reloaded")
	require.True(t, lives(s.cmd.Process.Pid))
}

// SIGTERM at the newest process ends all, and none is begun again, although one before it
// still waits for a client that does not answer.
func TestEndAfterAnUpgrade(t *testing.T) {
	t.Parallel()
	u := newUnit(t, "")
	c := run(t, "", nil, u.client("me:secret", "0:"+testenv.Target(t, testenv.Echo))...)
	_ = open(t, c.err.Find(t, `msg=listening .*address=(\S+)`))
	u.upgrade()
	c.err.Find(t, "(?s)session begun.*session begun")
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	u.signal(1, syscall.SIGTERM)
	said := make([]byte, 100)
	n, err := u.notify.Read(said)
	require.NoError(t, err)
	require.Equal(t, "STOPPING=1", string(said[:n]))
	<-u.ended
	require.False(t, lives(u.pids[1]))
	require.NotContains(t, u.err.String(), "is started")
	require.Equal(t, 2, strings.Count(u.err.String(), "msg=listening address="))
}

// When the process that serves dies, and the one before it has no socket any more as its
// sessions have gone, all end: whoever began the first one can begin it again.
func TestLastProcessIsKilled(t *testing.T) {
	t.Parallel()
	u := newUnit(t, "")
	c, local := u.connect(t, "0:"+testenv.Target(t, testenv.Echo))
	_ = open(t, local)
	for n := range 2 {
		u.upgrade()
		testenv.Await(t, func() bool { return strings.Count(c.err.String(), "session begun") == n+2 })
	}
	u.err.Find(t, "session ended") // of the second
	require.True(t, lives(u.pids[1]), "it waits for the first")
	u.signal(2, syscall.SIGKILL)
	u.gone(0, 1, 2)
	u.err.Find(t, "this one has no socket")
}

// Sockets of systemd's are used in place of the address.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	socket, err := pc.File()
	require.NoError(t, err)
	defer socket.Close()
	address := pc.LocalAddr().String()
	require.NoError(t, pc.Close())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	stream, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	defer stream.Close()
	require.NoError(t, l.Close())
	u := prepare(t)
	// The number of a process is known to itself alone before it runs.
	args := append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0]}, u.args()...)
	u.process = &process{cmd: exec.Command("sh", args...), out: new(testenv.Records), err: new(testenv.Records)}
	u.cmd.Stdout, u.cmd.Stderr, u.cmd.ExtraFiles = u.out, u.err, []*os.File{stream, socket}
	u.start(t, append(u.env(), "LISTEN_FDS=2"))
	u.ready()
	require.Equal(t, address, u.address)
	require.Equal(t, l.Addr().String(), u.err.Find(t, `listening address=\S+ tcp=(\S+)`))
	_, local := u.connect(t, "0:"+testenv.Target(t, testenv.Echo))
	exchange(t, local, 1000)
	u.upgrade()
	u.gone(0)
	exchange(t, local, 1000)
	u.served.address = l.Addr().String() // the next process has the socket of TCP as well
	_, local = u.connect(t, "0:"+testenv.Target(t, testenv.Echo))
	exchange(t, local, 1000)
	require.True(t, lives(u.pids[1]))
}

// SIGHUP, with which units reload, ends no client that runs without a terminal, and has
// it read its certificate again. It ends one that carries standard input, as ssh wants.
func TestHangUpOfClients(t *testing.T) {
	heedsHangUp(t)
	t.Parallel()
	u := newUnit(t, "")
	at := testenv.Target(t, testenv.Echo)
	for i, args := range [][]string{
		u.client("me:secret", "0:"+at), {"kcptun-client", "-l", "127.0.0.1:0", "-r", "127.0.0.1:1"}, {"kcptun-server", "-l", "127.0.0.1:0"},
	} {
		p := run(t, "", nil, args...)
		p.err.Find(t, `msg=listening`)
		for n := range 2 {
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
			testenv.Await(t, func() bool {
				return strings.Count(p.err.String(), "nothing to reload") > n || !lives(p.cmd.Process.Pid)
			})
			require.True(t, lives(p.cmd.Process.Pid), "%d", i)
		}
		if i == 0 {
			exchange(t, p.err.Find(t, `msg=listening .*address=(\S+)`), 1000)
		}
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	ssh := &process{cmd: exec.Command(os.Args[0], u.client("me:secret", "stdio:"+at)...), err: new(testenv.Records)}
	ssh.cmd.Stdin, ssh.cmd.Stderr = r, ssh.err
	ssh.start(t, nil)
	ssh.err.Find(t, `session begun`)
	before := strings.Count(u.err.String(), "its program ends")
	require.NoError(t, ssh.cmd.Process.Signal(syscall.SIGHUP))
	<-ssh.ended
	require.Zero(t, ssh.cmd.ProcessState.ExitCode(), "in order, so that the server knows")
	testenv.Await(t, func() bool { return strings.Count(u.err.String(), "its program ends") > before })
}

// Whoever reads what the program writes may go away: a server, whose log that is, serves
// on, and a client with stdio ends its session in order.
func TestReadersThatEnd(t *testing.T) {
	t.Parallel()
	at := testenv.Target(t, testenv.Echo)
	logs, log, err := os.Pipe()
	require.NoError(t, err)
	defer log.Close()
	u := prepare(t)
	u.process = &process{cmd: exec.Command(os.Args[0], u.args()...), out: new(testenv.Records)}
	u.cmd.Stdout, u.cmd.Stderr = u.out, log
	u.start(t, nil)
	scan := bufio.NewReader(logs)
	line := func(with string) string {
		for {
			text, err := scan.ReadString('\n')
			require.NoError(t, err)
			if strings.Contains(text, with) {
				return text
			}
		}
	}
	_, rest, _ := strings.Cut(line("msg=listening address="), "address=")
	u.address, _, _ = strings.Cut(rest, " ")
	u.fingerprint = u.out.Find(t, `fingerprint (SHA256:\S+)\n`)
	_, local := u.connect(t, "0:"+at)
	exchange(t, local, 1000)

	in, give, err := os.Pipe()
	require.NoError(t, err)
	defer give.Close()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	ssh := &process{cmd: exec.Command(os.Args[0], u.client("me:secret", "stdio:"+at)...)}
	ssh.cmd.Stdin, ssh.cmd.Stdout = in, w
	ssh.start(t, nil)
	require.NoError(t, w.Close())
	_, err = io.WriteString(give, "hello")
	require.NoError(t, err)
	_, err = io.ReadFull(r, make([]byte, 5))
	require.NoError(t, err)
	require.NoError(t, r.Close())
	_, err = io.WriteString(give, "hello")
	require.NoError(t, err)
	<-ssh.ended
	require.Equal(t, exitFailed, ssh.cmd.ProcessState.ExitCode())
	require.Contains(t, line("session ended"), "its program ends")

	require.NoError(t, logs.Close())
	for range 20 {
		exchange(t, local, 1000)
	}
}
