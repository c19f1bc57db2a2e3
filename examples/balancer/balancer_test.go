package balancer

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// nginx is a process of nginx with the nginx.conf of this folder, but for addresses,
// folders and times.
type nginx struct {
	*testing.T
	dir string
	cmd *exec.Cmd
}

// startNginx starts nginx at an address, before servers.
func startNginx(t *testing.T, addr string, servers []*server, edits ...string) *nginx {
	n := &nginx{T: t, dir: t.TempDir()}
	require.NoError(t, os.Chmod(n.dir, 0o755)) // workers run as another user
	script, err := os.ReadFile("kcp.js")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "kcp.js"), script, 0o644))
	text, err := os.ReadFile("nginx.conf")
	require.NoError(t, err)
	for i, s := range servers {
		edits = append(edits, fmt.Sprintf("127.0.0.1:491%d", i+1), s.addr)
	}
	edits = append(edits, "listen 4910 ", "listen "+addr+" ", "proxy_timeout 2m", "proxy_timeout 1s",
		"/run/nginx.pid", filepath.Join(n.dir, "nginx.pid"), "/var/log/nginx/error.log", n.log())
	for i := 0; i < len(edits); i += 2 {
		require.Equal(t, 1, strings.Count(string(text), edits[i]), edits[i])
	}
	conf := strings.NewReplacer(edits...).Replace(string(text))
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "nginx.conf"), []byte(conf), 0o644))
	n.cmd = exec.Command("nginx", append(n.args(), "-g", "daemon off;")...)
	n.cmd.Stdout, n.cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(t, n.cmd.Start(), "Debian's packages nginx-core, libnginx-mod-stream and libnginx-mod-stream-js are needed")
	t.Cleanup(func() {
		_ = n.cmd.Process.Signal(os.Interrupt)
		_ = n.cmd.Wait()
	})
	testenv.Await(t, func() bool { return len(n.workers()) == 2 })
	return n
}

func (n *nginx) log() string { return filepath.Join(n.dir, "error.log") }

// args returns the arguments that nginx is started, and told to reload, with.
func (n *nginx) args() []string {
	return []string{"-p", n.dir, "-c", filepath.Join(n.dir, "nginx.conf"), "-e", n.log()}
}

// reload has nginx read its configuration, and waits until new workers have taken over.
func (n *nginx) reload() {
	before := n.workers()
	out, err := exec.Command("nginx", append(n.args(), "-s", "reload")...).CombinedOutput()
	require.NoError(n, err, "%s", out)
	testenv.Await(n, func() bool {
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
func (n *nginx) workers() map[string]bool {
	pids, main := make(map[string]bool), strconv.Itoa(n.cmd.Process.Pid)
	list, _ := os.ReadFile(filepath.Join("/proc", main, "task", main, "children"))
	for _, pid := range strings.Fields(string(list)) {
		title, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if strings.HasPrefix(string(title), "nginx: worker process") && !strings.Contains(string(title), "shutting down") {
			pids[pid] = true
		}
	}
	return pids
}

// server is a listener that sends its address to each client, and then what it receives.
type server struct {
	addr string
	kill func() // without a word to its clients
}

func startServer(t *testing.T, config *kcp.Config) *server {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	mine := *config
	mine.Limits.MaxSessionsPerAddress = 65536 // all clients have the balancer's address
	e, err := kcp.NewEndpoint(pc, &mine)
	require.NoError(t, err)
	l, err := e.Listen()
	require.NoError(t, err)
	s := &server{pc.LocalAddr().String(), func() { _, _ = pc.Close(), e.Close() }}
	t.Cleanup(s.kill)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := fmt.Fprintf(conn, "%22s", s.addr); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
	return s
}

// client is a session, and the server that it is with.
type client struct {
	*kcp.Conn
	server string
}

// lives exchanges a block with the server.
func (c *client) lives(t *testing.T) bool {
	block, back := testenv.Content(1, 10_000), make([]byte, 10_000)
	if _, err := c.Write(block); err != nil {
		return false
	}
	if _, err := io.ReadFull(c, back); err != nil {
		return false
	}
	require.Equal(t, testenv.Sum(block), testenv.Sum(back))
	return true
}

// Sessions of each kind outlive a reload of nginx, a change of the clients' ports, and
// silence beyond proxy_timeout. With a server the sessions with it end, and no others.
func TestBalancer(t *testing.T) {
	if os.Getenv("KCP_BALANCER") == "" {
		t.Skip("make balancer runs it, with nginx")
	}
	for _, kind := range []string{"plain", "FEC", "TLS", "TLS and FEC"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			config, edits := &kcp.Config{PeerTimeout: 5 * time.Second}, []string{"# proxy_bind $kcp_source;", "proxy_bind $kcp_source;"}
			if strings.Contains(kind, "FEC") {
				config.FEC = kcp.FEC{Data: 4, Parity: 2}
			}
			if strings.Contains(kind, "TLS") {
				config.TLS, edits = testenv.TLS(), nil
			}
			servers := []*server{startServer(t, config), startServer(t, config), startServer(t, config)}
			addr := testenv.FreeAddress(t)
			n := startNginx(t, addr, servers, edits...)
			relay, err := netsim.NewRelay(addr, netsim.LinkConfig{}, netsim.LinkConfig{}, 1) // as a NAT
			require.NoError(t, err)
			defer relay.Close()
			var clients []*client
			of := make(map[string]int) // clients, by server
			for range 30 {
				conn, err := kcp.Dial("udp", relay.Addr().String(), config)
				require.NoError(t, err)
				defer conn.Abort(0, "")
				name := make([]byte, 22)
				_, err = io.ReadFull(conn, name)
				require.NoError(t, err)
				c := &client{conn, strings.TrimSpace(string(name))}
				clients = append(clients, c)
				of[c.server]++
			}
			require.Greater(t, len(of), 1, "all clients are with one server, by luck once in 10^14 times")
			allLive := func(after string) {
				for _, c := range clients {
					require.True(t, c.lives(t), "after %s", after)
				}
			}
			allLive("nothing")
			n.reload()
			allLive("a reload")
			for range 5 {
				require.NoError(t, relay.Rebind())
				allLive("a change of ports")
			}
			time.Sleep(4 * time.Second) // nginx has a real clock
			allLive("silence")
			for _, s := range servers {
				if s.addr == clients[0].server {
					s.kill()
				}
			}
			for _, c := range clients {
				require.Equal(t, c.server != clients[0].server, c.lives(t), "after a server's end")
			}
			log, err := os.ReadFile(n.log())
			require.NoError(t, err)
			require.NotContains(t, string(log), "js exception")
		})
	}
}
