package takeover

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// The processes are this test binary: with generationEnv it is a server, whose kind is
// in kindEnv, and which takes over through the Unix socket in takeEnv, if that is set.
const (
	generationEnv = "KCP_TEST_GENERATION"
	kindEnv       = "KCP_TEST_KIND"
	takeEnv       = "KCP_TEST_TAKE"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(generationEnv); name != "" {
		serve(name)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// configOf returns the configuration of both ends of a kind.
func configOf(kind string) *kcp.Config {
	c := &kcp.Config{Limits: kcp.Limits{MaxSessionsPerAddress: 5000, Backlog: 5000}}
	switch kind {
	case "aes-gcm":
		gcm, err := crypt.AESGCM(bytes.Repeat([]byte{5}, 16))
		if err != nil {
			panic(err)
		}
		c.Cipher = gcm
	case "tls":
		c.TLS = testenv.TLS()
		c.TLS.InsecureSkipVerify = true // each process has a certificate of its own
	case "fec":
		c.FEC = kcp.FEC{Data: 5, Parity: 2}
	case "shards":
		c.Shards = 3
	}
	return c
}

// serve is a server. It says on standard output what happens, a line each, and is told
// on standard input what to do.
func serve(name string) {
	if pc, err := net.ListenPacket("udp4", "127.0.0.1:0"); err == nil { // what package net keeps
		_ = pc.Close()
	}
	files, goroutines := testenv.OpenFiles(), runtime.NumGoroutine()
	l, err := open(os.Getenv(takeEnv), configOf(os.Getenv(kindEnv)))
	if err != nil {
		say("failed", err)
		return
	}
	say("ready", l.Addr())
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			go answer(name, c)
		}
	}()
	left := make(chan struct{}, 100)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			what, path, _ := strings.Cut(in.Text(), " ")
			switch what {
			case "handover":
				go handOver(l, path, left)
			case "stats":
				b, _ := json.Marshal(l.Endpoint().Stats())
				say("stats", string(b))
			}
		}
		os.Exit(0) // the test has ended
	}()
	<-left
	goroutines++ // that of standard input
	for testenv.OpenFiles() > files || runtime.NumGoroutine() > goroutines {
		time.Sleep(time.Millisecond)
	}
	say("ended", "and has left nothing")
}

// say writes a line, in one piece.
func say(what string, v ...any) { _, _ = os.Stdout.WriteString(what + " " + fmt.Sprintln(v...)) }

// open takes over through the Unix socket at path, or listens if there is none.
func open(path string, config *kcp.Config) (*kcp.Listener, error) {
	if path == "" {
		return kcp.Listen("udp4", "127.0.0.1:0", config)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return kcp.TakeOver(unhurried(), conn, config)
}

// unhurried returns a context for takeovers that have to succeed on a busy machine.
func unhurried() context.Context { return takeover.WithFactor(context.Background(), 1000) }

// handOver hands l over through the Unix socket at path.
func handOver(l *kcp.Listener, path string, left chan<- struct{}) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err == nil {
		err = l.HandOver(unhurried(), conn)
		_ = conn.Close()
	}
	if err != nil {
		say("kept", err)
		return
	}
	left <- struct{}{}
}

// answer serves a session: it says who serves, and echoes.
func answer(name string, c *kcp.Conn) {
	defer c.Close()
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return
	}
	_, _ = fmt.Fprintf(c, "%8s", name)
	_, _ = io.Copy(c, c)
}

// process is a server as the test sees it.
type process struct {
	t     testing.TB
	name  string
	kind  string
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string // what it says
	addr  net.Addr    // once it is ready
	ended chan struct{}
}

// launch starts a server, which takes over through the Unix socket at take, unless that
// is empty.
func launch(t testing.TB, kind, name, take string) *process {
	t.Helper()
	p := &process{t: t, name: name, kind: kind, lines: make(chan string, 1000), ended: make(chan struct{})}
	exe, err := os.Executable()
	require.NoError(t, err)
	p.cmd = exec.Command(exe)
	p.cmd.Env = append(os.Environ(), generationEnv+"="+name, kindEnv+"="+kind, takeEnv+"="+take)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the process by SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// says waits for a line of a kind, and returns the rest of it. It skips other lines.
func (p *process) says(what string) string {
	p.t.Helper()
	for line := range p.lines {
		if first, rest, _ := strings.Cut(line, " "); first == what {
			return rest
		}
		p.t.Logf("%s: %s", p.name, line)
	}
	require.FailNow(p.t, "the process has ended", "%s should have said %q", p.name, what)
	return ""
}

// ready waits until the server serves.
func (p *process) ready() *process {
	p.t.Helper()
	var err error
	p.addr, err = net.ResolveUDPAddr("udp4", p.says("ready"))
	require.NoError(p.t, err)
	return p
}

// leaves checks that the process ends by itself, and that the endpoint has left nothing.
func (p *process) leaves() {
	p.t.Helper()
	require.Equal(p.t, "and has left nothing", p.says("ended"))
	<-p.ended
}

// stats returns the endpoint's statistics.
func (p *process) stats() (s stats.Endpoint) {
	p.t.Helper()
	p.do("stats")
	require.NoError(p.t, json.Unmarshal([]byte(p.says("stats")), &s))
	return s
}

func (p *process) do(what string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, what)
	require.NoError(p.t, err)
}

// handsOver makes p hand over to a new process of that name.
func (p *process) handsOver(name string) *process {
	p.t.Helper()
	old, new, next := p.meet(name)
	go (&exchange{}).relay(old, new)
	return next.ready()
}

// meet makes p hand over to a new process. Both have connected to the test.
func (p *process) meet(name string) (old, new *net.UnixConn, next *process) {
	p.t.Helper()
	dir, err := os.MkdirTemp("", "kcp") // t.TempDir may be too long for the name of a socket
	require.NoError(p.t, err)
	defer os.RemoveAll(dir)
	connect := func(begin func(path string)) *net.UnixConn {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "socket")})
		require.NoError(p.t, err)
		defer l.Close()
		begin(l.Addr().String())
		c, err := l.AcceptUnix()
		require.NoError(p.t, err)
		return c
	}
	new = connect(func(path string) { next = launch(p.t, p.kind, name, path) })
	old = connect(func(path string) { p.do("handover " + path) })
	return old, new, next
}
