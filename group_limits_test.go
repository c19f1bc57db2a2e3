package kcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
