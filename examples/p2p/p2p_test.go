package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/netip"
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
	log testenv.Records
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
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

// exchange sends data from one host to another.
func (w *world) exchange(sends, gets string, data []byte) (all []byte, sent, got error) {
	var both sync.WaitGroup
	both.Go(func() {
		var conn *kcp.Conn
		if conn, sent = w.node(sends, roleSend, testCode).meet(w.Context(), serverAddr); sent == nil {
			sent = send(conn, bytes.NewReader(data))
		}
	})
	both.Go(func() {
		var conn *kcp.Conn
		var out bytes.Buffer
		if conn, got = w.node(gets, roleGet, testCode).meet(w.Context(), serverAddr); got == nil {
			got = get(conn, &out)
		}
		all = out.Bytes()
	})
	both.Wait()
	return all, sent, got
}

// Data goes from one end to the other, behind NATs that map independently of the
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
			all, sent, got := w.exchange(sends, gets, data)
			if c.sends == symmetric {
				var none *kcp.NoAnswerError
				require.ErrorAs(w, sent, &none)
				require.ErrorAs(w, got, &none)
				return
			}
			require.NoError(w, sent, w.log.String())
			require.NoError(w, got, w.log.String())
			require.Equal(w, testenv.Sum(data), testenv.Sum(all))
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
