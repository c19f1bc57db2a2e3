package balancer

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const (
	sessions = 30
	nameSize = 22 // of what a server says first: its address, and spaces
)

// Edits of nginx.conf.
var (
	shortTimeout = edit{"proxy_timeout 2m", "proxy_timeout 1s"}
	sameSource   = edit{"# proxy_bind $kcp_source;", "proxy_bind $kcp_source;"}
)

// server is a listener that sends its address to each client, and then what it receives.
type server struct {
	addr string
	kill func() // without a word to its clients
}

// startServer starts a server.
func startServer(t *testing.T, config *kcp.Config) *server {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	mine := *config
	mine.MaxSessionsPerAddress = 65536 // all clients have the balancer's address
	e, err := kcp.NewEndpoint(pc, &mine)
	require.NoError(t, err)
	l, err := e.Listen()
	require.NoError(t, err)
	addr := pc.LocalAddr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.WriteString(conn, addr+strings.Repeat(" ", nameSize-len(addr))); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
	s := &server{addr, func() { _, _ = pc.Close(), e.Close() }}
	t.Cleanup(s.kill)
	return s
}

// configOf returns the settings of both ends of sessions of a kind: words out of
// "TLS" and "FEC".
func configOf(kind string) *kcp.Config {
	config := &kcp.Config{PeerTimeout: 5 * time.Second}
	if strings.Contains(kind, "FEC") {
		config.FEC = kcp.FEC{Data: 4, Parity: 2}
	}
	if strings.Contains(kind, "TLS") {
		config.TLS = testenv.TLS()
	}
	return config
}

// client is a session, and the server that it is with.
type client struct {
	*kcp.Conn
	server string
}

// exchange sends a block and compares what comes back.
func (c *client) exchange(t *testing.T) error {
	block := make([]byte, 3000)
	_, _ = rand.Read(block) // does not fail
	if _, err := c.Write(block); err != nil {
		return err
	}
	back := make([]byte, len(block))
	if _, err := io.ReadFull(c, back); err != nil {
		return err
	}
	assert.True(t, bytes.Equal(block, back))
	return nil
}

// world is nginx before three servers, and a relay before nginx, as a NAT.
type world struct {
	t       *testing.T
	kind    string
	config  *kcp.Config
	servers []*server
	nginx   *nginx
	relay   *netsim.Relay
	clients []*client
}

// newWorld starts all of that, for sessions of a kind, and their clients.
func newWorld(t *testing.T, kind string, edits ...edit) *world {
	t.Helper()
	w := &world{t: t, kind: kind, config: configOf(kind)}
	for range 3 {
		w.servers = append(w.servers, startServer(t, w.config))
	}
	w.nginx = startNginx(t, w.lines(), append(edits, shortTimeout)...)
	var err error
	w.relay, err = netsim.NewRelay(w.nginx.addr, netsim.LinkConfig{}, netsim.LinkConfig{}, 1)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.relay.Close() })
	w.join()
	return w
}

// lines returns the servers as nginx.conf names them.
func (w *world) lines() (lines []string) {
	for _, s := range w.servers {
		lines = append(lines, s.addr)
	}
	return lines
}

// join has new clients take the place of those whose sessions have ended, so that there
// are 30.
func (w *world) join() {
	w.t.Helper()
	var joining sync.WaitGroup
	var mu sync.Mutex
	for range sessions - len(w.clients) {
		joining.Go(func() {
			d := kcp.Dialer{Config: w.config}
			conn, err := d.DialContext(context.Background(), "udp", w.relay.Addr().String())
			if !assert.NoError(w.t, err) {
				return
			}
			w.t.Cleanup(func() { _ = conn.(*kcp.Conn).Abort() })
			name := make([]byte, nameSize)
			_, err = io.ReadFull(conn, name)
			assert.NoError(w.t, err)
			mu.Lock()
			defer mu.Unlock()
			w.clients = append(w.clients, &client{conn.(*kcp.Conn), strings.TrimSpace(string(name))})
		})
	}
	joining.Wait()
	require.Len(w.t, w.clients, sessions)
}

// ended has all clients exchange blocks, and returns those whose sessions have ended,
// which are clients no more.
func (w *world) ended(event string) (gone []*client) {
	w.t.Helper()
	errs := make([]error, len(w.clients))
	var exchanging sync.WaitGroup
	for i, c := range w.clients {
		exchanging.Go(func() {
			for range 5 {
				if errs[i] == nil {
					errs[i] = c.exchange(w.t)
				}
			}
		})
	}
	exchanging.Wait()
	all, causes := w.clients, []error(nil)
	w.clients = nil
	for i, c := range all {
		if errs[i] == nil {
			w.clients = append(w.clients, c)
		} else {
			gone, causes = append(gone, c), append(causes, errs[i])
		}
	}
	w.t.Logf("%s | %s | %d of %d live %q", w.kind, event, len(w.clients), len(all), causes)
	return gone
}

// busiest returns the server with the most sessions, so that none is empty by luck, and
// those sessions.
func (w *world) busiest() (most *server, there []*client) {
	for _, s := range w.servers {
		of := slices.DeleteFunc(slices.Clone(w.clients), func(c *client) bool { return c.server != s.addr })
		if len(of) > len(there) {
			most, there = s, of
		}
	}
	return most, there
}

// TestBalancer repeats the table of docs/running.md with the conversation id as
// what is hashed.
func TestBalancer(t *testing.T) {
	needNginx(t)
	for _, kind := range []string{"plain", "FEC", "TLS", "TLS and FEC"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var edits []edit
			if !strings.Contains(kind, "TLS") {
				edits = append(edits, sameSource)
			}
			w := newWorld(t, kind, edits...)
			require.Empty(t, w.ended("nothing"))
			w.nginx.reload(w.lines())
			require.Empty(t, w.ended("reload"))
			for range 5 {
				require.NoError(t, w.relay.Rebind())
				require.Empty(t, w.ended("ports change"))
			}
			time.Sleep(4 * time.Second)
			require.Empty(t, w.ended("silence beyond proxy_timeout"))

			// The sessions that nginx sends to a fourth server end, as that does not know them.
			// They are a fourth on average; that more than twice as many of so few end by
			// chance happens once in 100 000 times.
			w.servers = append(w.servers, startServer(t, w.config))
			w.nginx.reload(w.lines())
			require.LessOrEqual(t, len(w.ended("a fourth server added")), sessions*2/3)
			w.join()
			require.Empty(t, w.ended("with four servers"))

			// Of a server that is taken away, or killed, the sessions end, and no others.
			gone, there := w.busiest()
			w.servers = slices.DeleteFunc(w.servers, func(s *server) bool { return s == gone })
			w.nginx.reload(w.lines())
			require.ElementsMatch(t, there, w.ended("a server taken away"))
			w.join()
			gone, there = w.busiest()
			gone.kill()
			require.ElementsMatch(t, there, w.ended("a server killed"))
			require.NotContains(t, w.nginx.log(), "js exception")
		})
	}
}
