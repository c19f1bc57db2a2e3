package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// grouped returns the two ends of a session, of which b is in a group.
func (w *world) grouped(config *kcp.Config) (a, b *kcp.Conn, g *kcp.Group) {
	w.t.Helper()
	a, b, _ = w.pair(config, config)
	g = kcp.NewGroup()
	require.NoError(w.t, g.Add(b))
	return a, b, g
}

// What who takes events may do: call the session. Abort and Close by it end the session;
// its end is the next event.
func TestGroupHandlerCalls(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		var seen []string
		for _, what := range []string{"write", "remove", "close", ""} {
			if what != "" {
				w.say(a, what)
			}
			events := make([]kcp.Event, 2)
			n, err := g.Wait(context.Background(), events)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			seen = append(seen, fmt.Sprint(events[0].Kind, " ", string(events[0].Data)))
			switch what {
			case "write":
				w.say(b, "written")
			case "remove":
				require.NoError(t, g.Remove(b))
				require.NoError(t, g.Add(b))
			case "close":
				require.NoError(t, b.Close())
			}
			if what != "" && what != "close" {
				require.Equal(t, 1, g.Len())
			}
		}
		w.hear(a, "written")
		require.Equal(t, []string{"data write", "data remove", "data close", "ended "}, seen)
		require.Zero(t, g.Len())
	})
	for want, end := range map[error]func(*kcp.Conn) error{kcp.ErrReset: func(c *kcp.Conn) error { return c.Abort(0, "") }, io.EOF: (*kcp.Conn).Close} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, g := w.grouped(nil)
			var ends []error
			require.NoError(t, g.Handle(func(events []kcp.Event) {
				for _, e := range events {
					if e.Kind == kcp.EventEnded {
						ends = append(ends, e.Err)
					} else {
						assert.NoError(t, end(b))
					}
				}
			}))
			w.say(a, "go")
			_, err := a.Read(make([]byte, 1))
			require.ErrorIs(t, err, want)
			synctest.Wait()
			require.Len(t, ends, 1)
			require.ErrorIs(t, ends[0], net.ErrClosed)
		})
	}
}

// A handler gets the datagrams in place of ReceiveDatagram, and may answer them,
// whoever reads the socket and whatever is around the packets.
func TestHandleDatagrams(t *testing.T) {
	for seed, cfg := range []kcp.Config{{}, {FEC: kcp.FEC{Data: 2, Parity: 1}}, {Cipher: testAEAD(t)}, {MessageMode: true}} {
		for reads := range 2 {
			inWorld(t, uint64(seed), clean, func(t *testing.T, w *world) {
				w.leads = reads == 1
				a, b, _ := w.pair(&cfg, &cfg)
				sends := func(s string) { require.NoError(t, a.SendDatagram([]byte(s))) }
				gets := func(c *kcp.Conn, want string) {
					p, err := c.ReceiveDatagram(context.Background())
					require.NoError(t, err)
					require.Equal(t, want, string(p))
				}
				sends("early")
				time.Sleep(time.Second)
				var mu sync.Mutex
				var got []string
				compat.HandleDatagrams(b, func(p []byte) {
					mu.Lock()
					got = append(got, string(p))
					mu.Unlock()
					for i := range p {
						p[i]++ // the memory may be changed
					}
					assert.NoError(t, b.SendDatagram(p))
				})
				if reads == 1 { // a blocked Read reads the socket, and calls the handler
					go func() { _ = end(b) }()
				}
				for _, s := range []string{"abc", "bcd", ""} {
					sends(s)
				}
				for _, want := range []string{"bcd", "cde", ""} {
					gets(a, want)
				}
				mu.Lock()
				require.Equal(t, []string{"abc", "bcd", ""}, got)
				mu.Unlock()
				gets(b, "early")
				require.NoError(t, b.SetReadDeadline(time.Now().Add(-1)))
				_, err := b.ReceiveDatagram(context.Background())
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.NoError(t, b.SetReadDeadline(time.Time{}))
				require.Equal(t, stats.Datagrams{Received: 4, Sent: 3}, b.Stats().Datagrams)
				compat.HandleDatagrams(b, nil)
				compat.HandleDatagrams(b, nil)
				sends("late")
				gets(b, "late")
			})
		}
	}
}

// done is a context that has ended: with it Wait does not block.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// took is an event with its own copy of the data.
type took struct {
	kcp.Event
	data []byte
}

// take returns all events that are there.
func take(t *testing.T, g *kcp.Group) (all []took) {
	t.Helper()
	events := make([]kcp.Event, 4)
	for {
		n, err := g.Wait(done(), events)
		if n == 0 {
			require.ErrorIs(t, err, context.Canceled)
			return all
		}
		require.NoError(t, err)
		for _, e := range events[:n] {
			all = append(all, took{e, bytes.Clone(e.Data)})
		}
	}
}

// kinds returns the kinds of events.
func kinds(events []took) (all []kcp.EventKind) {
	for _, e := range events {
		all = append(all, e.Kind)
	}
	return all
}

// takeOne returns the only event that is there.
func takeOne(t *testing.T, g *kcp.Group, kind kcp.EventKind) took {
	t.Helper()
	all := take(t, g)
	require.Equal(t, []kcp.EventKind{kind}, kinds(all))
	return all[0]
}
