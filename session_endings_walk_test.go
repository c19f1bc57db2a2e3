package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bring brings both ends of a session into a state; each call returns.
var bring = map[string]func(a, b *Conn){
	"open":                   func(a, b *Conn) {},
	"half-closed by dialler": func(a, b *Conn) { _ = a.CloseWrite() },
	"half-closed by other":   func(a, b *Conn) { _ = b.CloseWrite() },
	"over":                   func(a, b *Conn) { _, _ = a.CloseWrite(), b.CloseWrite() },
	"data under way":         func(a, b *Conn) { _, _ = a.Write(content(1, 50000)); _, _ = b.Write(content(1, 50000)) },
	"dialler lingers":        func(a, b *Conn) { _, _ = a.Write(content(1, 50000)); go a.Close() },
	"other lingers":          func(a, b *Conn) { _, _ = b.Write(content(1, 50000)); go b.Close() },
	"dialler closes":         func(a, b *Conn) { go a.Close() },
	"aborted":                func(a, b *Conn) { _ = a.Abort() },
}

// In each state the peer vanishes, is restarted, or answers late: all calls
// return, nothing is left of the session in its time, and Close says no more and
// no less than is so.
func TestEveryStateEnds(t *testing.T) {
	for state, bring := range bring {
		for _, event := range []string{"vanishes", "restarts", "late", "nothing"} {
			for _, pause := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, time.Second} {
				if repeated() && pause != 0 && pause != time.Second {
					continue
				}
				for _, early := range []bool{true, false} {
					name := fmt.Sprintf("%s, %s, %v, %v", state, event, pause, early)
					inWorld(t, 5, clean, func(w *world) { w.walk(name, bring, event, pause, early) })
				}
			}
		}
	}
}

// walk lives a session. early: it is brought into its state without waiting for
// the handshake to end.
func (w *world) walk(name string, bring func(a, b *Conn), event string, pause time.Duration, early bool) {
	cfg := mortal()
	pc, err := w.net.Listen(serverAddr)
	require.NoError(w.t, err)
	server, err := NewEndpoint(pc, cfg)
	require.NoError(w.t, err)
	l, err := server.Listen()
	require.NoError(w.t, err)
	client, _ := w.endpoint("10.0.0.2:5000", cfg)
	a := w.dial(client)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	if !early {
		time.Sleep(time.Second)
	}
	bring(a, b)
	time.Sleep(pause)
	ends := []*Endpoint{client, server}
	switch event {
	case "vanishes":
		w.net.Cut("10.0.0.1", "10.0.0.2")
	case "restarts":
		require.NoError(w.t, pc.Close())
		again, _ := w.endpoint(serverAddr, cfg)
		_, err := again.Listen()
		require.NoError(w.t, err)
		ends = append(ends, again)
	case "late":
		w.net.Cut("10.0.0.1", "10.0.0.2")
		w.net.At(w.net.Elapsed()+700*time.Millisecond, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
	}
	type result struct {
		got                int
		readErr, closeErr  error
		unacknowledgedLeft bool
	}
	results := make(chan result, 2)
	for _, c := range []*Conn{a, b} {
		go func() {
			var r result
			_ = c.SetReadDeadline(time.Now().Add(allAtAnEnd(cfg)))
			n, err := io.Copy(io.Discard, c)
			r.got, r.readErr, r.closeErr = int(n), err, c.Close()
			c.mu.Lock()
			defer c.mu.Unlock()
			r.unacknowledgedLeft = c.kcp.WaitSend() > 0 || c.closing.undelivered
			results <- r
		}()
	}
	for range 2 {
		r := <-results
		if errors.Is(r.closeErr, ErrNotDelivered) {
			require.True(w.t, r.unacknowledgedLeft, "%s: ErrNotDelivered", name)
		}
		if event == "nothing" || event == "late" {
			require.False(w.t, errors.Is(r.closeErr, ErrReset), name)
		}
	}
	time.Sleep(allAtAnEnd(cfg))
	for i, e := range ends {
		require.Zero(w.t, e.Stats().Sessions, "%s: endpoint %d", name, i)
	}
	_ = server.Close()
	_ = pc.Close()
}

// A socket for one session stays as long as a peer of default settings goes on to
// ask; one whose port is wanted, and one of very many, is let go sooner.
func TestDialledSocketIsHeldForThePeer(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		pc, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		e.socket.disposable = true
		l := w.listen(nil)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		_, err = b.Write([]byte("bye"))
		require.NoError(t, err)
		until := time.Now().Add(3 * time.Second)
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			return from.String() == serverAddr || time.Now().After(until)
		})
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		receive(t, a, []byte("bye"))
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, a.Close())
		require.NoError(t, <-closed)
		require.True(t, time.Now().After(until))
		time.Sleep(dialledHold)
		e.mu.Lock()
		require.True(t, e.closed)
		e.mu.Unlock()

		other, _ := w.endpoint("10.0.0.2:5001", nil)
		other.socket.disposable = true
		a = w.dial(other)
		b, err = l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, b.CloseWrite())
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		hold := func() time.Duration {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.holdSocket()
		}
		require.Equal(t, dialledHold, hold())
		heldSockets.Add(maxHeldSockets)
		require.Less(t, hold(), time.Second)
		heldSockets.Add(-maxHeldSockets)
	})
}
