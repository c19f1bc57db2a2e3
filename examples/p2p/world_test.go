package main

import (
	"bytes"
	"context"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const (
	testCode = "a-code-for-tests-only"
	linkRate = 1_000_000 // bytes a second
	fileSize = 3_000_000
)

// world is a rendezvous server, and a file, on a simulated network in virtual time.
type world struct {
	*testing.T
	net  *netsim.Network
	path string // of the file that is sent
	data []byte
	dir  string // of the end that gets it
	log  testenv.Records
}

// content returns random bytes.
func content(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

const (
	serverAddr = "198.51.100.1:4000"
	stunAddr   = "198.51.100.1:4001"
)

func inWorld(t *testing.T, l limits, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: linkRate, Queue: 100_000, Loss: 0.02}
		w := &world{T: t, net: netsim.NewNetwork(1, link), data: content(fileSize), dir: t.TempDir()}
		w.path = filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(w.path, w.data, 0o600))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.serve(ctx, l) })
		test(w)
		stop()
		running.Wait()
	})
}

// serve is the command serve.
func (w *world) serve(ctx context.Context, l limits) {
	first, second := w.listen(serverAddr), w.listen(stunAddr)
	defer first.Close()
	defer second.Close()
	go serveSTUN(second)
	config := l.config()
	cert, err := newKey()
	require.NoError(w, err)
	config.TLS = serverTLS(cert)
	ep, err := kcp.NewEndpoint(newSTUNConn(first, true), config)
	require.NoError(w, err)
	listener, err := ep.Listen()
	require.NoError(w, err)
	require.NoError(w, newServer(l, []uint16{4001}, log.New(&w.log, "server: ", 0)).run(ctx, listener))
}

func (w *world) listen(addr string) net.PacketConn {
	pc, err := w.net.Listen(addr)
	require.NoError(w, err)
	return pc
}

// node makes an end at pc.
func (w *world) node(pc net.PacketConn, role, code string) *node {
	n, err := newNode(pc, role, code, log.New(&w.log, role+": ", 0))
	require.NoError(w, err)
	n.server = serverAddr
	return n
}

// send is the command send, at pc.
func (w *world) send(ctx context.Context, pc net.PacketConn, code string) error {
	n := w.node(pc, roleSend, code)
	defer n.close()
	f, err := os.Open(w.path)
	require.NoError(w, err)
	defer f.Close()
	o, err := describeFile(f)
	require.NoError(w, err)
	return n.exchange(ctx, n.meet, func(ctx context.Context, conn *kcp.Conn) error {
		return sendFile(ctx, conn, f, o, nil)
	})
}

// get is the command get, at pc.
func (w *world) get(ctx context.Context, pc net.PacketConn, code string) error {
	n := w.node(pc, roleGet, code)
	defer n.close()
	root, err := os.OpenRoot(w.dir)
	require.NoError(w, err)
	defer root.Close()
	s := &store{root, 1 << 30}
	return n.exchange(ctx, n.meet, func(ctx context.Context, conn *kcp.Conn) error {
		_, err := s.receive(ctx, conn, nil)
		return err
	})
}

// both runs send and get, and returns what came of them.
func (w *world) both(sends, gets net.PacketConn) (sent, got error) {
	var all sync.WaitGroup
	all.Go(func() { sent = w.send(w.Context(), sends, testCode) })
	all.Go(func() { got = w.get(w.Context(), gets, testCode) })
	all.Wait()
	return sent, got
}

// arrived fails the test unless the file is there, and nothing besides it.
func (w *world) arrived() {
	w.Helper()
	got, err := os.ReadFile(filepath.Join(w.dir, "file"))
	require.NoError(w, err)
	require.True(w, bytes.Equal(w.data, got))
	entries, err := os.ReadDir(w.dir)
	require.NoError(w, err)
	require.Len(w, entries, 1)
}

// Whatever the NATs filter, a file arrives as long as they map independently of the
// destination. A symmetric NAT in front of either end, or of both, is named by both ends,
// but an end without a NAT has the peer behind a symmetric one dial.
func TestThroughNATs(t *testing.T) {
	const this, peer, both = "this end is behind a symmetric NAT", "the peer is behind a symmetric NAT", "both ends are behind a symmetric NAT"
	type kind struct {
		maps    mapping
		filters filtering
	}
	open, address, port := kind{independentMapping, independentFiltering}, kind{independentMapping, addressFiltering}, kind{independentMapping, portFiltering}
	symmetric, none := kind{dependentMapping, portFiltering}, kind{-1, 0}
	for _, c := range []struct {
		sends, gets kind
		sent, got   string // errors
	}{
		{open, open, "", ""}, {open, address, "", ""}, {address, port, "", ""}, {port, open, "", ""}, {port, port, "", ""},
		{symmetric, port, this, peer}, {port, symmetric, peer, this}, {symmetric, symmetric, both, both},
		{symmetric, none, "", ""}, {none, symmetric, "", ""},
	} {
		inWorld(t, defaultLimits(), func(w *world) {
			socket := func(k kind, public string) net.PacketConn {
				if k == none {
					return w.listen(public + ":5000")
				}
				return newNAT(w.net, "192.168.1.2:5000", public, k.maps, k.filters)
			}
			sent, got := w.both(socket(c.sends, "203.0.113.1"), socket(c.gets, "203.0.113.2"))
			if c.sent != "" {
				require.ErrorContains(w, sent, c.sent)
				require.ErrorContains(w, got, c.got)
				return
			}
			require.NoError(w, sent, w.log.String())
			require.NoError(w, got, w.log.String())
			w.arrived()
			require.Equal(w, c.sends.maps == independentMapping, strings.Contains(w.log.String(), "send: NAT: independent"))
		})
	}
}

