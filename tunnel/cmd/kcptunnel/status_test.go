package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/tunnel"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// ownDirectory returns a directory for sockets, with a short path.
func ownDirectory(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("not on Windows")
	}
	dir, err := os.MkdirTemp("", "s")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "d")
}

// The command status shows a server and a client with what they carry, as text and as
// JSON, over sockets that this user alone may open, and which go with the processes. The
// address of -debug has the same page.
func TestStatus(t *testing.T) {
	at, dirs := testenv.Target(t, testenv.Echo), []string{ownDirectory(t), ownDirectory(t)}
	s := serve(t, everyone, "-status", dirs[0], "-debug", "127.0.0.1:0")
	c, local := s.connect(t, "-status", dirs[1], "0:"+at)
	conn, err := net.Dial("tcp", local)
	require.NoError(t, err)
	defer conn.Close()
	testenv.Exchange(t, conn, 1000)
	for i, want := range []string{"server " + s.address, "  me 127.0.0.1:", "client " + s.address, "  " + s.address + " 127.0.0.1:"} {
		out := ""
		testenv.Await(t, func() bool { // bytes count after they have gone
			code, text, said := piped(t, "", "status", "-status", dirs[i/2])
			require.Equal(t, exitOK, code, said)
			out = text
			return strings.Contains(out, ", sent 1 KB, received 1 KB\n")
		})
		require.Contains(t, out, want)
		require.Contains(t, out, "- "+at+", for ")
	}
	_, out, _ := piped(t, "", "status", "-status", dirs[1], "-json")
	var p processStatus
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	require.Equal(t, os.Getpid(), p.PID)
	require.Equal(t, uint64(1000), p.Peers[0].Connections[0].Sent)
	require.True(t, p.Servers[0].Connected)
	sockets, err := filepath.Glob(dirs[0] + "/*")
	require.NoError(t, err)
	require.Len(t, sockets, 1)
	for path, want := range map[string]os.FileMode{dirs[0]: 0o700, sockets[0]: 0o600} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), path)
	}
	code, page := get(t, s.started, "status")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, page, "- "+at+", for ")

	s.stop()
	c.stop()
	for _, dir := range dirs {
		code, said := exit(t, "status", "-status", dir)
		require.Equal(t, exitFailed, code)
		require.Contains(t, said, "no kcptunnel of this user runs; looked in "+dir)
	}
}

// get returns what a command serves beside its metrics.
func get(t *testing.T, s *started, path string) (code int, text string) {
	t.Helper()
	r, err := http.Get(strings.TrimSuffix(s.err.Find(t, `metrics=(\S+)`), "metrics") + path)
	require.NoError(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(b)
}

// A directory that others may open, or that is a link, is refused by processes, and not
// looked into. A socket of a process that was killed is removed.
func TestStatusDirectory(t *testing.T) {
	open, link, dir := ownDirectory(t), ownDirectory(t), ownDirectory(t)
	require.NoError(t, os.Mkdir(open, 0o755))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Symlink(dir, link))
	users, key := file(t, "users.json", everyone), filepath.Join(t.TempDir(), "server.pem")
	for path, want := range map[string]string{open: "others may open", link: "not a directory of this user"} {
		for _, args := range [][]string{{"status"}, {"server", "-auth", users, "-key", key, "127.0.0.1:0"}} {
			code, said := exit(t, append([]string{args[0], "-status", path}, args[1:]...)...)
			require.Equal(t, exitFailed, code, said)
			require.Contains(t, said, want)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "1.sock"), Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	code, _ := exit(t, "status", "-status", dir)
	require.Equal(t, exitFailed, code)
	require.NoFileExists(t, filepath.Join(dir, "1.sock"))
}

// What is shown is bounded, and says how much is left out; what waits comes first. Names
// do nothing to a terminal.
func TestStatusIsBounded(t *testing.T) {
	of := func() *processStatus {
		p := &processStatus{Command: "server"}
		for i := range 200 {
			peer := tunnel.Peer{Name: fmt.Sprintf("user%03d\x1b[2J", i)}
			for n := range 100 {
				peer.Connections = append(peer.Connections, tunnel.Connection{Remote: "x", Waits: float64(n % 7), Sent: uint64(n)})
			}
			p.Peers = append(p.Peers, peer)
		}
		return p
	}
	p := of()
	p.sort(false)
	require.Len(t, p.Peers, maxPeers)
	require.Len(t, p.Peers[9].Connections, maxConnections)
	require.Equal(t, tunnel.Connection{Remote: "x", Waits: 6, Sent: 97}, p.Peers[9].Connections[0])
	var b bytes.Buffer
	p.write(&b)
	require.Contains(t, b.String(), fmt.Sprintf("left out, without -all: %d peers, %d connections", 200-maxPeers, maxPeers*(100-maxConnections)))
	require.NotContains(t, b.String(), "\x1b")
	p = of()
	p.sort(true)
	require.Len(t, p.Peers, 200)
	require.Len(t, p.Peers[9].Connections, 100)
	require.Zero(t, p.LeftOut)
}

// A client is healthy while it has a session, and its metrics say why it has none.
func TestHealth(t *testing.T) {
	debug := testenv.FreeAddress(t)
	s := serve(t, everyone, "-debug", "127.0.0.1:0")
	c, _ := s.connect(t, "-debug", debug, "0:127.0.0.1:1")
	testenv.Await(t, func() bool { code, _ := get(t, c, "healthz"); return code == http.StatusOK })
	require.Contains(t, scrape(t, c), `kcptunnel_connected{server="`+s.address+`",transport="udp"} 1`)
	code, text := get(t, s.started, "healthz")
	require.Equal(t, "200 ok\n", fmt.Sprint(code, " ", text))
	s.stop()
	testenv.Await(t, func() bool { code, text = get(t, c, "healthz"); return code == http.StatusServiceUnavailable })
	require.Regexp(t, `^no session with `+s.address+`: .+\n$`, text)
	shown := scrape(t, c)
	require.Contains(t, shown, `kcptunnel_connected{server="`+s.address+`",transport="udp"} 0`)
	require.Contains(t, shown, `kcptunnel_attempts_failed_total{cause="lost",server="`+s.address+`",transport="udp"} 1`)
}

// A file that cannot be read again is in the metrics, until it can.
func TestReloadIsSeen(t *testing.T) {
	s := serve(t, everyone, "-debug", "127.0.0.1:0")
	signals := <-s.reload
	for _, want := range []string{"0", "1"} {
		text := map[string]string{"0": "{", "1": everyone}[want]
		require.NoError(t, os.WriteFile(s.users, []byte(text), 0o600))
		signals <- os.Interrupt // any does
		testenv.Await(t, func() bool {
			return strings.Contains(scrape(t, s.started), "\nkcptunnel_config_last_reload_successful "+want)
		})
	}
}

// A name that is not UTF-8, such as of a user on the command line, ends no process.
func TestLabelsAreText(t *testing.T) {
	r := prometheus.NewRegistry()
	require.NoError(t, r.Register(collector(func(s series) { s.gauge("x", "y", 1, "user", "m\xff") })))
	all, err := r.Gather()
	require.NoError(t, err)
	require.Equal(t, "m?", all[0].Metric[0].Label[0].GetValue())
}
