package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// What tests of all packages share, under short names.
var (
	repeated       = testenv.Repeated
	fewer          = testenv.Fewer
	long           = testenv.Long
	inFull         = testenv.InFull
	simulated      = testenv.Simulated
	sequential     = testenv.Sequential
	alone          = testenv.Alone
	memoryInUse    = testenv.MemoryInUse
	randomLink     = testenv.RandomLink
	content        = testenv.Content
	send           = testenv.Send
	receive        = testenv.Receive
	bothWays       = testenv.BothWays
	sum            = testenv.Sum
	requireTimeout = testenv.RequireTimeout
	lossy, clean   = testenv.Lossy(), testenv.Clean()

	segment   = testenv.Segment
	piece     = testenv.Piece
	push      = testenv.Push
	ack       = testenv.Ack
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

	serve      = ends.Serve
	accepted   = ends.Accepted
	ownAddress = ends.OwnAddress
	handlers   = ends.Handlers

	testTLS     = sync.OnceValue(testenv.TLS) // all tests share the key
	testCiphers = testenv.Ciphers
	testAEAD    = testenv.AEAD
	certificate = testenv.Certificate
)

const raceEnabled = testenv.RaceEnabled

// some returns n if all is to run, and otherwise a few.
func some(n, few uint64) uint64 {
	if inFull() {
		return n
	}
	return min(n, few)
}

// records keeps what is logged.
type records = testenv.Records

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

const serverAddr = "10.0.0.1:4000"

var acceptorAddr = netip.MustParseAddrPort(serverAddr)

// udpAddr parses an address.
func udpAddr(s string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// addrPort returns the address and port of a UDP address.
func addrPort(a net.Addr) netip.AddrPort { return a.(*net.UDPAddr).AddrPort() }

// id returns a conversation id for kcp.DialOptions.
func id(conv uint32) *uint32 { return &conv }

// cancelled is a context that has ended: calls with it do not wait.
func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// deaf makes all packets be lost, and hearing none.
func (w *world) deaf()    { w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) }
func (w *world) hearing() { w.net.SetFilter(nil) }

// cut has no packets between the client and the server pass, and heal has them pass.
func (w *world) cut()  { w.net.Cut("10.0.0.1", "10.0.0.2") }
func (w *world) heal() { w.net.Heal("10.0.0.1", "10.0.0.2") }

// after calls f when so much more time has passed.
func (w *world) after(d time.Duration, f func()) { w.net.At(w.net.Elapsed()+d, f) }

// socket returns pc as an endpoint of w is to have it.
func (w *world) socket(pc *netsim.PacketConn) net.PacketConn {
	if w.leads {
		return leadable{PacketConn: pc}
	}
	return pc
}

// endpoint opens a socket at addr with an endpoint on it.
func (w *world) endpoint(addr string, config *kcp.Config) (*kcp.Endpoint, *netsim.PacketConn) {
	w.t.Helper()
	return w.endpointOn(addr, config, w.socket)
}

// endpointOn is endpoint on what wrap makes of the socket.
func (w *world) endpointOn(addr string, config *kcp.Config, wrap func(*netsim.PacketConn) net.PacketConn) (*kcp.Endpoint, *netsim.PacketConn) {
	w.t.Helper()
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	e, err := kcp.NewEndpoint(wrap(pc), config)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		_, _ = e.Close(), pc.Close() // a test may have closed them
	})
	return e, pc
}

// client opens an endpoint that dials.
func (w *world) client(config *kcp.Config) *kcp.Endpoint {
	w.t.Helper()
	e, _ := w.endpoint("10.0.0.2:0", config)
	return e
}

// listen opens the server.
func (w *world) listen(config *kcp.Config) *kcp.Listener {
	w.t.Helper()
	l, _ := w.server(config)
	return l
}

// server is listen that returns the socket too. A server whose socket is closed
// has been killed: it says nothing to its peers.
func (w *world) server(config *kcp.Config) (*kcp.Listener, *netsim.PacketConn) {
	w.t.Helper()
	return w.serverOn(config, w.socket)
}

