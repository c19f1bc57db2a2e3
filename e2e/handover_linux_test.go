package e2e

import (
	"context"
	"crypto/aes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// unixPair returns the two ends of a Unix stream socket.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	ends := testenv.UnixPair(t)
	return ends[0], ends[1]
}

// unconnected returns an end whose other one does nothing.
func unconnected(t *testing.T) *net.UnixConn {
	a, _ := unixPair(t)
	return a
}

// generation is a listener whose sessions say who it is, and then echo.
type generation struct {
	name  string
	l     *kcp.Listener
	ended chan error // what Accept has returned at last
	left  chan error // what HandOver has returned
}

// serves starts a generation on l.
func serves(t *testing.T, name string, l *kcp.Listener) *generation {
	g := &generation{name, l, make(chan error, 1), make(chan error, 10)}
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				g.ended <- err
				return
			}
			go func() {
				_, _ = c.Write([]byte(name))
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return g
}

// handsOver makes g hand over to a new generation of that name.
func (g *generation) handsOver(t *testing.T, name string, config *kcp.Config) *generation {
	t.Helper()
	a, b := unixPair(t)
	go func() { g.left <- g.l.HandOver(unhurried(), a) }()
	l, err := kcp.TakeOver(unhurried(), b, config)
	require.NoError(t, err)
	require.Equal(t, g.l.Addr(), l.Addr())
	return serves(t, name, l)
}

// unhurried returns a context for takeovers that have to succeed on a busy machine.
func unhurried() context.Context { return takeover.WithFactor(context.Background(), 1000) }

// client is a session with a generation.
type client struct {
	*kcp.Conn
	seed uint64
}

// dials opens a session, which must be with the generation of that name.
func dials(t *testing.T, addr net.Addr, config *kcp.Config, name string) *client {
	t.Helper()
	var patient kcp.Config
	if config != nil {
		patient = *config
	}
	patient.DialTimeout = time.Hour // the test binary has a shorter limit
	c, err := kcp.Dial("udp", addr.String(), &patient)
	require.NoError(t, err)
	t.Cleanup(func() { c.Abort(0, "") })
	_, err = c.Write([]byte{'?'}) // a legacy session begins with data
	require.NoError(t, err)
	receive(t, c, []byte(name+"?"))
	return &client{c, 1}
}

// echoes checks that n bytes come back.
func (c *client) echoes(t *testing.T, n int) {
	t.Helper()
	want := content(c.seed, n)
	c.seed++
	go func() { _, _ = c.Write(want) }()
	receive(t, c.Conn, want)
}

// takeoverConfigs are the configurations of both ends.
func takeoverConfigs(t *testing.T) map[string]kcp.Config {
	gcm := testenv.AEAD(t)
	block, err := aes.NewCipher(make([]byte, 32))
	require.NoError(t, err)
	return map[string]kcp.Config{
		"plain":         {},
		"aes-gcm":       {Cipher: gcm},
		"aes-cfb":       {Cipher: crypt.CFB(block)},
		"tls":           *secured(kcp.Config{}),
		"fec":           {FEC: kcp.FEC{Data: 5, Parity: 2}},
		"shards":        {Shards: 3},
		"shared convs":  {SharedConvs: true},
		"tls, shards":   *secured(kcp.Config{Shards: 2}),
		"only cookies":  {AddressValidation: kcp.ValidateAlways},
		"legacy client": {LegacyPeers: kcp.LegacyAllow},
	}
}

// clientConfig returns the dialling end's configuration of a listening end's.
func clientConfig(name string, config kcp.Config) *kcp.Config {
	config.Shards = 0
	config.LegacyPeers = 0
	return &config
}

// Three processes follow each other on one port, while their sessions carry bytes. Each
// session stays in the one that it was opened in, and new ones are with the latest. Each endpoint closes with its last
// session, and none of what the takeover took is left.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, config := range takeoverConfigs(t) {
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", &config)
			require.NoError(t, err)
			dial := clientConfig(name, config)
			generations := []*generation{serves(t, "g0", l)}
			var clients [3][]*client
			for i := range clients {
				var echoes sync.WaitGroup
				for _, c := range slices.Concat(clients[:i]...) {
					echoes.Go(func() { c.echoes(t, 100_000) })
				}
				if i > 0 { // with bytes on their way both ways
					generations = append(generations, generations[i-1].handsOver(t, fmt.Sprint("g", i), &config))
				}
				for range 4 {
					clients[i] = append(clients[i], dials(t, l.Addr(), dial, fmt.Sprint("g", i)))
				}
				echoes.Wait()
				for _, c := range slices.Concat(clients[:i+1]...) {
					c.echoes(t, 20_000)
				}
			}
			last := generations[2].l
			require.Equal(t, 8, last.Endpoint().Stats().PredecessorSessions)
			require.NotZero(t, last.Endpoint().Stats().Forwarded)
			for i := range 2 { // not in the order of their age
				g := generations[1-i]
				require.ErrorIs(t, <-g.ended, net.ErrClosed)
				_, err := g.l.Endpoint().Dial(context.Background(), l.Addr(), nil)
				require.ErrorIs(t, err, net.ErrClosed)
				require.ErrorIs(t, g.l.HandOver(context.Background(), unconnected(t)), net.ErrClosed)
				for _, c := range clients[1-i] {
					c.echoes(t, 1000)
					require.NoError(t, c.Close())
				}
				require.NoError(t, <-g.left)
			}
			testenv.Await(t, func() bool { return last.Endpoint().Stats().PredecessorSessions == 0 })
			for _, c := range clients[2] {
				c.echoes(t, 20_000)
				require.NoError(t, c.Close())
			}
		})
	}
}

