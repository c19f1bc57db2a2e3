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
	s := serve(t, everyone)
	t.Run("ssh", func(t *testing.T) { ssh(t, s) })
	t.Run("curl", func(t *testing.T) { curl(t, s) })
	t.Run("dig", func(t *testing.T) { dig(t, s) })
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
func output(t *testing.T, args ...string) string {
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
func ssh(t *testing.T, s *startedServer) {
	need(t, "ssh", "ssh-keygen", "/usr/sbin/sshd")
	if os.Getuid() != 0 {
		t.Skip("sshd needs root")
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "kcptunnel")
	output(t, "go", "build", "-o", bin, ".")
	for _, name := range []string{"host", "user"} {
		output(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name))
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
	proxy := bin + " " + strings.Join(s.client("me:secret", "stdio:%h:%p"), " ")
	base := []string{"ssh", "-q", "-p", p, "-i", filepath.Join(dir, "user"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ProxyCommand=" + proxy + " 2>/dev/null", "root@127.0.0.1"}
	require.Equal(t, string(data), output(t, append(base, "cat", path)...))
	cmd := exec.Command(base[0], append(base[1:], "sha256sum")...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), fmt.Sprintf("%x", sha256.Sum256(data)))
}

// curl by SOCKS5, with a name that the server resolves.
func curl(t *testing.T, s *startedServer) {
	need(t, "curl", "sha256sum")
	at, sum := web(t)
	_, p, _ := net.SplitHostPort(at)
	_, socks := s.connect(t, "0:socks")
	require.Contains(t, output(t, "sh", "-c", "curl -sS --fail --socks5-hostname "+socks+" http://localhost:"+p+"/file | sha256sum"), sum)
	out, err := exec.Command("curl", "-sS", "--socks5-hostname", socks, "http://no-such-name.invalid/").CombinedOutput()
	require.Error(t, err)
	require.NotEmpty(t, out)
}

func dig(t *testing.T, s *startedServer) {
	need(t, "dig", "dnsmasq")
	_, p, _ := net.SplitHostPort(testenv.FreeAddress(t))
	background(t, "dnsmasq", "-k", "-C", "/dev/null", "-p", p, "--listen-address=127.0.0.1", "--bind-interfaces", "--no-resolv", "--no-hosts", "--address=/kcp.test/192.0.2.7", "--user=root")
	_, at := s.connect(t, "0:127.0.0.1:"+p+"/udp")
	_, local, _ := net.SplitHostPort(at)
	require.Contains(t, output(t, "dig", "@127.0.0.1", "-p", local, "+short", "+notcp", "www.kcp.test"), "192.0.2.7")
}
