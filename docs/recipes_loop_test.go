package docs

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

// takeUntil handles events until the next tick. Wait returns events that are there even
// if its context is done, so the clock decides: many events do not put off the tick.
func takeUntil(ctx context.Context, tick time.Time, group *kcp.Group, events []kcp.Event, handle func(*kcp.Event)) error {
	ctx, cancel := context.WithDeadline(ctx, tick)
	defer cancel()
	for time.Now().Before(tick) {
		n, err := group.Wait(ctx, events)
		for i := range events[:n] {
			handle(&events[i])
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// sendTick sends positions as a datagram and lines of chat as messages to all players. It
// does not wait.
func sendTick(group *kcp.Group, players []*kcp.Conn, positions []byte, lines [][]byte) {
	var batch []kcp.Outgoing
	for _, conn := range players {
		batch = append(batch, kcp.Outgoing{Conn: conn, Data: positions, Datagram: true})
		for _, line := range lines {
			batch = append(batch, kcp.Outgoing{Conn: conn, Data: line})
		}
	}
	group.Send(batch)
	for i := range batch {
		if o := &batch[i]; errors.Is(o.Err, kcp.ErrWouldBlock) { // a line was missed
			_ = o.Conn.Abort(kicked, "too far behind")
		}
	}
}

// slowReaders returns the players whose program has not read the last most packets.
func slowReaders(players []*kcp.Conn, most int) (slow []*kcp.Conn) {
	for _, conn := range players {
		if conn.Stats().RemoteUnread > most {
			slow = append(slow, conn)
		}
	}
	return slow
}

// TestGameLoop runs a loop with two clients, of which the first reads nothing: it alone is
// a slow reader. Events that go on all the time do not delay a tick.
func TestGameLoop(t *testing.T) {
	config := kcp.LowLatency()
	config.MessageMode = true
	inHall(t, 1, &config, func(t *testing.T, h *hall) {
		const tick, ticks = time.Second / 20, 200
		e, _ := endpoint(t, h.net, "10.0.0.3:4000", &config)
		client, err := e.Dial(t.Context(), h.listener.Addr(), nil)
		require.NoError(t, err)
		player, err := h.listener.AcceptKCP(t.Context())
		require.NoError(t, err)
		players := []*kcp.Conn{h.accepted[0], player}
		server := kcp.NewGroup()
		defer server.Close()
		require.NoError(t, server.Add(players[0]))
		require.NoError(t, server.Add(player))
		lines := 0
		go func() {
			for b := make([]byte, 100); ; lines++ {
				if _, err := client.ReadMessage(b); err != nil {
					return
				}
			}
		}()
		events, handled := make([]kcp.Event, 16), 0
		next := time.Now()
		for range ticks {
			next = next.Add(tick)
			for range 100 { // more than can be handled until the tick
				require.NoError(t, client.SendDatagram([]byte("input")))
			}
			require.NoError(t, takeUntil(t.Context(), next, server, events, func(e *kcp.Event) {
				handled++
				time.Sleep(time.Millisecond)
			}))
			// At most the events of one call are handled after the tick was due.
			require.InDelta(t, 0, time.Since(next).Seconds(), 0.017)
			sendTick(server, players, []byte("positions"), [][]byte{[]byte("a line")})
		}
		require.Greater(t, handled, 20*ticks)
		slow := slowReaders(players, ticks/2)
		require.Len(t, slow, 1)
		require.Same(t, players[0], slow[0])
		time.Sleep(time.Second)
		require.Equal(t, ticks, lines)
	})
}

// TestSendTickEndsSlow ends the player whose write buffer is full, and no other.
func TestSendTickEndsSlow(t *testing.T) {
	inHall(t, 2, &kcp.Config{MessageMode: true, WriteBuffer: 4096, ReceiveWindow: 128}, func(t *testing.T, h *hall) {
		reading := make(chan error)
		go func() {
			for b := make([]byte, 1000); ; {
				if _, err := h.dialled[1].ReadMessage(b); err != nil {
					reading <- err
					return
				}
			}
		}()
		group := kcp.NewGroup()
		defer group.Close()
		for range 400 {
			time.Sleep(time.Second / 20)
			sendTick(group, h.accepted, []byte("positions"), [][]byte{make([]byte, 100)})
		}
		require.ErrorIs(t, h.accepted[0].WriteMessage(nil, nil), net.ErrClosed)
		require.NoError(t, h.accepted[1].Close())
		require.ErrorIs(t, <-reading, io.EOF)
	})
}
