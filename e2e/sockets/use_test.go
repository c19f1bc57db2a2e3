package sockets

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/stretchr/testify/require"
)

var serve, accepted = ends.Serve, ends.Accepted

// listen opens a server on loopback until the test ends.
func listen(t *testing.T, config *kcp.Config) *kcp.Listener {
	t.Helper()
	l, err := kcp.Listen("udp4", "127.0.0.1:0", config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	return l
}

// dial opens a session with l.
func dial(t *testing.T, l *kcp.Listener, config *kcp.Config) *kcp.Conn {
	t.Helper()
	c, err := kcp.Dial("udp4", l.Addr().String(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Abort(0, "") })
	return c
}

// Many sessions write and read at once while they are closed and looked at;
// the race detector is the judge.
func TestConcurrentUse(t *testing.T) {
	for _, config := range []*kcp.Config{nil, {TLS: testenv.TLS(), Shards: 2, FEC: kcp.FEC{Data: 5, Parity: 1}}} {
		l := listen(t, config)
		go serve(l, func(c *kcp.Conn) { _, _ = io.Copy(c, c) })
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				c, err := kcp.Dial("udp", l.Addr().String(), config)
				if err != nil {
					t.Error(err)
					return
				}
				wg.Go(func() {
					for range 100 {
						_ = c.Stats()
						_ = l.Endpoint().Stats()
					}
				})
				s, err := c.OpenStream(context.Background(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				wg.Go(func() { _, _ = s.Write(testenv.Content(1, 50000)) })
				want := testenv.Content(uint64(i), 50000)
				testenv.Send(t, c, want)
				if err := testenv.Compare(c, want); err != nil {
					t.Errorf("session %d: %v", i, err)
				}
				_ = c.SetLinger(-1)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.NoError(t, l.Endpoint().Close())
	}
}

// Once Accept may return a session, its fields change only with its lock held.
// The race detector shows it.
func TestAcceptedWhileAdmitted(t *testing.T) {
	l := listen(t, nil)
	var seen [50]atomic.Bool
	go serve(l, func(c *kcp.Conn) {
		_ = c.SetLinger(-1)
		_ = c.Close()
		seen[c.Conv()-1].Store(true)
	})
	pc, err := net.Dial("udp", l.Addr().String())
	require.NoError(t, err)
	defer pc.Close()
	for i := range uint32(50) {
		testenv.Await(t, func() bool { // a packet may be lost
			if !seen[i].Load() {
				_, err := pc.Write(testenv.PacketOf(i+1, testenv.Push(0, 0, "x")))
				require.NoError(t, err)
			}
			return seen[i].Load()
		})
	}
}

// Sessions of groups: what is read by their goroutines, or handled by the one that reads
// the socket, and sent by others. The race detector is the judge.
func TestConcurrentGroups(t *testing.T) {
	for _, handles := range []bool{false, true} {
		l := listen(t, nil)
		g := kcp.NewGroup()
		require.NoError(t, l.AcceptInto(g))
		echo := func(e kcp.Event) {
			if e.Kind == kcp.EventData {
				g.Send([]kcp.Outgoing{{Conn: e.Conn, Data: e.Data}})
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		var workers, clients sync.WaitGroup
		if handles {
			require.NoError(t, g.Handle(func(events []kcp.Event) {
				for _, e := range events {
					echo(e)
				}
			}))
		} else {
			workers.Go(func() {
				events := make([]kcp.Event, 8)
				for {
					n, err := g.Wait(ctx, events)
					if err != nil {
						return
					}
					for _, e := range events[:n] {
						echo(e)
					}
				}
			})
		}
		for i := range uint64(6) {
			clients.Go(func() {
				c, err := kcp.Dial("udp", l.Addr().String(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				want := testenv.Content(i, 20000)
				testenv.Send(t, c, want)
				if err := testenv.Compare(c, want); err != nil {
					t.Errorf("session %d: %v", i, err)
				}
				_ = c.Close()
			})
		}
		clients.Wait()
		cancel()
		workers.Wait()
		require.NoError(t, g.Close())
	}
}

// Endpoint.Close in a handler does not wait for the goroutine that it runs on.
func TestCloseInAHandler(t *testing.T) {
	for name, handle := range ends.Handlers {
		t.Run(name, func(t *testing.T) {
			l := listen(t, nil)
			a := dial(t, l, nil)
			result := make(chan error, 1)
			var once sync.Once
			handle(t, accepted(t, l), func() { once.Do(func() { result <- l.Endpoint().Close() }) })
			require.NoError(t, a.SendDatagram([]byte("close")))
			require.NoError(t, <-result)
			_, err := a.Read(make([]byte, 1))
			require.ErrorIs(t, err, kcp.ErrReset)
		})
	}
}

// An endpoint with a socket of its own closes itself after its last use. The first Close
// or Shutdown after that is as of an open one.
func TestCloseOfUnusedEndpoint(t *testing.T) {
	for name, end := range map[string]func(e *kcp.Endpoint) error{
		"close":    (*kcp.Endpoint).Close,
		"shutdown": func(e *kcp.Endpoint) error { return e.Shutdown(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, nil)
			c := dial(t, l, nil)
			s := accepted(t, l)
			require.NoError(t, l.Close())
			require.NoError(t, s.Abort(0, ""))
			require.NoError(t, c.Abort(0, ""))
			for _, e := range []*kcp.Endpoint{l.Endpoint(), c.Endpoint()} {
				require.NoError(t, end(e))
				require.ErrorIs(t, end(e), net.ErrClosed)
			}
		})
	}
}
