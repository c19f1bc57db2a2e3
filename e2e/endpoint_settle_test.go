package e2e

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// waiters are goroutines whose calls wait for what does not come.
type waiters struct{ waiting atomic.Int32 }

func (w *waiters) add(call func()) {
	w.waiting.Add(1)
	go func() {
		call()
		w.waiting.Add(-1)
	}()
}

// ofSession adds the calls of c, whose peer reads and writes nothing, and of a stream.
func (w *waiters) ofSession(c *kcp.Conn, s *kcp.Stream) {
	w.add(func() { _, _ = c.Read(make([]byte, 1)) })
	w.add(func() { _, _ = c.Write(make([]byte, 4<<20)) }) // more than the buffers take
	w.add(func() { _, _ = c.AcceptStream(context.Background()) })
	w.add(func() { _, _ = s.Read(make([]byte, 1)) })
	w.add(func() { _, _ = s.Write(make([]byte, 4<<20)) })
}

// When Endpoint.Close returns, the calls that it has woken have returned, so that a
// test with Config.Repetition may end.
func TestCloseWaitsForTurns(t *testing.T) {
	for _, processors := range []int{1, 2} {
		for seed := range uint64(fewer(4)) {
			for _, end := range []string{"close", "shutdown", "socket", "socket before"} {
				t.Run(fmt.Sprintf("%d/%d/%s", processors, seed, end), func(t *testing.T) {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
					synctest.Test(t, func(t *testing.T) { closeWithCallsWaiting(t, seed, end) })
				})
			}
		}
	}
}

// closeWithCallsWaiting ends a server and a client of which all kinds of calls wait. It
// returns at once.
func closeWithCallsWaiting(t *testing.T, seed uint64, end string) {
	ctx := context.Background()
	n := netsim.NewNetwork(seed, netsim.LinkConfig{Delay: time.Millisecond})
	config := &kcp.Config{Repetition: kcp.NewRepetition(seed)}
	open := func(addr string) (*kcp.Endpoint, *netsim.PacketConn) {
		pc, err := n.Listen(addr)
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		return e, pc
	}
	server, serverSocket := open("10.0.0.1:1")
	client, clientSocket := open("10.0.0.2:1")
	l, err := server.Listen()
	require.NoError(t, err)
	var ofServer, ofClient waiters
	group := kcp.NewGroup()
	for i := range 3 {
		c, err := client.Dial(ctx, server.LocalAddr())
		require.NoError(t, err)
		opened, err := c.OpenStream(ctx, nil)
		require.NoError(t, err)
		_, err = opened.Write([]byte{1})
		require.NoError(t, err)
		peer, err := l.AcceptKCP(ctx)
		require.NoError(t, err)
		switch i {
		case 0:
			ofClient.ofSession(c, opened)
		case 1:
			s, err := peer.AcceptStream(ctx)
			require.NoError(t, err)
			_, err = s.Read(make([]byte, 1))
			require.NoError(t, err)
			ofServer.ofSession(peer, s)
		case 2:
			require.NoError(t, group.Add(peer))
		}
	}
	ofServer.add(func() { _, _ = l.AcceptKCP(ctx) })
	ofServer.add(func() {
		events := make([]kcp.Event, 8)
		for closed := false; !closed; {
			n, err := group.Wait(ctx, events)
			if err != nil {
				return
			}
			closed = events[n-1].Kind == kcp.EventEnded
		}
	})
	time.Sleep(time.Second)
	require.EqualValues(t, 5, ofClient.waiting.Load())
	require.EqualValues(t, 7, ofServer.waiting.Load())
	for _, e := range []struct {
		endpoint *kcp.Endpoint
		socket   *netsim.PacketConn
		waiters  *waiters
	}{{client, clientSocket, &ofClient}, {server, serverSocket, &ofServer}} {
		switch end {
		case "close":
			require.NoError(t, e.endpoint.Close())
		case "shutdown":
			done, cancel := context.WithCancel(ctx)
			cancel()
			_ = e.endpoint.Shutdown(done) // says how many were aborted
		case "socket":
			require.NoError(t, e.socket.Close())
			_ = e.endpoint.Close() // may be closed already
		case "socket before":
			require.NoError(t, e.socket.Close())
			synctest.Wait()
			require.ErrorIs(t, e.endpoint.Close(), net.ErrClosed)
		}
		require.Zero(t, e.waiters.waiting.Load())
	}
}
