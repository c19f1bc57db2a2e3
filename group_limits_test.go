package kcp

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A session with much data takes turns with the others.
func TestGroupIsFair(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{ReceiveWindow: 1024}
		g := NewGroup()
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		const small = 20
		var clients []*Conn
		for range small + 1 {
			c := w.dial(e)
			require.NoError(t, g.Add(accepted(t, l)))
			clients = append(clients, c)
		}
		go clients[0].Write(make([]byte, 1<<20))
		time.Sleep(5 * time.Second) // the window is full
		for _, c := range clients[1:] {
			_, err := c.Write([]byte{1})
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		events := make([]Event, 3) // a run of the large one fills much of the memory
		others, large := 0, 0
		for others < small {
			n, err := g.Wait(done(), events)
			require.NoError(t, err)
			for _, e := range events[:n] {
				if len(e.Data) > 1 {
					require.LessOrEqual(t, len(e.Data), groupRun)
					large++
				} else {
					others++
				}
			}
			require.LessOrEqual(t, large, 2, "the large session keeps others waiting")
		}
		for {
			if n, _ := g.Wait(done(), events); n == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// Members have their events in the order in which those came, and a member that had one
// comes after those that wait.
func TestGroupOrder(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		g := NewGroup()
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		var clients [5]*Conn
		for i := range clients {
			clients[i] = w.dial(e)
			require.NoError(t, g.Add(accepted(t, l)))
		}
		require.Empty(t, take(t, g))
		writes := func(order string) {
			for _, i := range order {
				w.say(clients[i-'0'], string(i))
				time.Sleep(100 * time.Millisecond)
			}
		}
		next := func() string {
			var event [1]Event
			n, err := g.Wait(done(), event[:])
			require.NoError(t, err)
			require.Equal(t, 1, n)
			return string(event[0].Data)
		}
		writes("31402")
		require.Equal(t, "3", next())
		writes("3")
		for _, want := range []string{"1", "4", "0", "2", "3"} {
			require.Equal(t, want, next())
		}
	})
}

// A member for whose event the call has no memory left is the first of the next call.
func TestGroupOrderWithoutMemory(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{ReceiveWindow: 1024}
		g := NewGroup()
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		for i := range 4 {
			c := w.dial(e)
			require.NoError(t, g.Add(accepted(t, l)))
			go c.Write(bytes.Repeat([]byte{byte(i)}, 200<<10))
			time.Sleep(5 * time.Second)
		}
		var events [8]Event
		var order []byte
		for range 2 {
			n, err := g.Wait(done(), events[:])
			require.NoError(t, err)
			for _, e := range events[:n] {
				order = append(order, e.Data[0])
			}
		}
		require.Equal(t, []byte{0, 1, 2, 3}, order)
	})
}

// What is not taken fills the receive window, and stops the peer.
func TestGroupFlowControl(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{ReceiveWindow: 128, WriteBuffer: 64 << 10}
		a, _, g := w.grouped(&config)
		data := content(1, 1<<20)
		written := make(chan error, 1)
		var n atomic.Int64
		go func() {
			for rest := data; len(rest) > 0; rest = rest[1024:] {
				if _, err := a.Write(rest[:1024]); err != nil {
					written <- err
					return
				}
				n.Add(1024)
			}
			written <- a.CloseWrite()
		}()
		time.Sleep(20 * time.Second)
		require.Less(t, n.Load(), int64(400<<10))
		var got []byte
		for _, e := range take(t, g) {
			got = append(got, e.data...)
		}
		time.Sleep(100 * time.Millisecond) // the peer is told of the room at once
		all := take(t, g)
		require.NotEmpty(t, all)
		for _, e := range all {
			got = append(got, e.data...)
		}
		events := make([]Event, 8)
		for {
			n, err := g.Wait(context.Background(), events)
			require.NoError(t, err)
			for _, e := range events[:n] {
				got = append(got, e.Data...)
			}
			if events[n-1].Kind == EventEOF {
				break
			}
		}
		require.NoError(t, <-written)
		require.True(t, bytes.Equal(data, got))
	})
}

// More than the memory of one call holds comes with the next calls, and a
// message larger than all of it comes whole.
func TestGroupMemory(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, _, g := w.grouped(&Config{MessageMode: true, ReceiveWindow: 1024})
		sizes := []int{60_000, 60_000, 60_000, 1, groupMemorySize + 1000, 1}
		for i, size := range sizes {
			require.NoError(t, a.WriteMessage(content(uint64(i), size)))
		}
		time.Sleep(10 * time.Second)
		all := take(t, g)
		require.Len(t, all, len(sizes))
		for i, e := range all {
			require.True(t, bytes.Equal(content(uint64(i), sizes[i]), e.data), "message %d", i)
		}
	})
}
