package kcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stranger's largest datagram, in the name of an old session, ends nothing.
func TestTakeoverLargeDatagram(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{"plain": nil, "tls": secured(Config{})} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			c := dials(t, l.Addr(), config, "g0")
			g1 := g0.handsOver(t, "g1", config)
			large := bytes.Repeat([]byte{0xa2}, 60_000)
			if name == "plain" {
				large = bytes.Repeat(segment(cmdAck, 0, 0, 0, 0, ""), 2500)
			}
			binary.LittleEndian.PutUint32(large, c.Conv())
			stranger, err := net.Dial("udp", l.Addr().String())
			require.NoError(t, err)
			defer stranger.Close()
			_, err = stranger.Write(large)
			require.NoError(t, err)
			await.True(t, func() bool { return g1.l.Stats().BytesReceived >= uint64(len(large)) })
			for range 10 {
				dials(t, l.Addr(), config, "g1").echoes(t, 1000)
				c.echoes(t, 1000)
			}
			require.Equal(t, 1, g1.l.Stats().PredecessorSessions)
		})
	}
}

// A peer chooses the id of somebody else's session. Each packet finds its process all the
// same.
func TestTakeoverSameConv(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain": nil, "aes-gcm": {Cipher: testenv.AEAD(t)}, "aes-cfb": {Cipher: hidingCiphers(t)["CFB"]}, "tls": secured(Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", config)
			require.NoError(t, err)
			g := serves(t, "g0", l)
			clients := []*client{dials(t, l.Addr(), config, "g0")}
			conv := clients[0].Conv()
			for _, name := range []string{"g1", "g2", "g3"} {
				g = g.handsOver(t, name, config)
				pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
				require.NoError(t, err)
				e, err := NewEndpoint(pc, config)
				require.NoError(t, err)
				t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
				c, err := e.DialWith(t.Context(), l.Addr(), DialOptions{Conv: &conv})
				require.NoError(t, err)
				_, err = c.Write([]byte{'?'})
				require.NoError(t, err)
				receive(t, c, []byte(name+"?"))
				clients = append(clients, &client{c, 1})
			}
			for _, c := range clients {
				c.echoes(t, 10_000)
			}
		})
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

// The last answer of an old session is lost. Its process answers again in TIME-WAIT, if
// only it has the keys.
func TestTakeoverLostAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "aes-gcm", "tls"} {
		config := takeoverConfigs(t)[name]
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", &config)
			require.NoError(t, err)
			old := l.Endpoint()
			old.takeover.hold = 30 * time.Second // the client is late on a busy machine
			g0 := serves(t, "g0", l)
			c, socket := dialsDeaf(t, l.Addr(), &config)
			g1 := g0.handsOver(t, "g1", &config)
			require.Equal(t, 1, g1.l.Stats().PredecessorSessions)
			socket.set.Store(true)
			go c.Close()
			await.True(t, func() bool { return g1.l.Stats().PredecessorSessions == 0 })
			if name != "plain" {
				old.mu.Lock()
				old.socket.holdUntil = 0 // its time is over, and that of takeover.hold is not
				old.shutIfUnusedLocked()
				closed := old.closed
				old.mu.Unlock()
				require.False(t, closed)
			}
			socket.hearsAgain(t, c)
		})
	}
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

// A session has ended before the takeover, and its last answer, which acknowledges data,
// is lost. Its process answers again, also after a second takeover.
func TestTakeoverLostAnswerBefore(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "aes-gcm", "tls"} {
		config := takeoverConfigs(t)[name]
		for takeovers := 1; takeovers <= 2; takeovers++ {
			t.Run(fmt.Sprint(name, takeovers), func(t *testing.T) {
				l, err := Listen("udp", "127.0.0.1:0", &config)
				require.NoError(t, err)
				g := serves(t, "g0", l)
				other := dials(t, l.Addr(), &config, "g0") // keeps g0 alive
				c, socket := dialsDeaf(t, l.Addr(), &config)
				socket.set.Store(true)
				_, err = c.Write([]byte("last"))
				require.NoError(t, err)
				closed := make(chan error, 1)
				go func() { closed <- c.Close() }()
				await.True(t, func() bool { return l.Stats().Sessions == 1 })
				for i := range takeovers {
					name := fmt.Sprint("g", i+1)
					g = g.handsOver(t, name, &config)
					dials(t, l.Addr(), &config, name) // keeps it alive
				}
				require.Equal(t, takeovers, g.l.Stats().PredecessorSessions)
				socket.hearsAgain(t, c)
				require.NoError(t, <-closed)
				other.echoes(t, 1000)
			})
		}
	}
}

