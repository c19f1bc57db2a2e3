package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/stretchr/testify/require"
)

// When there is a route again, a session sends at once: what is in flight, and a PING
// that had backed off. Without an event it waits for its next probe.
func TestReroutedSendsAtOnce(t *testing.T) {
	for _, rerouted := range []bool{true, false} {
		inWorld(t, 31, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			send(t, a, []byte("before"))
			receive(t, b, []byte("before"))
			w.settle()
			var down atomic.Bool
			down.Store(true)
			seen := make(chan time.Time, 1)
			w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
				if down.Load() {
					return false
				}
				if from.String() != serverAddr {
					select {
					case seen <- time.Now():
					default:
					}
				}
				return true
			})
			_, err := a.Write([]byte("in the outage"))
			require.NoError(t, err)
			time.Sleep(12*time.Second + 123*time.Millisecond)
			down.Store(false)
			again := time.Now()
			if rerouted {
				a.rerouted(false)
			}
			receive(t, b, []byte("in the outage"))
			if took := time.Since(again); rerouted {
				require.Zero(t, (<-seen).Sub(again))
				require.Equal(t, roundTrip/2, took)
			} else {
				require.Greater(t, took, roundTrip)
			}
		})
	}
}

// A session that waits for nothing asks its peer, and one that was closed here and there
// does not.
func TestReroutedAsks(t *testing.T) {
	inWorld(t, 32, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		send(t, a, []byte("x"))
		receive(t, b, []byte("x"))
		w.settle()
		sent := a.ep.Stats().PacketsSent
		a.rerouted(true)
		w.settle()
		require.Equal(t, sent+1, a.ep.Stats().PacketsSent)
		require.NoError(t, a.Close())
		sent = a.ep.Stats().PacketsSent
		a.rerouted(true)
		w.settle()
		require.Equal(t, sent, a.ep.Stats().PacketsSent)
	})
}

// On another path congestion control and the round-trip time begin anew.
func TestReroutedBeginsPathAnew(t *testing.T) {
	inWorld(t, 33, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		send(t, a, content(1, 200_000))
		receive(t, b, content(1, 200_000))
		w.settle()
		state := func() (cwnd int, rtt time.Duration) {
			s := a.Stats()
			return s.CongestionWindow, s.RTT
		}
		cwnd, rtt := state()
		require.NotZero(t, rtt)
		a.rerouted(false)
		after, _ := state()
		require.Equal(t, cwnd, after)
		a.rerouted(true)
		after, _ = state()
		require.Less(t, after, cwnd)
		send(t, a, content(2, 200_000))
		receive(t, b, content(2, 200_000))
	})
}

// The error of a lost peer names that of the socket, if it was in the silence, and of
// that peer.
func TestPeerLostNamesTheSocket(t *testing.T) {
	write := func(to string, errno syscall.Errno) error {
		return &net.OpError{Op: "write", Net: "udp", Addr: udpAddr(to), Err: os.NewSyscallError("sendto", errno)}
	}
	for name, tc := range map[string]struct {
		note  error
		heard bool // the peer was heard after the error
		want  error
	}{
		"none":               {nil, false, nil},
		"of the peer":        {write(serverAddr, syscall.EHOSTUNREACH), false, syscall.EHOSTUNREACH},
		"of another peer":    {write("10.9.9.9:9", syscall.EHOSTUNREACH), false, nil},
		"before the silence": {write(serverAddr, syscall.EHOSTUNREACH), true, nil},
		"that names no peer": {io.ErrUnexpectedEOF, false, nil},
	} {
		inWorld(t, 34, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{PeerTimeout: 5 * time.Second}, nil)
			time.Sleep(time.Second)
			if tc.note != nil {
				a.ep.noteSocketError(tc.note)
			}
			if tc.heard {
				time.Sleep(time.Second)
				send(t, b, []byte("x"))
				receive(t, a, []byte("x"))
			}
			w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
			send(t, a, []byte("x"))
			_, err := a.Read(make([]byte, 1))
			var lost *PeerLostError
			require.ErrorAs(t, err, &lost, name)
			if tc.want == nil {
				require.NoError(t, lost.Socket, name)
				require.NotContains(t, err.Error(), "host", name)
				return
			}
			require.ErrorIs(t, err, tc.want, name)
			require.Contains(t, err.Error(), tc.want.Error(), name)
		})
	}
}

// A lingering socket is given up: at once if it is only there for peers of ended
// sessions, even if such a session drains, and not if it is in use again.
func TestGiveUp(t *testing.T) {
	closed := func(e *Endpoint) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.closed
	}
	inWorld(t, 35, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		l := w.listen(nil)
		a := w.dial(e)
		b := accepted(t, l)
		require.NoError(t, b.CloseWrite())
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		e.giveUp()
		require.False(t, closed(e), "there is a session")
		require.NoError(t, a.Close())
		require.False(t, closed(e), "it lingers")
		again, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.NoError(t, err)
		e.giveUp()
		require.False(t, closed(e), "it is in use again")
		require.NoError(t, again.Abort())
		e.giveUp()
		require.True(t, closed(e))
		e.giveUp()
	})
	inWorld(t, 36, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		l, err := e.Listen()
		require.NoError(t, err)
		w.legacyPeer("10.0.0.3:1", 7, []byte("hello"))
		c := accepted(t, l)
		receive(t, c, []byte("hello"))
		require.NoError(t, l.Close())
		require.NoError(t, c.Close())
		time.Sleep(500 * time.Millisecond)
		c.mu.Lock()
		require.Equal(t, closing.Draining, c.closing.Phase)
		c.mu.Unlock()
		require.False(t, closed(e))
		e.giveUp()
		require.True(t, closed(e))
		<-c.Done()
		require.ErrorIs(t, c.Err(), net.ErrClosed)
	})
}
