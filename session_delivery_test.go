package kcp

import (
	"context"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Flush takes a round trip, and no longer: the acknowledgement wakes it, also if
// the write buffer is full by then.
func TestFlushReturnsWithTheAcknowledgement(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: 100 * time.Millisecond}, func(w *world) {
		a, _, _ := w.pair(small(true), nil)
		time.Sleep(time.Second)
		require.NoError(t, a.WriteMessage(make([]byte, 1000)))
		time.AfterFunc(time.Millisecond, func() { _ = a.WriteMessage(make([]byte, 100000)) })
		start := time.Now()
		require.NoError(t, a.Flush(context.Background()))
		require.Less(t, time.Since(start), 300*time.Millisecond)
		require.Zero(t, a.WriteAvailable())
	})
}

// What is dropped because the peer does not want it counts as undelivered.
func TestDiscardedBytesAreNotAcked(t *testing.T) {
	k := New(1, func([]byte) {})
	for range 100 {
		_, err := k.Send(make([]byte, 5000))
		require.NoError(t, err)
	}
	k.SetClock(1)
	k.Flush()
	require.NotZero(t, k.snd.inFlight)
	wins := make([]byte, headerSize)
	(&header{conv: 1, cmd: cmdWins}).encode(wins)
	require.NoError(t, k.Input(wins)) // in a session, the peer's CLOSE
	k.discardSend()
	require.Zero(t, k.WaitSend())
	require.Zero(t, k.Counters().BytesAcked)
}