// After the end of a successor its predecessor reads again, for its own sessions and
// those before it, and can hand over to another. It serves no new listener.
func TestTakeoverSuccessorDies(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "tls, shards"} {
		config := takeoverConfigs(t)[name]
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", &config)
			require.NoError(t, err)
			dial := clientConfig(name, config)
			g0 := serves(t, "g0", l)
			c0 := dials(t, l.Addr(), dial, "g0")
			g1 := g0.handsOver(t, "g1", &config)
			c1 := dials(t, l.Addr(), dial, "g1")
			for i := range 3 {
				g := g1.handsOver(t, "lost", &config)
				c := dials(t, l.Addr(), dial, "lost")
				c0.echoes(t, 10_000)
				c1.echoes(t, 10_000)
				require.NoError(t, g.l.Endpoint().Close())
				c0.echoes(t, 10_000)
				c1.echoes(t, 10_000)
				_, err := io.Copy(io.Discard, c)
				require.Error(t, err, i)
			}
			_, err = g1.l.Endpoint().Listen()
			require.ErrorIs(t, err, net.ErrClosed)
			g2 := g1.handsOver(t, "g2", &config)
			c2 := dials(t, l.Addr(), dial, "g2")
			for _, c := range []*client{c0, c1, c2} {
				c.echoes(t, 10_000)
			}
			require.NoError(t, c0.Close())
			require.NoError(t, <-g0.left)
			require.NoError(t, c1.Close())
			for range 4 {
				require.NoError(t, <-g1.left)
			}
			c2.echoes(t, 10_000)
			testenv.Await(t, func() bool { return g2.l.Endpoint().Stats().PredecessorSessions == 0 })
		})
	}
}

// atAddress returns the address of a listener on all addresses of the host, at one of
// 127.0.0.0/8.
func atAddress(l *kcp.Listener, last byte) *net.UDPAddr {
	return &net.UDPAddr{IP: net.IPv4(127, 0, 0, last).To4(), Port: l.Addr().(*net.UDPAddr).Port}
}

// redirector forwards between one client and a server, as NATs in front of both may: from a
// port that it changes, to an address that it changes. Answers from elsewhere are lost.
type redirector struct {
	front *net.UDPConn

	mu   sync.Mutex // guards the fields below
	peer *net.UDPAddr
	back *net.UDPConn
}

func newRedirector(t *testing.T, to net.Addr) *redirector {
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	r := &redirector{front: front}
	r.redirect(t, to)
	t.Cleanup(func() { _, _ = front.Close(), r.back.Close() })
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := front.ReadFromUDP(b)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.peer = from
			_, _ = r.back.Write(b[:n])
			r.mu.Unlock()
		}
	}()
	return r
}

// redirect makes packets come from another port, and go to an address.
func (r *redirector) redirect(t *testing.T, to net.Addr) {
	back, err := net.DialUDP("udp4", nil, to.(*net.UDPAddr))
	require.NoError(t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back != nil {
		_ = r.back.Close()
	}
	r.back = back
	go func() {
		b := make([]byte, 65536)
		for {
			n, err := back.Read(b)
			if err != nil {
				return
			}
			r.mu.Lock()
			_, _ = r.front.WriteToUDP(b[:n], r.peer)
			r.mu.Unlock()
		}
	}()
}

// A session that migrates goes on at the address that its peer sends to from then on, in
// a process that has handed its sockets over too.
func TestMigrationFollowsAskedAddress(t *testing.T) {
	for name, config := range map[string]*kcp.Config{"AES-GCM": {Cipher: testenv.AEAD(t)}, "TLS": secured(kcp.Config{})} {
		for _, takeover := range []bool{false, true} {
			t.Run(fmt.Sprint(name, takeover), func(t *testing.T) {
				l, err := kcp.Listen("udp4", "0.0.0.0:0", config)
				require.NoError(t, err)
				g := serves(t, "g0", l)
				relay := newRedirector(t, atAddress(l, 1))
				c := dials(t, relay.front.LocalAddr(), config, "g0")
				var server *kcp.Conn
				for s := range l.Endpoint().Sessions() {
					server = s
				}
				require.Equal(t, atAddress(l, 1), server.LocalAddr())
				if takeover {
					g = g.handsOver(t, "g1", config)
				}
				for _, last := range []byte{2, 2, 3} {
					relay.redirect(t, atAddress(g.l, last))
					c.echoes(t, 50_000)
					require.Equal(t, atAddress(g.l, last), server.LocalAddr())
				}
			})
		}
	}
}

// deaf is a socket that does not hear what arrives while it is set.
type deaf struct {
	*net.UDPConn
	set atomic.Bool
}

func (d *deaf) ReadFromAddrPort(b []byte) (n int, from netip.AddrPort, err error) {
	for {
		if n, from, err = d.ReadFromUDPAddrPort(b); err != nil || !d.set.Load() {
			return n, from, err
		}
	}
}

func (d *deaf) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	return d.WriteToUDPAddrPort(b, to)
}

