package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp/internal/takeover"
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

// scripted is a process that hands a socket over, by hand.
type scripted struct {
	link   *takeover.Link
	socket *net.UDPConn
	pipes  [2]*takeover.Pipe // of packets, and of notes
}

// dies closes what the system closes when a process ends, but the exchange.
func (p *scripted) dies() {
	for _, pipe := range p.pipes {
		pipe.Close()
	}
	_ = p.socket.Close()
}

// scriptPredecessor begins a handover over conn, and carries it out until the
// successor is ready to hear of sessions.
func scriptPredecessor(t *testing.T, conn *net.UnixConn) (p *scripted) {
	var err error
	p = new(scripted)
	p.link, err = takeover.NewLink(unhurried(), conn, "")
	require.NoError(t, err)
	p.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	files := make([]int, 3)
	files[0], err = takeover.Duplicate(p.socket)
	require.NoError(t, err)
	for i := range p.pipes {
		p.pipes[i], files[1+i], err = takeover.NewPipe()
		require.NoError(t, err)
	}
	t.Cleanup(p.dies)
	require.NoError(t, p.link.Send(takeover.OfferKind, takeover.Encode(&takeover.Offer{Version: takeover.Version, Sockets: 1, LegacyPeers: true})))
	_, _, err = p.link.Receive(takeover.AgreeKind)
	require.NoError(t, err)
	require.NoError(t, p.link.Send(takeover.StateKind, takeover.Encode(&takeover.State{CookieSecret: make([]byte, 32)}), files...))
	takeover.CloseFiles(files)
	_, _, err = p.link.Receive(takeover.ReadyKind)
	require.NoError(t, err)
	return p
}

// After it has committed the predecessor hangs: the exchange ends, and its process does
// not. It may go on to read the sockets, so the successor does not.
func TestTakeoverPredecessorHangs(t *testing.T) {
	t.Parallel()
	a, b := unixPair(t)
	taken := make(chan error, 1)
	go func() {
		_, err := TakeOver(unhurried(), b, nil)
		taken <- err
	}()
	p := scriptPredecessor(t, a)
	defer p.link.Close()
	require.NoError(t, p.link.Send(takeover.CommitKind, nil))
	_, _, err := p.link.Receive(takeover.ConfirmKind)
	require.NoError(t, err)
	require.NoError(t, a.Close()) // the pipes stay open
	err = <-taken
	require.EqualError(t, err, "take over kcp: the old process has ended, or closed the socket")
}

// notesOf decodes notes.
func notesOf(t *testing.T, b []byte) (notes []takeover.Note) {
	for len(b) > 0 {
		n, rest, ok := takeover.CutNote(b)
		require.True(t, ok)
		notes, b = append(notes, n), rest
	}
	return notes
}

// relayedHandover makes g hand over to a new generation of that name. change is what
// becomes of the notes of sessions on the way.
func (g *generation) relayedHandover(t *testing.T, name string, config *Config, change func(takeover.Note) bool) *generation {
	a, atOld := unixPair(t)
	b, atNew := unixPair(t)
	go func() { g.left <- g.l.HandOver(unhurried(), a) }()
	go relayExchange(atOld, atNew, func(kind takeover.Kind, payload []byte) []byte {
		if kind != takeover.NotesKind {
			return payload
		}
		var kept []byte
		for _, n := range notesOf(t, payload) {
			if change(n) {
				kept = n.Append(kept)
			}
		}
		return kept
	})
	next, err := TakeOver(unhurried(), b, config)
	require.NoError(t, err)
	return serves(t, name, next)
}

// A conversation id of a session with signals opens no session of a legacy peer after a
// takeover either, when that session is in TIME-WAIT no longer.
func TestTakeoverUsedConvs(t *testing.T) {
	t.Parallel()
	config := &Config{Cipher: testenv.AEAD(t), LegacyPeers: LegacyAllow}
	l, err := Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	g0 := serves(t, "g0", l)
	dials(t, l.Addr(), config, "g0") // keeps g0 alive
	ended := dials(t, l.Addr(), config, "g0")
	require.NoError(t, ended.Close())
	await.True(t, func() bool { return l.Stats().Sessions == 1 })
	g1 := g0.relayedHandover(t, "g1", config, func(n takeover.Note) bool { return n.Kind != takeover.Ended })
	legacy, err := net.Dial("udp", l.Addr().String())
	require.NoError(t, err)
	defer legacy.Close()
	for _, conv := range []uint32{ended.Conv(), ended.Conv() + 1} {
		_, err = legacy.Write(sealed(t, config.Cipher, packetOf(conv, segment(cmdPush, 0, 0, 0, 0, "first"))))
		require.NoError(t, err)
	}
	await.True(t, func() bool { return g1.l.Stats().Sessions > 0 })
	for c := range g1.l.Endpoint().Sessions() {
		require.Equal(t, ended.Conv()+1, c.Conv())
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
			relay := newRebinder(t, l.Addr())
			pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			e, err := NewEndpoint(pc, config)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
			conv := old.Conv()
			c, err := e.DialWith(t.Context(), relay.addr(), DialOptions{Conv: &conv})
			require.NoError(t, err)
			_, err = c.Write([]byte{'?'})
			require.NoError(t, err)
			receive(t, c, []byte("g1?"))
			moved := &client{c, 1}
			for range 3 {
				relay.rebind(t)
				moved.echoes(t, 10_000)
			}
			old.echoes(t, 10_000)
		})
	}
}
