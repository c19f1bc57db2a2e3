package balancer

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

const (
	sessions = 30
	rebinds  = 5 // times that all ports change
)

// Edits of nginx.conf.
var (
	shortTimeout = edit{"proxy_timeout 2m", "proxy_timeout 1s"}
	sameSource   = edit{"# proxy_bind $kcp_source;", "proxy_bind $kcp_source;"}
)

// world is nginx before three servers, and a relay before nginx, as a NAT.
type world struct {
	t       *testing.T
	kind    string
	config  *kcp.Config // of the clients
	servers []*server
	nginx   *nginx
	relay   *netsim.Relay
	pause   sync.RWMutex // locked while the clients are silent
	players []*player
	joined  uint64
}

// newWorld starts all of that, for sessions of a kind, and their clients.
func newWorld(t *testing.T, kind string, edits ...edit) *world {
	t.Helper()
	w := &world{t: t, kind: kind, config: configOf(t, kind)}
	for range 3 {
		w.servers = append(w.servers, startServer(t, w.config))
	}
	w.nginx = startNginx(t, w.lines(), append(edits, shortTimeout)...)
	var err error
	w.relay, err = netsim.NewRelay(w.nginx.addr, netsim.LinkConfig{}, netsim.LinkConfig{}, 1)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.relay.Close() })
	w.replace()
	return w
}

// lines returns the servers as nginx.conf names them.
func (w *world) lines() (lines []string) {
	for _, s := range w.servers {
		lines = append(lines, s.addr)
	}
	return lines
}

// replace has new clients take the place of those whose sessions have ended, so
// that there are 30.
func (w *world) replace() {
	w.t.Helper()
	w.players = slices.DeleteFunc(w.players, func(p *player) bool { _, err := p.state(); return err != nil })
	var joining sync.WaitGroup
	var mu sync.Mutex
	for len(w.players) < sessions {
		w.joined++
		seed := w.joined
		w.players = append(w.players, nil)
		at := len(w.players) - 1
		joining.Go(func() {
			p, err := join(w.t, w.relay.Addr(), w.config, &w.pause, seed)
			mu.Lock()
			defer mu.Unlock()
			assert.NoError(w.t, err)
			w.players[at] = p
		})
	}
	joining.Wait()
	require.NotContains(w.t, w.players, (*player)(nil))
}

// settle waits until each session has either ended, or exchanged ten blocks more,
// and returns those that have ended.
func (w *world) settle(event string) (ended []*player) {
	w.t.Helper()
	before := make([]int, len(w.players))
	for i, p := range w.players {
		before[i], _ = p.state()
	}
	await.True(w.t, func() bool {
		for i, p := range w.players {
			if blocks, err := p.state(); err == nil && blocks < before[i]+10 {
				return false
			}
		}
		return true
	})
	var causes []error
	for _, p := range w.players {
		if _, err := p.state(); err != nil {
			require.NotErrorIs(w.t, err, errWrongBytes)
			ended, causes = append(ended, p), append(causes, err)
		}
	}
	w.t.Logf("%s | %s | %d of %d live %q", w.kind, event, len(w.players)-len(ended), len(w.players), causes)
	return ended
}

// of returns the sessions at a server.
func (w *world) of(addr string) (there []*player) {
	for _, p := range w.players {
		if p.server == addr {
			there = append(there, p)
		}
	}
	return there
}

// busiest returns the server with the most sessions, so that none is empty by luck.
func (w *world) busiest() *server {
	return slices.MaxFunc(w.servers, func(a, b *server) int { return len(w.of(a.addr)) - len(w.of(b.addr)) })
}

// changePorts changes all ports every 3 s.
func (w *world) changePorts() {
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for range rebinds {
		<-tick.C
		require.NoError(w.t, w.relay.Rebind())
	}
}

// quiet is a silence in which nginx forgets all clients.
func (w *world) quiet() {
	w.pause.Lock()
	time.Sleep(4 * time.Second)
	w.pause.Unlock()
}

// addresses is what happens without a change of the servers.
func (w *world) addresses() {
	require.Empty(w.t, w.settle("nothing"))
	w.nginx.reload(w.lines())
	require.Empty(w.t, w.settle("reload"))
	w.changePorts()
	require.Empty(w.t, w.settle("ports change every 3 s"))
	w.quiet()
	require.Empty(w.t, w.settle("silence beyond proxy_timeout"))
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
			w.addresses()
			w.serverAdded()
			w.serverRemoved()
			w.serverKilled()
			require.NotContains(t, w.nginx.log(), "js exception")
		})
	}
}

// serverAdded adds a fourth server. The sessions that nginx sends there end, as it
// does not know them. They are a fourth on average, which TestShares shows; that more
// than twice as many of so few end by chance happens once in 100 000 times.
func (w *world) serverAdded() {
	w.servers = append(w.servers, startServer(w.t, w.config))
	w.nginx.reload(w.lines())
	require.LessOrEqual(w.t, len(w.settle("a fourth server added")), sessions*2/3)
	w.replace()
	require.Empty(w.t, w.settle("with four servers"))
}

// serverRemoved takes a server away. Its sessions end, and no others.
func (w *world) serverRemoved() {
	gone := w.busiest()
	w.servers = slices.DeleteFunc(w.servers, func(s *server) bool { return s == gone })
	w.nginx.reload(w.lines())
	require.ElementsMatch(w.t, w.of(gone.addr), w.settle("a server taken away"))
	w.replace()
}

// serverKilled kills a server. Its sessions end, and no others, and those of new
// clients go to the rest.
func (w *world) serverKilled() {
	gone := w.busiest()
	gone.kill()
	require.ElementsMatch(w.t, w.of(gone.addr), w.settle("a server killed"))
}
