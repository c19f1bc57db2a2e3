package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// Programs of others through the tunnel. Debian's packages openssh-server, curl,
// bind9-dnsutils and dnsmasq-base have them; what is not installed is skipped.
// KCP_PROGRAMS=1 runs them.
func TestPrograms(t *testing.T) {
	if os.Getenv("KCP_PROGRAMS") == "" {
		t.Skip("make tunnel-programs runs it")
	}
	s := start(t, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), "127.0.0.1:0")
	w := &world{
		fingerprint: s.out.Find(t, `fingerprint (SHA256:\S+)\n`),
		server:      s.err.Find(t, `listening address=(\S+)`),
	}
	t.Run("ssh", w.ssh)
	t.Run("curl", w.curl)
	t.Run("dig", w.dig)
}

// world is a server that programs are tried with.
type world struct{ fingerprint, server string }

// args returns the command line of a client.
func (w *world) args(remotes ...string) []string {
	return append([]string{"client", "-v", "-fingerprint", w.fingerprint, "-auth", "me:secret", w.server}, remotes...)
}

// client runs a client, and returns where it listens for its one remote.
func (w *world) client(t *testing.T, remote string) string {
	return start(t, w.args(remote)...).err.Find(t, `msg=listening .*address=(\S+)`)
}

// need skips the test if a program is not installed.
func need(t *testing.T, names ...string) {
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
}

// background runs a program until the test ends.
func background(t *testing.T, args ...string) {
	cmd := exec.Command(args[0], args[1:]...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", args[0], said.String())
		}
	})
}

// output runs a program, again until it succeeds, and returns what it prints.
func (w *world) output(t *testing.T, args ...string) string {
	var out []byte
	testenv.Await(t, func() (ok bool) {
		var err error
		if out, err = exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Logf("%q: %v: %s", args, err, out)
		}
		return err == nil
	})
	return string(out)
}

// web serves a file, and returns its address and hash.
func web(t *testing.T) (address, sum string) {
	data := make([]byte, 1_000_000)
	rand.NewChaCha8([32]byte{}).Read(data)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/file", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello\n")) })
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String(), fmt.Sprintf("%x", sha256.Sum256(data))
}

// ssh with the tunnel as its ProxyCommand, so the program itself has to be there.
func (w *world) ssh(t *testing.T) {
	need(t, "ssh", "ssh-keygen", "/usr/sbin/sshd")
	if os.Getuid() != 0 {
		t.Skip("sshd needs root")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "kcptunnel")
	w.output(t, "go", "build", "-o", bin, ".")
	for _, name := range []string{"host", "user"} {
		w.output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name))
	}
	public, err := os.ReadFile(filepath.Join(dir, "user.pub"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "keys"), public, 0o600))
	require.NoError(t, os.MkdirAll("/run/sshd", 0o755))
	_, p, _ := net.SplitHostPort(testenv.FreeAddress(t))
	background(t, "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", p, "-h", filepath.Join(dir, "host"), "-o", "ListenAddress=127.0.0.1",
		"-o", "AuthorizedKeysFile="+filepath.Join(dir, "keys"), "-o", "PidFile=none", "-o", "StrictModes=no", "-o", "PermitRootLogin=yes")
	data := make([]byte, 5_000_000)
	rand.NewChaCha8([32]byte{}).Read(data)
	path := filepath.Join(dir, "data")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	proxy := bin + " " + strings.Join(w.args("stdio:%h:%p"), " ")
	base := []string{"ssh", "-q", "-p", p, "-i", filepath.Join(dir, "user"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ProxyCommand=" + proxy + " 2>/dev/null", "root@127.0.0.1"}
	require.Equal(t, string(data), w.output(t, append(base, "cat", path)...))
	cmd := exec.Command(base[0], append(base[1:], "sha256sum")...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), fmt.Sprintf("%x", sha256.Sum256(data)))
}

// curl by SOCKS5, with a name that the server resolves.
func (w *world) curl(t *testing.T) {
	need(t, "curl", "sha256sum")
	at, sum := web(t)
	_, p, _ := net.SplitHostPort(at)
	socks := w.client(t, "0:socks")
	require.Contains(t, w.output(t, "sh", "-c", "curl -sS --fail --socks5-hostname "+socks+" http://localhost:"+p+"/file | sha256sum"), sum)
	out, err := exec.Command("curl", "-sS", "--socks5-hostname", socks, "http://no-such-name.invalid/").CombinedOutput()
	require.Error(t, err)
	require.NotEmpty(t, out)
}

func (w *world) dig(t *testing.T) {
	need(t, "dig", "dnsmasq")
	_, p, _ := net.SplitHostPort(testenv.FreeAddress(t))
	background(t, "dnsmasq", "-k", "-C", "/dev/null", "-p", p, "--listen-address=127.0.0.1", "--bind-interfaces", "--no-resolv", "--no-hosts", "--address=/kcp.test/192.0.2.7", "--user=root")
	_, local, _ := net.SplitHostPort(w.client(t, "0:127.0.0.1:"+p+"/udp"))
	require.Contains(t, w.output(t, "dig", "@127.0.0.1", "-p", local, "+short", "+notcp", "www.kcp.test"), "192.0.2.7")
}