// serverOn opens the server on what wrap makes of its socket.
func (w *world) serverOn(config *kcp.Config, wrap func(*netsim.PacketConn) net.PacketConn) (*kcp.Listener, *netsim.PacketConn) {
	w.t.Helper()
	e, pc := w.endpointOn(serverAddr, config, wrap)
	l, err := e.Listen()
	require.NoError(w.t, err)
	return l, pc
}

// dial opens a session from e to the server.
func (w *world) dial(e *kcp.Endpoint) *kcp.Conn {
	w.t.Helper()
	c, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
	require.NoError(w.t, err)
	return c
}

// dialWith opens a session from e to addr.
func (w *world) dialWith(e *kcp.Endpoint, addr string, o kcp.DialOptions) *kcp.Conn {
	w.t.Helper()
	c, err := e.Dial(context.Background(), udpAddr(addr), &o)
	require.NoError(w.t, err)
	return c
}

// pair returns the two ends of a session over which one byte has gone.
func (w *world) pair(client, server *kcp.Config) (a, b *kcp.Conn, l *kcp.Listener) {
	w.t.Helper()
	l = w.listen(server)
	a = w.dial(w.client(client))
	w.say(a, "*")
	b = accepted(w.t, l)
	w.hear(b, "*")
	return a, b, l
}

// movable returns the two ends of a session over which something has gone both
// ways. The client's address is that of the socket, and can change.
func (w *world) movable(config *kcp.Config) (a, b *kcp.Conn, l *kcp.Listener, pc *netsim.PacketConn) {
	w.t.Helper()
	l = w.listen(config)
	e, pc := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	b = accepted(w.t, l)
	bothWays(w.t, a, b, []byte("here"), []byte("here"))
	return a, b, l, pc
}

// say writes s, and hear reads it.
func (w *world) say(c io.Writer, s string) {
	w.t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(w.t, err)
}

func (w *world) hear(c io.Reader, s string) {
	w.t.Helper()
	receive(w.t, c, []byte(s))
}

// move sends data over c and has it compared at the other end.
func (w *world) move(from, to *kcp.Conn, seed uint64, n int) {
	w.t.Helper()
	want := content(seed, n)
	send(w.t, from, want)
	receive(w.t, to, want)
}

// end reads what has to be the end of c, and returns its error.
func end(c io.Reader) error {
	n, err := c.Read(make([]byte, 1))
	if err == nil {
		err = fmt.Errorf("%d bytes in place of the end", n)
	}
	return err
}

// closing closes c, and returns where its error will be.
func closing(c io.Closer) <-chan error {
	result := make(chan error, 1)
	go func() { result <- c.Close() }()
	return result
}

// isLost requires that err says that the peer was lost.
func isLost(t *testing.T, err error) *kcp.PeerLostError {
	t.Helper()
	var lost *kcp.PeerLostError
	require.ErrorAs(t, err, &lost)
	return lost
}

func openStream(t *testing.T, c *kcp.Conn, options *kcp.StreamOptions) *kcp.Stream {
	t.Helper()
	s, err := c.OpenStream(context.Background(), options)
	require.NoError(t, err)
	return s
}

func acceptStream(t *testing.T, c *kcp.Conn) *kcp.Stream {
	t.Helper()
	s, err := c.AcceptStream(context.Background())
	require.NoError(t, err)
	return s
}

// streamPair returns the two ends of a stream of the session of a and b.
func streamPair(t *testing.T, a, b *kcp.Conn, options *kcp.StreamOptions) (*kcp.Stream, *kcp.Stream) {
	t.Helper()
	s := openStream(t, a, options)
	return s, acceptStream(t, b)
}

// settle lets the endpoints read all that has arrived. A socket that calls read
// may be without a reader for some time.
func (w *world) settle() {
	time.Sleep(3 * handoverGrace)
	synctest.Wait()
}

// secured returns config with TLS, for both ends.
func secured(config kcp.Config) *kcp.Config {
	config.TLS = testTLS()
	return &config
}
