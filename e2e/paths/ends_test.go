package paths

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

func closes(w *world) {
	a := testenv.Content(1, some)
	w.pathChanges()
	w.call("Write", 0, func() error {
		_, err := w.client.Write(a)
		return err
	})
	w.also(func() error { return getsAll(w.server, a) })
	w.call("Close", some, w.client.Close)
	w.call("Read", some, func() error {
		w.join()
		return nil
	})
	w.call("Done", 0, func() error {
		<-w.server.Done()
		if err := w.server.Err(); err != kcp.ErrPeerClosed {
			return fmt.Errorf("want ErrPeerClosed: %w", err)
		}
		return nil
	})
	w.call("Close of the peer", 0, w.server.Close)
}

func closesWithReason(w *world) {
	a := testenv.Content(1, some)
	w.pathChanges()
	w.call("Write", 0, func() error {
		_, err := w.server.Write(a)
		return err
	})
	w.also(func() error {
		if err := testenv.Compare(w.client, a); err != nil {
			return err
		}
		_, err := w.client.Read(make([]byte, 1))
		return hasReason(err, false)
	})
	w.call("CloseWithError", some, func() error { return w.server.CloseWithError(5, "why") })
	w.call("Read", some, func() error {
		w.join()
		return nil
	})
}

func hasReason(err error, aborted bool) error {
	var e *kcp.PeerCloseError
	if !errors.As(err, &e) || e.Code != 5 || e.Text != "why" || e.Aborted != aborted {
		return fmt.Errorf("want the reason: %w", err)
	}
	return nil
}

// aborts has a peer that says something now and then learn of an Abort.
func aborts(w *world) {
	w.pathChanges()
	time.Sleep(w.paths[0].round())
	_, err := w.client.Write(testenv.Content(1, some))
	require.NoError(w.t, err)
	w.call("AbortWithError", 0, func() error { return w.client.Abort(5, "why") })
	if w.change.moves && w.gone > 0 {
		return // if that is lost, the peer asks at the other address
	}
	w.call("Write", some, func() error {
		for {
			if _, err := w.server.TryWrite([]byte("still here")); err != nil {
				return hasReason(err, true)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// several opens sessions, and returns both ends of each.
func (w *world) several(n int) (clients, servers []*kcp.Conn) {
	for range n {
		w.opens()
		clients, servers = append(clients, w.client), append(servers, w.server)
	}
	return clients, servers
}

// shutsDown has the listening end deliver what it has written in several sessions.
func shutsDown(w *world) {
	clients, servers := w.several(3)
	for i, s := range servers {
		a := testenv.Content(uint64(i), some)
		_, err := s.Write(a)
		require.NoError(w.t, err)
		w.also(func() error { return errors.Join(getsAll(clients[i], a), clients[i].Close()) })
	}
	w.pathChanges()
	begin := w.net.Elapsed()
	require.NoError(w.t, w.listening.Shutdown(context.Background()))
	require.LessOrEqual(w.t, w.net.Elapsed()-begin, w.patience(3*some)+3*time.Second)
	w.call("Read", 3*some, func() error {
		w.join()
		return nil
	})
}

// The reason of an abort arrives from another address too.
func TestReasonFromAnotherAddress(t *testing.T) {
	for name, protected := range protections(t) {
		if name == "plain" {
			continue // the peer cannot tell whose packets these are
		}
		t.Run(name, func(t *testing.T) {
			over(t, delay(80*time.Millisecond), protected(kcp.Config{}), protected(kcp.Config{}), func(w *world) {
				require.NoError(t, w.sockets[1].Rebind("10.0.0.3:6000"))
				require.NoError(t, w.client.Abort(5, "why"))
				_, err := w.server.Read(make([]byte, 1))
				require.NoError(t, hasReason(err, true))
			})
		})
	}
}
