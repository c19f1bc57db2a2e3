package kcp

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The handler of a session in a group comes before the group's events.
func TestHandlerInGroup(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, g := w.grouped(nil)
		var calls atomic.Int32
		b.HandleDatagrams(func(p []byte) {
			calls.Add(1)
			_ = b.Abort() // does not wait
		})
		require.NoError(t, a.SendDatagram([]byte("x")))
		require.NoError(t, a.SendDatagram([]byte("y")))
		time.Sleep(time.Second)
		require.EqualValues(t, 1, calls.Load(), "dropped after Abort")
		for _, e := range take(t, g) {
			require.NotEqual(t, EventDatagram, e.Kind)
		}
	})
}

// What arrived in the batch in which the session was closed is dropped.
func TestHandlerOfClosedSession(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		_, b, _ := w.pair(nil, nil)
		b.HandleDatagrams(func([]byte) { t.Error("called after Abort") })
		require.NoError(t, b.Abort())
		b.handleDatagram([]byte("x"))
		require.Equal(t, DatagramStats{Received: 1, Dropped: 1}, b.Stats().Datagrams)
	})
}
