package main

import (
	"os"
	"os/exec"
	"path/filepath"
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
	all testenv.Records // all that it has printed
}

// start starts the program at a host. It ends with the test.
func start(t *testing.T, at doer, args ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &program{Cmd: exec.Command(exe, args...)}
	p.Env = append(os.Environ(), asProgram+"=1")
	p.Stdout, p.Stderr = &p.all, &p.all
	require.NoError(t, at.Do(p.Start))
	t.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()
	})
	return p
}

// transfer sends a file from a host to another.
func transfer(t *testing.T, sends, gets doer, size int, flags ...string) (sender, getter *program) {
	t.Helper()
	path, dir, data := filepath.Join(t.TempDir(), "a file"), t.TempDir(), testenv.Content(1, size)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	sender = start(t, sends, append(append([]string{"send"}, flags...), path)...)
	code := sender.all.Find(t, "the code is (.*)")
	getter = start(t, gets, append(append([]string{"get", "-dir", dir}, flags...), code)...)
	require.NoError(t, getter.Wait(), "%s%s", &sender.all, &getter.all)
	require.NoError(t, sender.Wait(), "%s%s", &sender.all, &getter.all)
	got, err := os.ReadFile(filepath.Join(dir, "a file"))
	require.NoError(t, err)
	require.Equal(t, testenv.Sum(data), testenv.Sum(got))
	return sender, getter
}

// Three processes on loopback, as README.md says to try it.
func TestPrograms(t *testing.T) {
	addr := start(t, here{}, "serve", "-addr", "127.0.0.1:0").all.Find(t, "serving on (.*)")
	_, getter := transfer(t, here{}, here{}, 5_000_000, "-server", addr, "-addr", "127.0.0.1:0")
	require.Contains(t, getter.all.String(), "5000000 bytes received")
}
