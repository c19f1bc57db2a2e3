package kcp

import (
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

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

// successorScript is a process that takes a socket over, by hand.
type successorScript struct {
	link  *takeover.Link
	files []int           // the socket, and its ends of the pipes of packets and notes
	notes []takeover.Note // what the predecessor has told before it has committed
}

// takesOverByHand takes the socket of l over, and leaves the exchange as TakeOver does.
func takesOverByHand(t *testing.T, l *Listener) (s *successorScript) {
	a, b := unixPair(t)
	go func() { _ = l.HandOver(unhurried(), a) }()
	s = new(successorScript)
	var err error
	s.link, err = takeover.NewLink(unhurried(), b, "")
	require.NoError(t, err)
	defer s.link.Close()
	_, _, err = s.link.Receive(takeover.OfferKind)
	require.NoError(t, err)
	require.NoError(t, s.link.Send(takeover.AgreeKind, nil))
	_, _, err = s.link.Receive(takeover.StateKind)
	require.NoError(t, err)
	s.files, err = s.link.TakeFiles((&takeover.Offer{Sockets: 1}).Files())
	require.NoError(t, err)
	t.Cleanup(func() { takeover.CloseFiles(s.files) })
	require.NoError(t, s.link.Send(takeover.ReadyKind, nil))
	for {
		kind, payload, err := s.link.Receive(takeover.NotesKind, takeover.CommitKind)
		require.NoError(t, err)
		if kind == takeover.CommitKind {
			break
		}
		s.notes = append(s.notes, notesOf(t, payload)...)
	}
	require.NoError(t, s.link.Send(takeover.ConfirmKind, nil))
	_, _, err = s.link.Receive(takeover.FinalKind)
	require.NoError(t, err)
	return s
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

// shrinkPipes makes the pipes of takeovers hold little, but their largest message. No
// test may run beside this one.
func shrinkPipes(t *testing.T) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		if typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && typ == unix.SOCK_SEQPACKET {
			require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 20<<10))
		}
	}
}

// A successor that does not read for a while hears of every session that has ended
// meanwhile, though the pipe has no room for so much.
func TestTakeoverNotesAwaitRoom(t *testing.T) {
	const sessions = 3000
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	e, err := NewEndpoint(pc, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	for range sessions {
		_, err := e.Dial(t.Context(), l.Addr())
		require.NoError(t, err)
		_, err = l.AcceptKCP(t.Context())
		require.NoError(t, err)
	}
	s := takesOverByHand(t, l)
	require.Len(t, s.notes, sessions)
	shrinkPipes(t)
	keep := true // a session that keeps the endpoint
	ended := make(map[uint32]bool)
	for c := range l.Endpoint().Sessions() {
		if keep {
			keep = false
			continue
		}
		ended[c.Conv()] = true
		require.NoError(t, c.Abort())
	}
	pipe, err := takeover.OpenPipe(s.files[2])
	require.NoError(t, err)
	s.files = s.files[:2]
	defer pipe.Close()
	message := make([]byte, 64<<10)
	for len(ended) > 0 {
		n, err := pipe.Read(message)
		require.NoError(t, err, "%d ends are not told", len(ended))
		for _, note := range notesOf(t, message[:n]) {
			require.Equal(t, takeover.Ended, note.Kind)
			require.True(t, ended[note.Conv], "twice, or never begun")
			delete(ended, note.Conv)
		}
	}
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
