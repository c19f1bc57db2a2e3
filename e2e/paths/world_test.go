package paths

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const (
	serverHost = "10.0.0.1"
	clientHost = "10.0.0.2"
)

// world is a session over a path, in virtual time.
type world struct {
	t                   *testing.T
	net                 *netsim.Network
	random              *rand.Rand
	client, server      *kcp.Conn
	dialling, listening *kcp.Endpoint
	listener            *kcp.Listener
	repetition          *netsim.Repetition   // makes runs repeat
	sockets             []*netsim.PacketConn // the server's and the client's
	paths               []path               // before and after the change
	gone                time.Duration        // how long nothing passes
	change              change
	others              chan error // what goroutines beside the test return
	running             int
}

// over runs f with a session over a path.
func over(t *testing.T, p path, server, client *kcp.Config, f func(w *world)) {
	t.Helper()
	between(t, p, 1, server, client, func(w *world) {
		w.opens()
		f(w)
		_ = w.client.Abort(0, "")
		_ = w.server.Abort(0, "")
	})
}

// between runs f with two endpoints at the ends of a path, one of which listens. All ends
// with it.
func between(t *testing.T, p path, seed uint64, server, client *kcp.Config, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, net: netsim.NewNetwork(seed, netsim.LinkConfig{}), random: rand.New(rand.NewPCG(seed, 1)),
			repetition: netsim.NewRepetition(seed), paths: []path{p}, others: make(chan error, 100),
		}
		w.set(p)
		w.listening, w.dialling = w.endpoint(serverHost+":4000", server), w.endpoint(clientHost+":5000", client)
		var err error
		w.listener, err = w.listening.Listen()
		require.NoError(t, err)
		f(w)
	})
}

// opens opens the session.
func (w *world) opens() {
	var err error
	w.client, err = w.dialling.Dial(w.t.Context(), w.listener.Addr(), nil)
	require.NoError(w.t, err)
	w.server, err = w.listener.AcceptKCP(w.t.Context())
	require.NoError(w.t, err)
}

// endpoint opens an endpoint, as long as the test runs.
func (w *world) endpoint(addr string, config *kcp.Config) *kcp.Endpoint {
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	var c kcp.Config
	if config != nil {
		c = *config
	}
	c.Repetition = w.repetition
	e, err := kcp.NewEndpoint(pc, &c)
	require.NoError(w.t, err)
	w.sockets = append(w.sockets, pc)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// within returns a context of a time in virtual time.
func (w *world) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	w.t.Cleanup(cancel)
	return ctx
}

// also runs f beside the test, until join.
func (w *world) also(f func() error) {
	w.running++
	go func() { w.others <- f() }()
}

// join waits for what runs beside the test.
func (w *world) join() {
	for ; w.running > 0; w.running-- {
		require.NoError(w.t, <-w.others)
	}
}

// protections are the settings of both ends, by what protects their packets.
func protections(t *testing.T) map[string]func(kcp.Config) *kcp.Config {
	return map[string]func(kcp.Config) *kcp.Config{
		"plain": func(c kcp.Config) *kcp.Config { return &c },
		"AEAD":  func(c kcp.Config) *kcp.Config { c.Cipher = testenv.AEAD(t); return &c },
		"TLS":   func(c kcp.Config) *kcp.Config { c.TLS = testTLS(); return &c },
	}
}

var testTLS = sync.OnceValue(testenv.TLS)
