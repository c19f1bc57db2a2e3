package main

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const testCode = "a-code-for-tests-only"

var serverAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort("198.51.100.1:4000"))

// world is a rendezvous server on a simulated network in virtual time.
type world struct {
	*testing.T
	net *netsim.Network
	dir string // of the end that gets
	log testenv.Records
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, dir: t.TempDir()}
		w.net = netsim.NewNetwork(1, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.02})
		config, err := serverConfig()
		require.NoError(t, err)
		ep, _ := lab.Endpoint(t, w.net, serverAddr.String(), config)
		l, err := ep.Listen()
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		s := &server{log: log.New(&w.log, "server: ", 0), waiting: make(map[string]*guest)}
		go func() { ended <- s.run(ctx, l) }()
		test(w)
		stop()
		require.NoError(t, <-ended)
		require.Empty(t, s.waiting)
	})
}

// node returns an end with a socket of a host.
func (w *world) node(host, role, code string) *node {
	pc, err := w.net.Listen(host + ":5000")
	require.NoError(w, err)
	n, err := newNode(pc, role, code, log.New(&w.log, role+": ", 0))
	require.NoError(w, err)
	w.Cleanup(n.close)
	return n
}

// exchange sends a file from one host to another.
func (w *world) exchange(sends, gets string, data []byte) (sent, got error) {
	path := filepath.Join(w.TempDir(), "file")
	require.NoError(w, os.WriteFile(path, data, 0o600))
	f, err := os.Open(path)
	require.NoError(w, err)
	defer f.Close()
	dir, err := os.OpenRoot(w.dir)
	require.NoError(w, err)
	defer dir.Close()
	var both sync.WaitGroup
	both.Go(func() {
		var conn *kcp.Conn
		if conn, sent = w.node(sends, roleSend, testCode).meet(w.Context(), serverAddr); sent == nil {
			_, sent = send(w.Context(), conn, f)
		}
	})
	both.Go(func() {
		var conn *kcp.Conn
		if conn, got = w.node(gets, roleGet, testCode).meet(w.Context(), serverAddr); got == nil {
			_, got = receive(w.Context(), conn, dir, 1<<30)
		}
	})
	both.Wait()
	return sent, got
}

// A file goes from one end to the other, behind NATs that map independently of the
// destination. Nothing gets through a symmetric one.
func TestThroughNATs(t *testing.T) {
	const none, independent, symmetric = 0, 1, 2
	for _, c := range []struct {
		sends, gets int
	}{
		{none, none}, {independent, none}, {independent, independent}, {symmetric, independent},
	} {
		inWorld(t, func(w *world) {
			var routers []*router
			host := func(kind int, inside, outside string) string {
				if kind == none {
					return outside
				}
				routers = append(routers, newRouter(inside, outside, kind == symmetric))
				return inside
			}
			sends, gets := host(c.sends, "192.168.1.2", "203.0.113.1"), host(c.gets, "192.168.2.2", "203.0.113.2")
			routed(w.net, routers...)
			data := testenv.Content(1, 1_000_000)
			sent, got := w.exchange(sends, gets, data)
			if c.sends == symmetric {
				var none *kcp.NoAnswerError
				require.ErrorAs(w, sent, &none)
				require.ErrorAs(w, got, &none)
				return
			}
			require.NoError(w, sent, w.log.String())
			require.NoError(w, got, w.log.String())
			b, err := os.ReadFile(filepath.Join(w.dir, "file"))
			require.NoError(w, err)
			require.Equal(w, testenv.Sum(data), testenv.Sum(b))
			sent, got = w.exchange("203.0.113.3", "203.0.113.4", data)
			require.ErrorContains(w, sent, "has a file named")
			require.ErrorIs(w, got, fs.ErrExist)
		})
	}
}

// Who does not know the code meets nobody, though in the room, and a session is opened only
// with the key that the card names.
func TestKeysAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *node)
		want   string
	}{
		"code": {func(n *node) { n.secret.key[0]++ }, errForged.Error()},
		"key":  {func(n *node) { n.key = "of another" }, "fingerprint"},
	} {
		inWorld(t, func(w *world) {
			other := w.node("203.0.113.1", roleSend, testCode)
			c.change(other)
			go other.meet(w.Context(), serverAddr)
			_, err := w.node("203.0.113.2", roleGet, testCode).meet(w.Context(), serverAddr)
			require.ErrorContains(w, err, c.want, name)
		})
	}
}

// A client of the server waits for so long, and says nothing but what is asked.
func TestServer(t *testing.T) {
	inWorld(t, func(w *world) {
		n, begin := w.node("203.0.113.1", roleSend, testCode), time.Now()
		_, err := n.meet(w.Context(), serverAddr)
		var closed *kcp.PeerCloseError
		require.ErrorAs(w, err, &closed)
		require.EqualValues(w, codeTooLate, closed.Code)
		require.Less(w, time.Since(begin), waitTimeout+time.Minute)
		for _, text := range []string{`{"Room":"a","Role":"rob"}`, `{"Role":"get"}`, strings.Repeat("[", maxJSON)} {
			conn, err := n.ep.Dial(w.Context(), serverAddr, nil)
			require.NoError(w, err)
			require.NoError(w, json.NewDecoder(conn).Decode(new(greeting)))
			begin := time.Now()
			_, err = io.WriteString(conn, text)
			require.NoError(w, err)
			_, err = conn.Read(make([]byte, 1))
			require.ErrorAs(w, err, &closed)
			require.EqualValues(w, codeRefused, closed.Code)
			require.Less(w, time.Since(begin), time.Second)
		}
	})
}

// What a sender offers is taken only under a plain name, and up to a size.
func TestOffers(t *testing.T) {
	require.NoError(t, check(&offer{"ü 1.txt", 100}, 100))
	require.Error(t, check(&offer{"a", 101}, 100))
	require.Error(t, check(&offer{"a", -1}, 100))
	require.Error(t, check(nil, 100))
	for _, name := range []string{"", ".a", "..", "a/b", "a\\b", "C:a", "a\nb", "\x1b[2J", "\u202egnp", strings.Repeat("a", 201)} {
		require.Error(t, check(&offer{name, 1}, 100), name)
	}
}
