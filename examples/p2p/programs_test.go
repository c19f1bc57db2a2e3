package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
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

// doer runs a function where a program is to start. A *testenv.Host is one.
type doer interface{ Do(f func() error) error }

// here is this host.
type here struct{}

func (here) Do(f func() error) error { return f() }

// program is the program in a process of its own.
type program struct {
	*exec.Cmd
	out bytes.Buffer
	log testenv.Records
}

// start starts the program at a host. It ends with the test.
func start(t *testing.T, at doer, in []byte, args ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &program{Cmd: exec.Command(exe, args...)}
	p.Env = append(os.Environ(), asProgram+"=1")
	p.Stdin, p.Stdout, p.Stderr = bytes.NewReader(in), &p.out, &p.log
	require.NoError(t, at.Do(p.Start))
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()
	})
	return p
}

// transfer sends data from a host to another.
func transfer(t *testing.T, sends, gets doer, flags ...string) (sender, getter *program) {
	t.Helper()
	data := testenv.Content(1, 5_000_000)
	sender = start(t, sends, data, append([]string{"send"}, flags...)...)
	code := sender.log.Find(t, "the code is (.*)")
	getter = start(t, gets, nil, append(append([]string{"get"}, flags...), code)...)
	require.NoError(t, getter.Wait(), "%s%s", &sender.log, &getter.log)
	require.NoError(t, sender.Wait(), "%s%s", &sender.log, &getter.log)
	require.Equal(t, testenv.Sum(data), testenv.Sum(getter.out.Bytes()))
	return sender, getter
}

// Three processes on loopback, as README.md says to try it.
func TestPrograms(t *testing.T) {
	addr := start(t, here{}, nil, "serve", "-addr", "127.0.0.1:0").log.Find(t, "serving on (.*)")
	transfer(t, here{}, here{}, "-server", addr, "-addr", "127.0.0.1:0")
}
