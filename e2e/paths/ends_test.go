package paths

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// endsStreams ends streams in each way, and the peer learns of it.
func endsStreams(w *world) {
	type pair struct{ s, r *kcp.Stream }
	var pairs []pair
	for range 4 {
		s, err := w.client.OpenStream(context.Background(), nil)
		require.NoError(w.t, err)
		_, err = s.Write([]byte("begin"))
		require.NoError(w.t, err)
		r, err := w.server.AcceptStream(context.Background())
		require.NoError(w.t, err)
		require.NoError(w.t, testenv.Compare(r, []byte("begin")))
		pairs = append(pairs, pair{s, r})
	}
	w.pathChanges()
	time.Sleep(w.paths[0].round())
	for i, end := range []func(*kcp.Stream) error{
		(*kcp.Stream).Close,
		func(s *kcp.Stream) error { return s.Reset(7) },
		func(s *kcp.Stream) error { return s.CancelRead(7) },
		func(s *kcp.Stream) error { return s.CancelWrite(7) },
	} {
		require.NoError(w.t, end(pairs[i].s))
	}
	w.call("Done after Close", 0, func() error {
		<-pairs[0].r.Done()
		if err := pairs[0].r.Err(); !errors.Is(err, kcp.ErrStreamClosed) {
			return fmt.Errorf("want ErrStreamClosed: %w", err)
		}
		return getsAll(pairs[0].r, nil)
	})
	code := func(err error) error {
		var e *kcp.StreamError
		if !errors.As(err, &e) || e.Code != 7 || !e.Remote {
			return fmt.Errorf("want code 7: %w", err)
		}
		return nil
	}
	for _, p := range pairs[1:3] {
		w.call("Done after Reset or CancelRead", 0, func() error {
			<-p.r.Done()
			return code(p.r.Err())
		})
	}
	for _, p := range []pair{pairs[1], pairs[3]} {
		w.call("Read after Reset or CancelWrite", 0, func() error {
			_, err := p.r.Read(make([]byte, 1))
			return code(err)
		})
	}
}

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

// closesListener leaves the sessions as they are. New ones are refused.
func closesListener(w *world) {
	a := testenv.Content(1, some)
	w.echo(w.server)
	w.pathChanges()
	w.call("Close", 0, w.listener.Close)
	w.call("Dial", 0, func() error {
		if _, err := w.dialling.Dial(context.Background(), w.listening.LocalAddr(), nil); !errors.Is(err, kcp.ErrRefused) {
			return fmt.Errorf("want ErrRefused: %w", err)
		}
		return nil
	})
	w.call("Write", 0, func() error { return writes(w.client, a) })
	w.call("Read", 2*some, func() error { return getsAll(w.client, a) })
	s, err := w.client.OpenStream(context.Background(), nil)
	require.NoError(w.t, err)
	w.call("Write", 0, func() error { return writes(s, a) })
	w.call("Read", 2*some, func() error { return getsAll(s, a) })
}

// closesEndpoint ends its sessions at once. Peers learn of it now, or, if that is lost, by
// the silence.
func closesEndpoint(w *world) {
	w.pathChanges()
	time.Sleep(w.paths[0].round())
	begin := w.net.Elapsed()
	w.call("Close", 0, w.listening.Close)
	require.Less(w.t, w.net.Elapsed()-begin, 10*time.Millisecond)
	_, err := w.server.Read(make([]byte, 1))
	require.ErrorIs(w.t, err, net.ErrClosed)
	require.Equal(w.t, net.ErrClosed, w.server.Err())
	begin = w.net.Elapsed()
	_, err = w.client.Read(make([]byte, 1))
	var lost *kcp.PeerLostError
	if !errors.Is(err, kcp.ErrReset) {
		require.ErrorAs(w.t, err, &lost)
	}
	require.NotErrorIs(w.t, err, io.EOF)
	require.Less(w.t, w.net.Elapsed()-begin, calm+time.Minute)
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
