package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// asProgram is set in processes that are the program.
const asProgram = "P2P_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// doer runs a function where a program is to start. A *netns.Host is one.
type doer interface{ Do(f func() error) error }

// program is the program in a process of its own.
type program struct {
	*testing.T
	cmd   *exec.Cmd
	lines chan string // of its standard output
	done  chan struct{}
	all   testenv.Records // all it has printed
	err   error           // set before done is closed
}

// start starts the program at a host; nil is this one. It ends with the test.
func start(t *testing.T, at doer, args ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &program{T: t, cmd: exec.Command(exe, args...), lines: make(chan string, 100), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "TERM=dumb")
	p.cmd.Stderr = &p.all
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	if at == nil {
		err = p.cmd.Start()
	} else {
		err = at.Do(p.cmd.Start)
	}
	require.NoError(t, err)
	go func() {
		defer close(p.done)
		for s := bufio.NewScanner(io.TeeReader(out, &p.all)); s.Scan(); {
			p.lines <- s.Text()
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	})
	return p
}

// find waits for a line of standard output, and returns what the parenthesis of the
// pattern matches.
func (p *program) find(pattern string) string {
	p.Helper()
	for {
		select {
		case line := <-p.lines:
			if m := regexp.MustCompile(pattern).FindStringSubmatch(line); m != nil {
				return m[1]
			}
		case <-p.done:
			require.FailNow(p, "the program has ended", p.all.String())
		}
	}
}

// wait waits for the end of the program.
func (p *program) wait() error {
	p.Helper()
	<-p.done
	return p.err
}

// ends are the two ends of a transfer.
type ends struct {
	send, get doer
	flags     []string // of both
	size      int
}

// succeed sends a file, and wants both ends to succeed, and the bytes to be the same.
func (e ends) succeed(t *testing.T) (sends, gets *program) {
	t.Helper()
	path, dir, data := filepath.Join(t.TempDir(), "a file"), t.TempDir(), content(e.size)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	with := func(args ...string) []string { return append(append(args[:1:1], e.flags...), args[1:]...) }
	sends = start(t, e.send, with("send", path)...)
	code := sends.find("the code is (.*)")
	gets = start(t, e.get, with("get", "-dir", dir, code)...)
	require.NoError(t, sends.wait(), "%s", sends.all.String()+gets.all.String())
	require.NoError(t, gets.wait(), "%s", sends.all.String()+gets.all.String())
	got, err := os.ReadFile(filepath.Join(dir, "a file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(got, data))
	return sends, gets
}

// Three processes on loopback, as README.md says to try it.
func TestPrograms(t *testing.T) {
	server := start(t, nil, "serve", "-addr", "127.0.0.1:0", "-stun", "127.0.0.1:0")
	addr := server.find("serving on ([^,]*),")
	key := regexp.MustCompile("SHA256:.*").FindString(server.all.String())
	flags := []string{"-server", addr, "-server-key", key, "-addr", "127.0.0.1:0"}
	sends, gets := ends{flags: flags, size: 5_000_000}.succeed(t)
	require.Contains(t, sends.all.String(), "NAT: none")
	require.Contains(t, gets.all.String(), "5000000 bytes received")
}