// A session that the network cuts is followed by another, which sends the rest.
func TestGoesOnAfterOutage(t *testing.T) {
	inWorld(t, defaultLimits(), func(w *world) {
		w.net.At(1500*time.Millisecond, func() { w.net.Cut("203.0.113.1", "203.0.113.2") })
		w.net.At(40*time.Second, func() { w.net.Heal("203.0.113.1", "203.0.113.2") })
		sends := newNAT(w.net, "192.168.1.2:5000", "203.0.113.1", independentMapping, portFiltering)
		gets := newNAT(w.net, "192.168.2.2:5000", "203.0.113.2", independentMapping, portFiltering)
		sent, got := w.both(sends, gets)
		require.NoError(w, sent, w.log.String())
		require.NoError(w, got, w.log.String())
		w.arrived()
		require.Contains(w, w.log.String(), "again in")
		bytes := w.net.LinkStats("203.0.113.1", "203.0.113.2")
		require.Less(w, bytes.Delivered.Bytes, int64(fileSize*5/4)) // twice would be more
	})
}

// Who does not know the code does not meet anybody, though the server says so. The key
// that a card names is the only one that an end opens a session with, and that of the server
// is checked if its fingerprint is known.
func TestKeysAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		code      string
		change    func(t *testing.T, n *node)
		sent, got string // errors
	}{
		"code":   {"another-code-than-theirs", func(t *testing.T, n *node) { n.secret.room = mustSecret(t, testCode).room }, errForged.Error(), errForged.Error()},
		"peer":   {testCode, func(_ *testing.T, n *node) { n.key = "SHA256:of-another-key" }, "", "fingerprint"},
		"server": {testCode, func(_ *testing.T, n *node) { n.pins.server = "SHA256:of-another-server" }, "the rendezvous server's key has the fingerprint", ""},
	} {
		inWorld(t, defaultLimits(), func(w *world) {
			var all sync.WaitGroup
			all.Go(func() {
				n := w.node(w.listen("203.0.113.1:5000"), roleSend, c.code)
				defer n.close()
				c.change(w.T, n)
				require.ErrorContains(w, n.exchange(w.Context(), n.meet, nil), c.sent, name)
			})
			if c.got != "" {
				all.Go(func() {
					require.ErrorContains(w, w.get(w.Context(), w.listen("203.0.113.2:5000"), testCode), c.got, name)
				})
			}
			all.Wait()
		})
	}
}

func mustSecret(t testing.TB, code string) *secret {
	s, err := newSecret(code)
	require.NoError(t, err)
	return s
}

// What a client of the server can cause is bounded.
func TestServerLimits(t *testing.T) {
	l := defaultLimits()
	l.wait, l.perAddress = time.Minute, 2
	inWorld(t, l, func(w *world) {
		n := w.node(w.listen("203.0.113.1:5000"), roleSend, testCode)
		defer n.close()

		_, err := n.ask(w.Context())
		var closed *kcp.PeerCloseError
		require.ErrorAs(w, err, &closed)
		require.EqualValues(w, codeTooLate, closed.Code)

		conn, err := n.dialServer(w.Context())
		require.NoError(w, err)
		require.NoError(w, readJSON(conn, new(greeting)))
		require.NoError(w, writeJSON(conn, join{"a room", roleSend, nil}))
		require.ErrorAs(w, readJSON(conn, new(match)), &closed)
		require.EqualValues(w, codeRefused, closed.Code)

		conn, err = n.dialServer(w.Context())
		require.NoError(w, err)
		start := time.Now()
		require.NoError(w, readJSON(conn, new(greeting)))
		require.Error(w, readJSON(conn, new(match)), "a session that says nothing ends")
		require.Less(w, time.Since(start), 2*l.join)

		conn, err = n.dialServer(w.Context())
		require.NoError(w, err)
		_, err = conn.Write([]byte{0xff, 0xff})
		require.NoError(w, err)
		start = time.Now()
		require.NoError(w, readJSON(conn, new(greeting)))
		require.Error(w, readJSON(conn, new(match)), "a message may have 4096 bytes")
		require.Less(w, time.Since(start), time.Second)

		for range l.perAddress {
			_, err := n.dialServer(w.Context())
			require.NoError(w, err)
		}
		_, err = n.dialServer(w.Context())
		require.ErrorIs(w, err, kcp.ErrRefused, "of one address")
	})
}
