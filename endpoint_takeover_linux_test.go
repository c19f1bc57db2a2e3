package kcp

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

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
func dialsDeaf(t *testing.T, addr net.Addr, config *Config) (*Conn, *deaf) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	socket := &deaf{UDPConn: pc}
	e, err := NewEndpoint(socket, config)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	c, err := e.Dial(t.Context(), addr)
	require.NoError(t, err)
	_, err = c.Write([]byte{'?'})
	require.NoError(t, err)
	receive(t, c, []byte("g0?"))
	return c, socket
}

// hearsAgain ends the deafness. c then hears that its session has ended in order.
func (d *deaf) hearsAgain(t *testing.T, c *Conn) {
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
			config = Config{Cipher: testenv.AEAD(t), SharedConvs: true}
		}
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", &config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			c, socket := dialsDeaf(t, l.Addr(), &config)
			g1 := g0.handsOver(t, "g1", &config)
			socket.set.Store(true)
			go c.Close()
			await.True(t, func() bool { return g1.l.Stats().PredecessorSessions == 0 })
			require.NoError(t, <-g0.left)
			await.True(t, func() bool { return !g1.l.ep.takeover.Before.Any() })
			socket.hearsAgain(t, c)
		})
	}
}

// After an old session has ended, the same address opens another one of the same id: with
// the successor, although the old process still runs.
func TestTakeoverSameConvAnew(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain": {SharedConvs: true}, "aes-gcm": {Cipher: testenv.AEAD(t), SharedConvs: true}, "tls": secured(Config{SharedConvs: true}),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			dials(t, l.Addr(), config, "g0") // keeps g0 alive
			first, _ := dialsDeaf(t, l.Addr(), config)
			conv := first.Conv()
			g1 := g0.handsOver(t, "g1", config)
			require.NoError(t, first.Close())
			await.True(t, func() bool { return first.ep.Stats().Sessions+g1.l.Stats().PredecessorSessions == 1 })
			c, err := first.ep.DialWith(t.Context(), l.Addr(), DialOptions{Conv: &conv})
			require.NoError(t, err)
			_, err = c.Write([]byte{'?'})
			require.NoError(t, err)
			receive(t, c, []byte("g1?"))
		})
	}
}

// A session of the successor has the id of an old one, and its peer moves. The session
// has the packets, too.
func TestTakeoverSameConvMoves(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"aes-gcm": {Cipher: testenv.AEAD(t)}, "salsa20": {Cipher: hidingCiphers(t)["Salsa20"]}, "tls": secured(Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			old := dials(t, l.Addr(), config, "g0")
			g0.handsOver(t, "g1", config)
			relay := newRedirector(t, l.Addr())
			pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			e, err := NewEndpoint(pc, config)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
			conv := old.Conv()
			c, err := e.DialWith(t.Context(), relay.front.LocalAddr(), DialOptions{Conv: &conv})
			require.NoError(t, err)
			_, err = c.Write([]byte{'?'})
			require.NoError(t, err)
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
