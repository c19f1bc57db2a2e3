package kcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// isDone reports whether a channel of Done is closed.
func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Done is closed, Err is set, and the endpoint has counted the cause, however a
// session ends.
func TestDoneErrAndTheirCount(t *testing.T) {
	mortal := Config{KeepAlive: time.Second, PeerTimeout: 2 * time.Second, Linger: time.Second, ReceiveWindow: 128}
	idle, stalls := Config{IdleTimeout: 3 * time.Second}, Config{StallTimeout: 3 * time.Second, ReceiveWindow: 128}
	unread := make([]byte, 1<<20) // more than the peer's window
	for name, c := range map[string]struct {
		config       *Config
		end          func(w *world, a *Conn) error
		ours, theirs error // nil: not looked at
		ourCount     func(*EndedSessions) *uint64
		theirCount   func(*EndedSessions) *uint64 // nil: not looked at
	}{
		"close":    {&mortal, func(_ *world, a *Conn) error { return a.Close() }, net.ErrClosed, ErrPeerClosed, countClosed, countPeerClosed},
		"abort":    {&mortal, func(_ *world, a *Conn) error { return a.Abort() }, net.ErrClosed, ErrReset, countAborted, countReset},
		"endpoint": {&mortal, func(_ *world, a *Conn) error { return a.Endpoint().Close() }, net.ErrClosed, ErrReset, countAborted, countReset},
		"memory": {&mortal, func(_ *world, a *Conn) error {
			a.mu.Lock()
			a.kcp.Compact() // without spare memory there is nothing to give up
			a.mu.Unlock()
			require.True(t, a.shedMemory())
			return nil
		}, ErrMemoryPressure, ErrReset, countMemory, countReset},
		"lost": {&mortal, func(w *world, _ *Conn) error {
			w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
			return nil
		}, nil, nil, countLost, countLost},
		"idle": {&idle, func(*world, *Conn) error { return nil }, nil, ErrReset, countIdle, countReset},
		"stalled": {&stalls, func(_ *world, a *Conn) error {
			_, err := a.Write(unread)
			return err
		}, nil, ErrReset, countStalled, countReset},
		"not delivered": {&mortal, func(_ *world, a *Conn) error {
			_, err := a.Write(unread)
			if closed := a.Close(); !errors.Is(closed, ErrNotDelivered) {
				return errors.Join(err, closed)
			}
			return err
		}, ErrNotDelivered, nil, countNotDelivered, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(w *world) {
				server := *c.config
				server.IdleTimeout = 0
				a, b, l := w.pair(c.config, &server)
				done := a.Done()
				require.False(t, isDone(done))
				require.NoError(t, a.Err())
				require.Equal(t, done, a.Done())
				require.NoError(t, c.end(w, a))
				<-done
				<-b.Done()
				require.Error(t, a.Err())
				if c.ours != nil {
					require.Equal(t, c.ours, a.Err())
				}
				if c.theirs != nil {
					require.Equal(t, c.theirs, b.Err())
				}
				require.True(t, isDone(a.Done()), "asked for after the end")
				checkEnds(t, a.Endpoint(), c.ourCount)
				if c.theirCount != nil {
					checkEnds(t, l.Endpoint(), c.theirCount)
				}
			})
		})
	}
}

func countClosed(n *EndedSessions) *uint64       { return &n.Closed }
func countPeerClosed(n *EndedSessions) *uint64   { return &n.PeerClosed }
func countAborted(n *EndedSessions) *uint64      { return &n.Aborted }
func countNotDelivered(n *EndedSessions) *uint64 { return &n.NotDelivered }
func countReset(n *EndedSessions) *uint64        { return &n.Reset }
func countLost(n *EndedSessions) *uint64         { return &n.Lost }
func countIdle(n *EndedSessions) *uint64         { return &n.Idle }
func countStalled(n *EndedSessions) *uint64      { return &n.Stalled }
func countMemory(n *EndedSessions) *uint64       { return &n.Memory }

// checkEnds checks that the only session of e is counted by the counter of, and
// by no other.
func checkEnds(t *testing.T, e *Endpoint, of func(*EndedSessions) *uint64) {
	t.Helper()
	s := e.Stats()
	require.EqualValues(t, 1, *of(&s.Ended), "%+v", s.Ended)
	require.EqualValues(t, 1, s.Ended.Total())
	require.EqualValues(t, 1, s.Dialled+s.Accepted)
	require.Equal(t, 1, s.Peak)
	require.Zero(t, s.Sessions)
}

// Done does not wait for the application, nor for a peer that goes on writing.
func TestDoneAgainstHalfClose(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		require.NoError(t, a.CloseWrite())
		_, err := b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		w.settle()
		require.False(t, isDone(a.Done()) || isDone(b.Done()))
		require.NoError(t, errors.Join(a.Err(), b.Err()))
		_, err = b.Write([]byte("unread"))
		require.NoError(t, err)
		require.NoError(t, b.Close())
		<-a.Done()
		require.Equal(t, ErrPeerClosed, a.Err())
		receive(t, a, []byte("unread"))
		require.NoError(t, a.Close())
		require.Equal(t, ErrPeerClosed, a.Err(), "it does not change")
	})
}

// Sessions that Dial does not return are counted as well.
func TestEndsOfDial(t *testing.T) {
	for name, of := range map[string]func(*EndedSessions) *uint64{
		"refused":   func(n *EndedSessions) *uint64 { return &n.Refused },
		"silent":    func(n *EndedSessions) *uint64 { return &n.NoAnswer },
		"cancelled": countAborted,
	} {
		inWorld(t, 1, clean, func(w *world) {
			if name == "refused" {
				w.endpoint(serverAddr, nil)
			}
			e, _ := w.endpoint("10.0.0.2:0", nil)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if name == "cancelled" {
				time.AfterFunc(time.Second, cancel)
			}
			_, err := e.Dial(ctx, udpAddr(serverAddr))
			require.Error(t, err)
			synctest.Wait()
			checkEnds(t, e, of)
		})
	}
}
