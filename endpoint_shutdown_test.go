package kcp

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// crowd is a server with sessions that have been accepted.
func (w *world) crowd(n int, config *Config) (l *Listener, server, clients []*Conn) {
	w.t.Helper()
	l = w.listen(config)
	e, _ := w.endpoint("10.0.0.2:0", config)
	for range n {
		a := w.dial(e)
		_, err := a.Write([]byte{1})
		require.NoError(w.t, err)
		server, clients = append(server, accepted(w.t, l)), append(clients, a)
	}
	return l, server, clients
}

// Shutdown delivers the last word to everybody, ends each session in order, and
// leaves nothing behind.
func TestShutdown(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(w *world) {
			config := &Config{KeepAlive: time.Second, PeerTimeout: 10 * time.Second}
			if seed%4 == 3 {
				config.Linger = -1
			}
			l, server, clients := w.crowd(20, config)
			last := content(seed, 20000)
			for i, c := range server {
				_, err := c.Write(last)
				require.NoError(t, err)
				if i%5 == 4 {
					go func() { _ = c.Close() }() // the application closes it meanwhile
				}
			}
			heard := make(chan error, len(clients))
			for _, c := range clients {
				go func() {
					got, err := io.ReadAll(c)
					if string(got) != string(last) {
						err = errors.Join(err, errors.New("content differs"))
					}
					heard <- err
				}()
			}
			accept := make(chan error, 1)
			go func() {
				_, err := l.Accept()
				accept <- err
			}()
			dialled := make(chan error, 1)
			time.AfterFunc(20*time.Millisecond, func() {
				_, err := clients[0].Endpoint().Dial(context.Background(), udpAddr(serverAddr))
				dialled <- err
			})
			require.NoError(t, l.Shutdown(context.Background()))
			for range clients {
				require.NoError(t, <-heard)
			}
			require.ErrorIs(t, <-accept, net.ErrClosed)
			err := <-dialled
			require.Error(t, err)
			s := l.Stats()
			require.Zero(t, s.Sessions)
			require.EqualValues(t, 20, s.Ended.Closed+s.Ended.Aborted, "%+v", s.Ended) // of some, the answer to CLOSE was missing
			_, err = server[0].Write(nil)
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, l.Shutdown(context.Background()), net.ErrClosed)
			require.ErrorIs(t, l.Endpoint().Close(), net.ErrClosed)
			_, err = l.Endpoint().Listen()
			require.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

// The end of the context aborts what is left, and the error counts it; peers
// that take nothing are counted, too, when Linger has passed.
func TestShutdownIsCutShort(t *testing.T) {
	for _, limit := range []time.Duration{time.Second, time.Minute} {
		inWorld(t, 1, clean, func(w *world) {
			l, server, clients := w.crowd(5, &Config{Linger: 3 * time.Second, ReceiveWindow: 128})
			for i, c := range server {
				n := 1000
				if i < 2 {
					n = 1 << 20 // more than a client takes without reading
				}
				_, err := c.Write(make([]byte, n))
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			start := time.Now()
			err := l.Endpoint().Shutdown(ctx)
			var failed *ShutdownError
			require.ErrorAs(t, err, &failed)
			if limit == time.Second {
				require.Equal(t, ShutdownError{Cut: 2, Cause: context.DeadlineExceeded}, *failed)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, time.Second, time.Since(start))
			} else {
				require.Equal(t, ShutdownError{Undelivered: 2}, *failed)
				require.ErrorIs(t, err, ErrNotDelivered)
				require.Less(t, time.Since(start), 4*time.Second)
			}
			time.Sleep(time.Second)
			for i, c := range clients {
				want := ErrPeerClosed
				if i < 2 {
					want = ErrReset
				}
				require.Equal(t, want, c.Err())
			}
		})
	}
}

// An endpoint shut down answers a peer that has not heard of the end.
func TestShutdownHoldsForPeers(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		l, server, clients := w.crowd(1, nil)
		closed := make(chan error, 1)
		go func() { closed <- clients[0].Close() }()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, server[0].Err())
		require.NoError(t, l.Shutdown(context.Background()))
		require.NoError(t, <-closed)
		require.Error(t, server[0].Err())
	})
}

// One without sessions, and without a listener.
func TestShutdownOfNothing(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		e, _ := w.endpoint("10.0.0.2:0", nil)
		require.NoError(t, e.Shutdown(cancelled()))
		_, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
