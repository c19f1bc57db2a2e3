package balancer

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// nginx is a process of nginx with the nginx.conf of this folder, but for addresses,
// folders and what a test changes.
type nginx struct {
	t      *testing.T
	dir    string
	addr   string // where clients send
	edits  []edit
	errors string // path of the error log
	cmd    *exec.Cmd
}

// edit is a part of nginx.conf and what takes its place.
type edit struct{ old, new string }

// needNginx skips the test unless it was asked for, and fails if nginx or a module
// is not there.
func needNginx(t *testing.T) {
	t.Helper()
	if os.Getenv("KCP_BALANCER") == "" {
		t.Skip("make balancer runs it, with nginx")
	}
	_, err := exec.LookPath("nginx")
	require.NoError(t, err, "Debian's packages nginx-core, libnginx-mod-stream and libnginx-mod-stream-js are needed")
	for _, module := range []string{"ngx_stream_module.so", "ngx_stream_js_module.so"} {
		require.FileExists(t, filepath.Join("/usr/lib/nginx/modules", module))
	}
}

// startNginx starts nginx before servers.
func startNginx(t *testing.T, servers []string, edits ...edit) *nginx {
	t.Helper()
	n := &nginx{t: t, dir: t.TempDir(), addr: freeAddr(t), edits: edits}
	require.NoError(t, os.Chmod(n.dir, 0o755)) // workers run as another user
	n.errors = filepath.Join(n.dir, "error.log")
	script, err := os.ReadFile("kcp.js")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "kcp.js"), script, 0o644))
	n.configure(servers)
	n.cmd = exec.Command("nginx", append(n.args(), "-g", "daemon off;")...)
	n.cmd.Stdout, n.cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(t, n.cmd.Start())
	t.Cleanup(n.stop)
	await.True(t, func() bool {
		return len(n.workers()) == 2
	})
	return n
}

// args returns the arguments that nginx is started, and told to reload, with.
func (n *nginx) args() []string {
	return []string{"-p", n.dir, "-c", filepath.Join(n.dir, "nginx.conf"), "-e", n.errors}
}

// configure writes a configuration with these servers.
func (n *nginx) configure(servers []string) {
	n.t.Helper()
	text, err := os.ReadFile("nginx.conf")
	require.NoError(n.t, err)
	var lines strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&lines, "        server %s;\n", s)
	}
	edits := []edit{
		{"        server 127.0.0.1:4911;\n        server 127.0.0.1:4912;\n        server 127.0.0.1:4913;\n", lines.String()},
		{"listen 4910 ", "listen " + n.addr + " "},
		{"/run/nginx.pid", filepath.Join(n.dir, "nginx.pid")},
		{"/var/log/nginx/error.log", n.errors},
	}
	conf := string(text)
	for _, e := range append(edits, n.edits...) {
		require.Equal(n.t, 1, strings.Count(conf, e.old), "nginx.conf: %q", e.old)
		conf = strings.Replace(conf, e.old, e.new, 1)
	}
	require.NoError(n.t, os.WriteFile(filepath.Join(n.dir, "nginx.conf"), []byte(conf), 0o644))
}

// reload makes nginx read its configuration, with these servers, and waits until
// new workers have taken over.
func (n *nginx) reload(servers []string) {
	n.t.Helper()
	n.configure(servers)
	before := n.workers()
	out, err := exec.Command("nginx", append(n.args(), "-s", "reload")...).CombinedOutput()
	require.NoError(n.t, err, "%s", out)
	await.True(n.t, func() bool {
		now := n.workers()
		for pid := range now {
			if before[pid] {
				return false
			}
		}
		return len(now) == 2
	})
}

// workers returns the process ids of the workers that take new sessions.
func (n *nginx) workers() map[int]bool {
	pids := make(map[int]bool)
	main := strconv.Itoa(n.cmd.Process.Pid)
	list, _ := os.ReadFile(filepath.Join("/proc", main, "task", main, "children"))
	for _, field := range strings.Fields(string(list)) {
		title, _ := os.ReadFile(filepath.Join("/proc", field, "cmdline"))
		if pid, err := strconv.Atoi(field); err == nil && strings.HasPrefix(string(title), "nginx: worker process") && !strings.Contains(string(title), "shutting down") {
			pids[pid] = true
		}
	}
	return pids
}

// stop ends nginx at once.
func (n *nginx) stop() {
	_ = n.cmd.Process.Signal(os.Interrupt)
	_ = n.cmd.Wait()
}

// log returns what nginx has logged.
func (n *nginx) log() string {
	text, err := os.ReadFile(n.errors)
	require.NoError(n.t, err)
	return string(text)
}

// freeAddr returns an address of the loopback interface with a free UDP port.
func freeAddr(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().String()
}
