package kcp

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What tests of all packages share, under short names.
var (
	repeated       = testenv.Repeated
	fewer          = testenv.Fewer
	long           = testenv.Long
	simulated      = testenv.Simulated
	sequential     = testenv.Sequential
	ofSources      = testenv.OfSources
	alone          = testenv.Alone
	memoryInUse    = testenv.MemoryInUse
	content        = testenv.Content
	send           = testenv.Send
	receive        = testenv.Receive
	bothWays       = testenv.BothWays
	requireTimeout = testenv.RequireTimeout
	lossy, clean   = testenv.Lossy(), testenv.Clean()

	segment   = testenv.Segment
	push      = testenv.Push
	packetOf  = testenv.PacketOf
	floodAddr = testenv.FloodAddr

	manyPushes       = testenv.ManyPushes
	oob              = testenv.OutOfBand
	fecShard         = testenv.FECShard
	withConv         = testenv.WithConv
	sealed           = testenv.Sealed
	hidingCiphers    = testenv.HidingCiphers
	authenticCiphers = testenv.AuthenticCiphers
	longChain        = testenv.LongChain
	writeAll         = testenv.WriteAll

	bubbleTime  = testenv.BubbleTime()
	testTLS     = sync.OnceValue(testenv.TLS) // all tests share the key
	testCiphers = testenv.Ciphers
	testAEAD    = testenv.AEAD
)

// leadable is a socket that calls may read.
type leadable = testenv.Leadable

// inWorld runs f in a world, as testenv.InWorld does.
func inWorld(t *testing.T, seed uint64, link netsim.LinkConfig, f func(t *testing.T, w *world)) {
	t.Helper()
	testenv.InWorld(t, seed, link, func(t *testing.T, network *netsim.Network, leads bool) {
		f(t, &world{t: t, net: network, leads: leads})
	})
}

// world is a virtual network with endpoints of ours on it. It lives in a
// synctest bubble: all its time is virtual.
type world struct {
	t   *testing.T
	net *netsim.Network

	leads bool // calls may read the sockets, as they may those of the system
}

// socket returns pc as an endpoint of w is to have it.
func (w *world) socket(pc *netsim.PacketConn) net.PacketConn {
	if w.leads {
		return leadable{PacketConn: pc}
	}
	return pc
}

const serverAddr = "10.0.0.1:4000"

// endpoint opens a socket at addr with an endpoint on it.
func (w *world) endpoint(addr string, config *Config) (*Endpoint, *netsim.PacketConn) {
	w.t.Helper()
	return w.endpointOn(addr, config, w.socket)
}

// endpointOn is endpoint on what wrap makes of the socket.
func (w *world) endpointOn(addr string, config *Config, wrap func(*netsim.PacketConn) net.PacketConn) (*Endpoint, *netsim.PacketConn) {
	w.t.Helper()
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	e, err := NewEndpoint(wrap(pc), config)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		_, _ = e.Close(), pc.Close() // a test may have closed them
	})
	return e, pc
}

// listen opens the server.
func (w *world) listen(config *Config) *Listener {
	w.t.Helper()
	l, _ := w.server(config)
	return l
}

// server is listen that returns the socket too. A server whose socket is closed
// has been killed: it says nothing to its peers.
func (w *world) server(config *Config) (*Listener, *netsim.PacketConn) {
	w.t.Helper()
	return w.serverOn(config, w.socket)
}

// serverOn opens the server on what wrap makes of its socket.
func (w *world) serverOn(config *Config, wrap func(*netsim.PacketConn) net.PacketConn) (*Listener, *netsim.PacketConn) {
	w.t.Helper()
	e, pc := w.endpointOn(serverAddr, config, wrap)
	l, err := e.Listen()
	require.NoError(w.t, err)
	return l, pc
}

// dial opens a session from e to the server.
func (w *world) dial(e *Endpoint) *Conn {
	w.t.Helper()
	addr, err := net.ResolveUDPAddr("udp", serverAddr)
	require.NoError(w.t, err)
	c, err := e.Dial(context.Background(), addr, nil)
	require.NoError(w.t, err)
	return c
}

// pair returns the two ends of a session over which one byte has gone.
func (w *world) pair(client, server *Config) (a, b *Conn, l *Listener) {
	w.t.Helper()
	l = w.listen(server)
	e, _ := w.endpoint("10.0.0.2:0", client)
	a = w.dial(e)
	_, err := a.Write([]byte{42})
	require.NoError(w.t, err)
	b, err = l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	first := make([]byte, 1)
	_, err = io.ReadFull(b, first)
	require.NoError(w.t, err)
	require.Equal(w.t, byte(42), first[0])
	return a, b, l
}

// movable returns the two ends of a session over which something has gone both
// ways. The client's address is that of the socket, and can change.
func (w *world) movable(config *Config) (a, b *Conn, l *Listener, pc *netsim.PacketConn) {
	w.t.Helper()
	l = w.listen(config)
	e, pc := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	b = accepted(w.t, l)
	bothWays(w.t, a, b, []byte("here"), []byte("here"))
	return a, b, l, pc
}

func accepted(t *testing.T, l *Listener) *Conn {
	t.Helper()
	c, err := l.AcceptKCP(context.Background())
	require.NoError(t, err)
	return c
}

// settle lets the endpoints read all that has arrived. A socket that calls read
// may be without a reader for some time.
func (w *world) settle() {
	time.Sleep(3 * wakeup.Grace)
	synctest.Wait()
}

// id returns a conversation id for DialOptions.
func id(conv uint32) *uint32 { return &conv }

// ourToken returns the token that the peer's signals have to show.
func ourToken(c *Conn) uint32 {
	ours, _ := c.session.Inside().Tokens()
	return ours
}

// peerToken returns the token of the peer.
func peerToken(c *Conn) uint32 {
	_, peers := c.session.Inside().Tokens()
	return peers
}
