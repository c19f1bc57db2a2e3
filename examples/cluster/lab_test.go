package cluster

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
)

const testCluster = "nodes.test"

// patience is the limit of calls that need one. The test binary has a shorter one.
const patience = time.Hour

// testAuthority returns an authority.
func testAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := NewAuthority(testCluster)
	require.NoError(t, err)
	return a
}

// config returns the settings of a transport on loopback.
func (a *Authority) config(t testing.TB, name string) *TransportConfig {
	t.Helper()
	cert, err := a.Issue(name)
	require.NoError(t, err)
	return &TransportConfig{Bind: "127.0.0.1:0", Certificate: cert, CA: a.Pool(), Cluster: a.Cluster}
}

// transport returns a transport that is shut down after the test.
func (a *Authority) transport(t testing.TB, name string) *Transport {
	t.Helper()
	return startTransport(t, a.config(t, name))
}

func startTransport(t testing.TB, c *TransportConfig) *Transport {
	t.Helper()
	tr, err := NewTransport(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tr.Shutdown() })
	return tr
}

// addressOf returns the address of a transport, with its name.
func addressOf(t *Transport) memberlist.Address {
	return memberlist.Address{Addr: t.Addr().String(), Name: t.Name()}
}

// quickList returns settings of memberlist for tests: nodes are found and missed soon. On
// a busy machine they miss nodes that live, for a while.
func quickList() *memberlist.Config {
	c := memberlist.DefaultLocalConfig()
	c.ProbeInterval = 300 * time.Millisecond
	c.ProbeTimeout = 150 * time.Millisecond
	c.GossipInterval = 20 * time.Millisecond
	c.PushPullInterval = time.Second
	c.TCPTimeout = 2 * time.Second
	c.Logger = log.New(io.Discard, "", 0)
	return c
}

// patientList returns settings of memberlist that do not take a node for dead because a
// test, or a busy machine, keeps it from answering for a while.
func patientList() *memberlist.Config {
	c := quickList()
	c.ProbeInterval, c.ProbeTimeout, c.SuspicionMult = 500*time.Millisecond, 400*time.Millisecond, 20
	return c
}

// node starts a node that is closed after the test. change may be nil.
func (a *Authority) node(t testing.TB, name string, change func(*Config), seeds ...*Node) *Node {
	t.Helper()
	c := &Config{TransportConfig: *a.config(t, name), Memberlist: patientList(), RejoinInterval: 100 * time.Millisecond}
	for _, s := range seeds {
		c.Seeds = append(c.Seeds, s.Addr().String())
	}
	if change != nil {
		change(c)
	}
	n, err := Start(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// nodes starts nodes that have found each other.
func (a *Authority) nodes(t testing.TB, names ...string) (all []*Node) {
	t.Helper()
	for i, name := range names {
		all = append(all, a.node(t, name, nil, all[:min(i, 1)]...))
	}
	allKnow(t, all...)
	return all
}

// allKnow waits until each node has all others as members.
func allKnow(t testing.TB, all ...*Node) {
	t.Helper()
	for _, n := range all {
		await.True(t, func() bool { return len(n.Members()) == len(all)-1 })
	}
}

// content returns the bytes of message number i of a node.
func content(from string, i, size int) []byte {
	seed := sha256.Sum256(fmt.Appendf(nil, "%s %d", from, i))
	b := make([]byte, size)
	rand.NewChaCha8(seed).Read(b)
	return b
}

// cutConn is a socket that drops all packets, both ways, while cut is true.
type cutConn struct {
	net.PacketConn
	cut     atomic.Bool
	dropped atomic.Int64
}

func (c *cutConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(b)
		if err != nil || !c.cut.Load() {
			return n, from, err
		}
		c.dropped.Add(1)
	}
}

func (c *cutConn) WriteTo(b []byte, to net.Addr) (int, error) {
	if c.cut.Load() {
		c.dropped.Add(1)
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

// listenCut returns a cutConn on loopback.
func listenCut(t testing.TB) *cutConn {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	return &cutConn{PacketConn: pc}
}

// silent returns the address of a socket that never answers.
func silent(t testing.TB) string {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = pc.Close() })
	return pc.LocalAddr().String()
}
