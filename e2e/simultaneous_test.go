package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// A simultaneous open: both ends dial each other, and one session comes of it.

// peerTLS is the settings of two ends that check each other's certificates.
var peerTLS = sync.OnceValue(func() *tls.Config {
	c := testenv.TLS()
	c.ClientCAs, c.ClientAuth = c.RootCAs, tls.RequireAndVerifyClientCert
	return c
})

// peerConfigs are the protections of sessions between peers.
func peerConfigs(t *testing.T) map[string]*kcp.Config {
	return map[string]*kcp.Config{
		"plain": {}, "aead": {Cipher: testAEAD(t)}, "tls": {TLS: testTLS()}, "tls, client certificates": {TLS: peerTLS()},
	}
}

// opened is what DialWith has returned.
type opened struct {
	c   *kcp.Conn
	err error
	in  time.Duration
}

// open dials a peer that dials too.
func open(e *kcp.Endpoint, to net.Addr, candidates ...net.Addr) opened {
	begin := time.Now()
	c, err := e.DialWith(context.Background(), to, kcp.DialOptions{SimultaneousOpen: true, Candidates: candidates})
	return opened{c, err, time.Since(begin)}
}

// openBoth opens a session between two ends that dial each other, b later than a.
func openBoth(a, b *kcp.Endpoint, toA, toB net.Addr, later time.Duration) (ofA, ofB opened) {
	result := make(chan opened)
	go func() {
		time.Sleep(later)
		result <- open(b, toA)
	}()
	ofA = open(a, toB)
	return ofA, <-result
}

// natted opens an endpoint behind a NAT.
func (w *world) natted(addr string, kind filtering, config *kcp.Config) (*kcp.Endpoint, *natConn) {
	w.t.Helper()
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	n := newNATConn(pc, kind)
	e, err := kcp.NewEndpoint(n, config)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e, n
}

const peerA, peerB = "203.0.113.1:4000", "198.51.100.2:4000"

func requireOneSession(t *testing.T, a, b *kcp.Endpoint, x, y opened) {
	t.Helper()
	require.NoError(t, x.err)
	require.NoError(t, y.err)
	require.Equal(t, x.c.Conv(), y.c.Conv())
	require.NotEqual(t, x.c.Dialled(), y.c.Dialled())
	bothWays(t, x.c, y.c, content(1, 20_000), content(2, 20_000))
	for _, e := range []*kcp.Endpoint{a, b} {
		require.Equal(t, 1, e.Stats().Sessions)
	}
}

// Both ends have the session within two round trips if nothing is lost, through NATs of
// all kinds.
func TestSimultaneousOpen(t *testing.T) {
	for name, config := range peerConfigs(t) {
		for _, kind := range allFiltering {
			t.Run(fmt.Sprint(name, ", filtering ", kind), func(t *testing.T) {
				inWorld(t, 1, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
					a, na := w.natted(peerA, kind, config)
					b, nb := w.natted(peerB, kind, config)
					x, y := openBoth(a, b, na.LocalAddr(), nb.LocalAddr(), 0)
					requireOneSession(t, a, b, x, y)
					require.LessOrEqual(t, max(x.in, y.in), 200*time.Millisecond)
				})
			})
		}
	}
}

// One session comes of both calls on bad links, whichever end is first.
func TestSimultaneousOpenLoss(t *testing.T) {
	for name, config := range peerConfigs(t) {
		t.Run(name, func(t *testing.T) {
			for seed := range fewer(200) {
				random := rand.New(rand.NewPCG(seed, 3))
				inWorld(t, seed, randomLink(random, 100*time.Millisecond, 0.2), func(t *testing.T, w *world) {
					a, na := w.natted(peerA, allFiltering[random.IntN(3)], config)
					b, nb := w.natted(peerB, allFiltering[random.IntN(3)], config)
					later := time.Duration(random.IntN(2)*random.IntN(3000)) * time.Millisecond
					x, y := openBoth(a, b, na.LocalAddr(), nb.LocalAddr(), later)
					requireOneSession(t, a, b, x, y)
				})
				if t.Failed() {
					t.Fatalf("KCP_SEED=%d", seed)
				}
			}
		})
	}
}