// dialsDeaf opens a session with g0, on a socket that can be deaf.
func dialsDeaf(t *testing.T, addr net.Addr, config *kcp.Config) (*kcp.Conn, *deaf) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	socket := &deaf{UDPConn: pc}
	e, err := kcp.NewEndpoint(socket, config)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	c, err := e.Dial(t.Context(), addr, nil)
	require.NoError(t, err)
	writeAll(t, c, []byte{'?'})
	receive(t, c, []byte("g0?"))
	return c, socket
}

// hearsAgain ends the deafness. c then hears that its session has ended in order.
func (d *deaf) hearsAgain(t *testing.T, c *kcp.Conn) {
	t.Helper()
	d.set.Store(false)
	<-c.Done()
	require.ErrorIs(t, c.Err(), net.ErrClosed)
}

// The last answer of an old session is lost, and its process has ended since. The
// successor tells the client that nothing more is to be heard of the session.
func TestTakeoverLostAnswerOldGone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "aes-gcm", "tls", "shared convs, aes-gcm"} {
		config, ok := takeoverConfigs(t)[name]
		if !ok {
			config = kcp.Config{Cipher: testenv.AEAD(t), SharedConvs: true}
		}
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", &config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			c, socket := dialsDeaf(t, l.Addr(), &config)
			g1 := g0.handsOver(t, "g1", &config)
			socket.set.Store(true)
			go c.Close()
			testenv.Await(t, func() bool { return g1.l.Endpoint().Stats().PredecessorSessions == 0 })
			require.NoError(t, <-g0.left)
			socket.hearsAgain(t, c)
		})
	}
}

// After an old session has ended, the same address opens another one of the same id: with
// the successor, although the old process still runs.
func TestTakeoverSameConvAnew(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*kcp.Config{
		"plain": {SharedConvs: true}, "aes-gcm": {Cipher: testenv.AEAD(t), SharedConvs: true}, "tls": secured(kcp.Config{SharedConvs: true}),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			dials(t, l.Addr(), config, "g0") // keeps g0 alive
			first, _ := dialsDeaf(t, l.Addr(), config)
			conv := first.Conv()
			g1 := g0.handsOver(t, "g1", config)
			require.NoError(t, first.Close())
			testenv.Await(t, func() bool { return first.Endpoint().Stats().Sessions+g1.l.Endpoint().Stats().PredecessorSessions == 1 })
			c, err := first.Endpoint().Dial(t.Context(), l.Addr(), &kcp.DialOptions{Conv: &conv})
			require.NoError(t, err)
			writeAll(t, c, []byte{'?'})
			receive(t, c, []byte("g1?"))
		})
	}
}

// A session of the successor has the id of an old one, and its peer moves. The session
// has the packets, too.
func TestTakeoverSameConvMoves(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*kcp.Config{
		"aes-gcm": {Cipher: testenv.AEAD(t)}, "salsa20": {Cipher: hidingCiphers(t)["Salsa20"]}, "tls": secured(kcp.Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			old := dials(t, l.Addr(), config, "g0")
			g0.handsOver(t, "g1", config)
			relay := newRedirector(t, l.Addr())
			pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			e, err := kcp.NewEndpoint(pc, config)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
			conv := old.Conv()
			c, err := e.Dial(t.Context(), relay.front.LocalAddr(), &kcp.DialOptions{Conv: &conv})
			require.NoError(t, err)
			writeAll(t, c, []byte{'?'})
			receive(t, c, []byte("g1?"))
			moved := &client{c, 1}
			for range 3 {
				relay.redirect(t, l.Addr())
				moved.echoes(t, 10_000)
			}
			old.echoes(t, 10_000)
		})
	}
}
