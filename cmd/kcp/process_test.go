package main

import (
	"bytes"
	"context"
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

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
)

// TestMain lets a test run the command as a process of its own.
func TestMain(m *testing.M) {
	if os.Getenv("KCP_TEST_AS_COMMAND") != "" {
		main()
	}
	os.Exit(m.Run())
}

// commandProcess returns the command as a process.
func commandProcess(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "KCP_TEST_AS_COMMAND=1")
	return cmd
}

// A listener whose stdout is a pipe that is not read any more tells its peer.
func TestBrokenPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGPIPE")
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	addr := freeAddr(t)
	l := commandProcess(t.Context(), "listen", addr, "-d")
	l.Stdout = w
	var stderr testenv.Records
	l.Stderr = &stderr
	require.NoError(t, l.Start())
	require.NoError(t, w.Close())
	require.NoError(t, r.Close())
	d := dial(t.Context(), io.MultiReader(bytes.NewReader(data(t, 0, 1000)), endless(t)), addr, "-wait", "1m")
	require.Equal(t, exitFailed, d.wait(t))
	require.Contains(t, d.err.String(), `the peer has failed ("writing standard output failed")`)
	var exit *exec.ExitError
	require.ErrorAs(t, l.Wait(), &exit)
	require.Equal(t, exitFailed, exit.ExitCode())
	require.Contains(t, stderr.String(), "writing standard output: ")
}

// A command that the system tells to end, by whichever signal, tells its peer, and its
// exit code says which it was.
func TestSignalsEndTheSession(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no signals")
	}
	for s, code := range map[os.Signal]int{os.Interrupt: exitInterrupted, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		l, addr := listen(t.Context(), t, endless(t))
		d := commandProcess(t.Context(), "dial", addr)
		stdin, err := d.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, d.Start())
		_, err = stdin.Write([]byte("begun"))
		require.NoError(t, err)
		l.out.Find(t, "(begun)")
		require.NoError(t, d.Process.Signal(s))
		require.Equal(t, exitFailed, l.wait(t), "%v", s)
		require.Contains(t, l.err.String(), "the peer was interrupted", "%v", s)
		var exit *exec.ExitError
		require.ErrorAs(t, d.Wait(), &exit)
		require.Equal(t, code, exit.ExitCode())
	}
}

// newUDP returns a socket that is closed with the test.
func newUDP(t *testing.T) *net.UDPConn {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// recordKey is a cipher that stores its key.
func recordKey(to *[]byte) newCipher {
	return func(key []byte) (crypt.Cipher, error) {
		*to = key
		return crypt.None(), nil
	}
}

func TestKeyFromFileOrEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte("open sesame\r\n"), 0o600))
	want, err := parseKey("open sesame")
	require.NoError(t, err)
	got, err := readKey(file)
	require.NoError(t, err)
	require.Equal(t, want, got)

	for content, text := range map[string]string{"": "must not be empty", "\n": "must not be empty", strings.Repeat("x", 5000): "longer than"} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		_, err := readKey(file)
		require.ErrorContains(t, err, text)
	}

	// The variable counts only if there is no flag, and a -cipher.
	key := func(args ...string) []byte {
		var s settings
		s.profile = defaultProfile
		s.envelope.cipher = nil
		var got []byte
		o := &optionSet{groups: []optionGroup{s.group()}}
		_, err := o.parse(streams{}, append([]string{"-cipher", "aes"}, args...), 0)
		require.NoError(t, err)
		s.envelope.cipher = recordKey(&got)
		var cfg kcp.Config
		require.NoError(t, s.envelope.apply(&cfg))
		return got
	}
	other, err := parseKey("other")
	require.NoError(t, err)
	t.Setenv(keyVariable, "open sesame")
	require.Equal(t, want, key())
	require.Equal(t, other, key("-key", "other"))
	t.Setenv(keyVariable, "hex:12")
	var cfg kcp.Config
	e := envelope{cipher: crypt.AESGCM}
	require.ErrorContains(t, e.apply(&cfg), "KCP_KEY: want hex:")
}

// A line of progress says what is delivered in each direction.
func TestProgress(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		p, out, in := &pipe{conn: b.dialed}, pace{}, pace{}
		p.sent.Store(3_000_000)
		require.Equal(t, "  2s  sent 3.0 MB  1.5 MB/s  received 0 B  0 B/s  rtt 40ms  resent 0.0%", p.progress(2*time.Second, 0, &out, &in))
		p.written.Store(500_000)
		require.Equal(t, "  3s  sent 3.0 MB of 6.0 MB, 50%  0 B/s  received 500.0 kB  500.0 kB/s  rtt 40ms  resent 0.0%",
			p.progress(3*time.Second, 6_000_000, &out, &in))
		require.Nil(t, (&netcat{std: streams{err: new(bytes.Buffer)}}).meter(p), "no terminal")
	})
}

// failingWriter fails.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
