package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
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

// opened is what Dial has returned.
type opened struct {
	c   *kcp.Conn
	err error
	in  time.Duration
}

// open dials a peer of several addresses that dials too.
func open(e *kcp.Endpoint, to []string) opened {
	begin := time.Now()
	o := kcp.DialOptions{SimultaneousOpen: true}
	for _, s := range to[1:] {
		o.Candidates = append(o.Candidates, udpAddr(s))
	}
	c, err := e.Dial(context.Background(), udpAddr(to[0]), &o)
	return opened{c, err, time.Since(begin)}
}

// openBoth opens a session between two ends that dial each other, b later than a.
func openBoth(a, b *kcp.Endpoint, toA, toB []string, later time.Duration) (ofA, ofB opened) {
	result := make(chan opened)
	go func() {
		time.Sleep(later)
		result <- open(b, toA)
	}()
	ofA = open(a, toB)
	return ofA, <-result
}

// natted opens an endpoint behind a NAT of its own.
func (w *world) natted(n *natNet, host, public string, kind filtering, config *kcp.Config) (*kcp.Endpoint, *natHost) {
	w.t.Helper()
	return w.inLAN(n, host, host, public, kind, config)
}

// inLAN opens an endpoint on a host of a network behind a NAT.
func (w *world) inLAN(n *natNet, lan, host, public string, kind filtering, config *kcp.Config) (*kcp.Endpoint, *natHost) {
	w.t.Helper()
	pc, err := w.net.Listen(host)
	require.NoError(w.t, err)
	h := n.host(pc, lan, public, kind)
	e, err := kcp.NewEndpoint(h, config)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e, h
}

const (
	hostA, hostB = "192.168.1.2:4000", "192.168.1.3:4000"
	peerA, peerB = "203.0.113.1:4000", "198.51.100.2:4000"
)

// requireOneSession requires that both calls have ended with one session, which works.
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
					n := new(natNet)
					a, _ := w.natted(n, hostA, peerA, kind, config)
					b, _ := w.natted(n, hostB, peerB, kind, config)
					x, y := openBoth(a, b, []string{peerA}, []string{peerB}, 0)
					requireOneSession(t, a, b, x, y)
					require.LessOrEqual(t, max(x.in, y.in), 200*time.Millisecond)
				})
			})
		}
	}
}

// One session comes of both calls on bad links, whichever end is first. Of several
// addresses of a peer, one that works is used: in its network, or outside. Two networks
// may have the same addresses.
func TestSimultaneousOpenCandidates(t *testing.T) {
	const dead, nobody = "203.0.113.99:9", "10.9.9.9:9"
	for name, test := range map[string]struct {
		lanA, lanB string
		toA, toB   []string
		remote     string // of a
	}{
		"the only one":        {"one", "two", []string{peerA}, []string{peerB}, peerB},
		"in one network":      {"one", "one", []string{peerA, nobody, hostA}, []string{peerB, nobody, hostB}, hostB},
		"one end knows":       {"one", "one", []string{peerA, hostA}, []string{hostB}, hostB},
		"in two":              {"one", "two", []string{dead, hostA, peerA}, []string{dead, hostB, peerB}, peerB},
		"own address":         {"one", "two", []string{peerA, hostA, hostB}, []string{peerB, hostA, hostB}, peerB},
		"only the last":       {"one", "two", []string{dead, nobody, hostA, peerA}, []string{peerB}, peerB},
		"the first is better": {"one", "two", []string{peerA, dead}, []string{peerB, dead}, peerB},
	} {
		for protection, config := range peerConfigs(t) {
			t.Run(name+", "+protection, func(t *testing.T) {
				for seed := range some(40, 4) {
					random := rand.New(rand.NewPCG(seed, 4))
					inWorld(t, seed, randomLink(random, 100*time.Millisecond, 0.2), func(t *testing.T, w *world) {
						n := new(natNet)
						a, _ := w.inLAN(n, test.lanA, hostA, peerA, allFiltering[random.IntN(3)], config)
						b, _ := w.inLAN(n, test.lanB, hostB, peerB, allFiltering[random.IntN(3)], config)
						later := time.Duration(random.IntN(2)*random.IntN(3000)) * time.Millisecond
						x, y := openBoth(a, b, test.toA, test.toB, later)
						requireOneSession(t, a, b, x, y)
						require.Equal(t, test.remote, x.c.RemoteAddr().String())
					})
				}
			})
		}
	}
}

// What cannot become a session is an error at once.
func TestSimultaneousOpenErrors(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		open := func(e *kcp.Endpoint, o kcp.DialOptions) error {
			begin := time.Now()
			o.SimultaneousOpen = true
			_, err := e.Dial(context.Background(), udpAddr(peerB), &o)
			require.Zero(t, time.Since(begin))
			return err
		}
		client := testTLS().Clone()
		client.Certificates = nil
		e, _ := w.endpoint(peerA, &kcp.Config{TLS: client})
		var invalid *kcp.ConfigError
		require.ErrorAs(t, open(e, kcp.DialOptions{}), &invalid)
		require.Equal(t, "TLS.Certificates", invalid.Field)
		e, _ = w.endpoint("203.0.113.2:4000", nil)
		var option *kcp.OptionError
		require.ErrorAs(t, open(e, kcp.DialOptions{Conv: id(1)}), &option)
		require.ErrorAs(t, open(e, kcp.DialOptions{Quiet: true}), &option)
		require.ErrorAs(t, open(e, kcp.DialOptions{Candidates: make([]net.Addr, 17)}), &option)
		ctx, cancel := context.WithCancel(context.Background())
		first := make(chan error)
		go func() {
			_, err := e.Dial(ctx, udpAddr(peerB), &kcp.DialOptions{SimultaneousOpen: true})
			first <- err
		}()
		synctest.Wait()
		require.ErrorIs(t, open(e, kcp.DialOptions{}), kcp.ErrInUse)
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		e, _ = w.endpoint("203.0.113.3:4000", &kcp.Config{DialTimeout: -1})
		require.ErrorAs(t, open(e, kcp.DialOptions{}), &option)
	})
}

// forgedTie returns a packet that may seem to be the HELLO of an end whose peer dials it.
func forgedTie(random *rand.Rand) []byte {
	hello, info := segment(83, 1, random.Uint32(), 0, 0, ""), segment(84, 2, 0x7d|random.Uint32()&2, 2, 0, "")
	tie := segment(84, 15, 1<<32-1, 1<<32-1, 0, "")
	switch random.IntN(4) {
	case 0:
		return packetOf(random.Uint32(), tie)
	case 1:
		tie = segment(84, 15, random.Uint32(), random.Uint32(), 0, "")
	}
	return packetOf(random.Uint32(), hello, info, tie)
}
