package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// world is a network in virtual time, and an authority.
type world struct {
	*testing.T
	net  *netsim.Network
	ca   tls.Certificate
	pool *x509.CertPool
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(30 * time.Second) }) // memberlist does not wait for its goroutines
		link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.02}
		w := &world{t, netsim.NewNetwork(1, link), testenv.Certificate(t, nil, true, "authority"), x509.NewCertPool()}
		w.pool.AddCert(w.ca.Leaf)
		test(w)
	})
}

// transport returns the transport of a node, host i of the network.
func (w *world) transport(i int, name string) *Transport {
	pc, err := w.net.Listen(fmt.Sprintf("10.0.0.%d:7946", i))
	require.NoError(w, err)
	cert := testenv.Certificate(w, &w.ca, false, name, "nodes.test")
	t, err := Listen(&Config{PacketConn: pc, Certificate: cert, CA: w.pool, Cluster: "nodes.test"})
	require.NoError(w, err)
	w.Cleanup(func() { _ = t.Shutdown() })
	return t
}

// node is a member that keeps what it gets.
type node struct {
	memberlist.EventDelegate // nil
	*memberlist.Memberlist
	mu  sync.Mutex
	got [][]byte
}

func (n *node) NodeMeta(int) []byte             { return nil }
func (n *node) GetBroadcasts(_, _ int) [][]byte { return nil }
func (n *node) LocalState(bool) []byte          { return nil }
func (n *node) MergeRemoteState([]byte, bool)   {}
func (n *node) NotifyMsg(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, bytes.Clone(b))
}

func (w *world) node(i int) *node {
	t := w.transport(i, fmt.Sprint("node ", i))
	n, c := new(node), t.Memberlist()
	c.Delegate, c.LogOutput = n, io.Discard
	var err error
	n.Memberlist, err = memberlist.Create(c)
	require.NoError(w, err)
	w.Cleanup(func() { _ = n.Shutdown() })
	return n
}

// know waits until each node knows so many.
func know(t testing.TB, count int, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		for end := time.Now().Add(time.Minute); n.NumMembers() != count; time.Sleep(time.Second) {
			require.True(t, time.Now().Before(end), "%s knows %d", n.LocalNode().Name, n.NumMembers())
		}
	}
}

// Nodes find each other, send each other messages by streams and by datagrams, and notice
// that one is cut off, which comes back.
func TestCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		all := []*node{w.node(1)}
		for i := 1; i < 4; i++ {
			all = append(all, w.node(i+1))
			_, err := all[i].Join([]string{"10.0.0.1:7946"})
			require.NoError(w, err)
		}
		know(w, 4, all...)
		want := testenv.Content(1, 300_000)
		others := slices.DeleteFunc(all[0].Members(), func(m *memberlist.Node) bool { return m.Name == "node 1" })
		for _, m := range others {
			require.NoError(w, all[0].SendReliable(m, want))
		}
		for range 20 {
			for _, m := range others {
				require.NoError(w, all[0].SendBestEffort(m, want[:1000]))
			}
		}
		time.Sleep(3 * time.Second)
		for _, n := range all[1:] {
			n.mu.Lock()
			require.InDelta(w, 21, len(n.got), 8, "some datagrams are lost")
			n.got = slices.DeleteFunc(n.got, func(b []byte) bool { return bytes.Equal(want[:1000], b) })
			require.Len(w, n.got, 1)
			require.True(w, bytes.Equal(want, n.got[0]))
			n.mu.Unlock()
		}
		for i := 1; i < 4; i++ {
			w.net.Cut("10.0.0.4", fmt.Sprint("10.0.0.", i))
		}
		know(w, 3, all[:3]...)
		know(w, 1, all[3])
		for i := 1; i < 4; i++ {
			w.net.Heal("10.0.0.4", fmt.Sprint("10.0.0.", i))
		}
		_, err := all[3].Join([]string{"10.0.0.1:7946"})
		require.NoError(w, err)
		know(w, 4, all...)
		require.NoError(w, all[3].Leave(time.Second))
		know(w, 3, all[:3]...)
	})
}

// Only nodes with a certificate of the authority, for this cluster, get a session, and
// only the node that is meant gets anything.
func TestStrangers(t *testing.T) {
	inWorld(t, func(w *world) {
		a := memberlist.Address{Addr: "10.0.0.1:7946", Name: "a"}
		at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(a.Addr))
		w.transport(1, "a")
		other := testenv.Certificate(w, nil, true, "authority")
		for i, cert := range []tls.Certificate{
			testenv.Certificate(w, &w.ca, false, "b", "nodes.test"),
			testenv.Certificate(w, &w.ca, false, "b", "other.test"),
			testenv.Certificate(w, &other, false, "b", "nodes.test"),
		} {
			config, err := (&Config{Certificate: cert, CA: w.pool, Cluster: "nodes.test"}).kcpConfig()
			require.NoError(w, err)
			config.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
			e, _ := lab.Endpoint(w, w.net, "10.0.0.9:0", config)
			_, err = e.Dial(w.Context(), at, nil)
			var alert tls.AlertError
			require.Equal(w, i > 0, errors.As(err, &alert), err)
			require.NoError(w, e.Close())
		}
		b := w.transport(2, "b")
		_, err := b.DialAddressTimeout(memberlist.Address{Addr: a.Addr, Name: "c"}, time.Second)
		require.ErrorContains(w, err, `is "a", not "c"`)
		_, err = b.WriteToAddress([]byte("for c"), memberlist.Address{Addr: a.Addr, Name: "c"})
		require.ErrorContains(w, err, `is "a", not "c"`)
		_, err = b.DialAddressTimeout(a, time.Second)
		require.NoError(w, err)
	})
}

// Packets for a node that does not answer wait for nothing, and a dial no longer than it
// may.
func TestDeadNode(t *testing.T) {
	inWorld(t, func(w *world) {
		b, begin := w.transport(1, "b"), time.Now()
		for range 1000 {
			_, err := b.WriteTo([]byte("into the dark"), "10.0.0.9:7946")
			require.NoError(w, err)
		}
		require.Equal(w, begin, time.Now())
		_, err := b.DialTimeout("10.0.0.9:7946", 200*time.Millisecond)
		require.ErrorIs(w, err, context.DeadlineExceeded)
		require.Equal(w, 200*time.Millisecond, time.Since(begin))
	})
}