// An old process aborts its session, and ends. Nothing of what it has sent to say so has
// arrived. The successor says it.
func TestTakeoverLostAbort(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "aes-gcm", "tls"} {
		config := takeoverConfigs(t)[name]
		t.Run(name, func(t *testing.T) {
			l, err := Listen("udp", "127.0.0.1:0", &config)
			require.NoError(t, err)
			g0 := serves(t, "g0", l)
			c, socket := dialsDeaf(t, l.Addr(), &config)
			g1 := g0.handsOver(t, "g1", &config)
			socket.set.Store(true)
			for s := range l.Endpoint().Sessions() {
				require.NoError(t, s.Abort())
			}
			require.NoError(t, <-g0.left)
			await.True(t, func() bool { return !g1.l.ep.takeover.Before.Any() })
			socket.set.Store(false)
			if _, err = c.Write([]byte("?")); err != nil {
				require.ErrorIs(t, err, ErrReset) // a PING may have asked before
			}
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrReset)
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

// The context of TakeOver ends after it has confirmed. It has no effect any more.
func TestTakeoverConfirmedLate(t *testing.T) {
	t.Parallel()
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	g0 := serves(t, "g0", l)
	c := dials(t, l.Addr(), nil, "g0")
	a, atOld := unixPair(t)
	b, atNew := unixPair(t)
	go func() { g0.left <- l.HandOver(unhurried(), a) }()
	ctx, cancel := context.WithCancel(unhurried())
	go relayExchange(atOld, atNew, func(kind takeover.Kind, payload []byte) []byte {
		if kind == takeover.FinalKind {
			cancel()
		}
		return payload
	})
	next, err := TakeOver(ctx, b, nil)
	require.NoError(t, err)
	serves(t, "g1", next)
	c.echoes(t, 1000)
	dials(t, l.Addr(), nil, "g1").echoes(t, 1000)
}

// The predecessor dies after it has committed, before the successor can confirm. The
// successor serves.
func TestTakeoverPredecessorDiesCommitted(t *testing.T) {
	t.Parallel()
	a, b := unixPair(t)
	taken := make(chan *Listener, 1)
	go func() {
		l, err := TakeOver(unhurried(), b, nil)
		assert.NoError(t, err)
		taken <- l
	}()
	p := scriptPredecessor(t, a)
	p.dies()
	_ = a.CloseRead() // what the successor sends fails
	_ = p.link.Send(takeover.CommitKind, nil)
	p.link.Close()
	_ = a.Close()
	next := <-taken
	require.NotNil(t, next)
	serves(t, "next", next)
	dials(t, next.Addr(), nil, "next").echoes(t, 1000)
}

// relayExchange relays an exchange of one socket. It passes on what at returns of each
// message.
func relayExchange(old, new *net.UnixConn, at func(kind takeover.Kind, payload []byte) []byte) {
	kinds := []takeover.Kind{'O', 'A', 'R', 'S', 'r', 'N', 'C', 'c', 'F'}
	var links [2]*takeover.Link
	for i, c := range []*net.UnixConn{old, new} {
		var err error
		if links[i], err = takeover.NewLink(unhurried(), c, ""); err != nil {
			return
		}
	}
	pass := func(from, to *takeover.Link) {
		for {
			kind, payload, err := from.Receive(kinds...)
			if err != nil {
				return
			}
			payload = at(kind, payload)
			var files []int
			if kind == takeover.StateKind {
				files, _ = from.TakeFiles((&takeover.Offer{Sockets: 1}).Files())
			}
			_ = to.Send(kind, payload, files...)
			takeover.CloseFiles(files)
		}
	}
	go pass(links[1], links[0])
	pass(links[0], links[1])
}

// While the handler of a session keeps a reader, the successor ends. The next handover
// waits for that reader, and fails if it does not come.
func TestTakeoverBusyReader(t *testing.T) {
	t.Parallel()
	config := &Config{Shards: 2}
	l, err := Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	c, err := Dial("udp", l.Addr().String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Abort() })
	s, err := l.AcceptKCP(t.Context())
	require.NoError(t, err)
	entered, leave := make(chan struct{}), make(chan struct{})
	s.HandleDatagrams(func([]byte) { entered <- struct{}{}; <-leave })
	hand := func() (next *Listener, err error) {
		a, b := unixPair(t)
		go func() { _ = l.HandOver(context.Background(), a) }()
		return TakeOver(t.Context(), b, config)
	}
	next, err := hand()
	require.NoError(t, err)
	require.NoError(t, c.SendDatagram([]byte("d")))
	<-entered
	require.NoError(t, next.Endpoint().Close())
	await.True(t, func() bool {
		_, err := hand()
		return err != nil
	})
	close(leave)
	await.True(t, func() bool {
		next, err = hand()
		return err == nil
	})
	go func() { _, _ = io.Copy(s, s) }()
	_, err = c.Write([]byte("lives"))
	require.NoError(t, err)
	receive(t, c, []byte("lives"))
	require.NoError(t, next.Endpoint().Close())
}

// After the end of its successor an endpoint whose listener was handed over serves no new
// one: it ends with its last session.
func TestTakeoverNoListenAgain(t *testing.T) {
	t.Parallel()
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	g0 := serves(t, "g0", l)
	c := dials(t, l.Addr(), nil, "g0")
	g1 := g0.handsOver(t, "g1", nil)
	require.NoError(t, g1.l.Endpoint().Close())
	c.echoes(t, 1000)
	_, err = l.Endpoint().Listen()
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, c.Close())
	require.NoError(t, <-g0.left)
}
