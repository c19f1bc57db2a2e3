package machine

import (
	"strconv"
	"testing"
	"unsafe"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// A segment far ahead keeps few places for what is missing before it.
func TestReachIsBounded(t *testing.T) {
	long(t)
	k := New(7, func([]byte) {})
	require.NoError(t, k.SetWindow(1, 65535))
	k.hooks.Frugal = true
	require.NoError(t, k.Input(push(0, 0, "x")))
	require.NoError(t, k.Input(push(65000, 0, "x")))
	require.EqualValues(t, 1, k.Counters().OutOfWindow)
	require.NoError(t, k.Input(push(4000, 0, "x")))
	require.LessOrEqual(t, k.Held(), 2*sessionReach*placeBytes)
	for sn := range uint32(60000) { // an honest gap
		if sn > 0 && sn != 30000 {
			require.NoError(t, k.Input(push(sn, 0, "x")))
		}
	}
	require.EqualValues(t, 1, k.Counters().OutOfWindow)

	k = New(7, func([]byte) {})
	require.NoError(t, k.SetWindow(1, 65535))
	k.rcv.pressure, k.rcv.peerUnvalidated = PressureNone, true
	require.NoError(t, k.Input(push(unvalidatedReach+1, 0, "x")))
	require.EqualValues(t, 1, k.Counters().OutOfWindow)
	require.Zero(t, k.rcv.early)
	require.NoError(t, k.Input(push(unvalidatedReach, 0, "x")))
	require.EqualValues(t, 1, k.Counters().OutOfWindow)
	require.EqualValues(t, 1, k.rcv.early)
}

// What a place of the receive ring, a waiting acknowledgement and a signal count is what
// they take in memory.
func TestSizesAreOfMemory(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("pointers are smaller, and count as if they were not")
	}
	require.EqualValues(t, unsafe.Sizeof(recvSegment{}), placeBytes)
	require.EqualValues(t, unsafe.Sizeof(recovery.Ack{}), ackBytesHeld)
	require.EqualValues(t, unsafe.Sizeof(wire.Signal{}), SignalBytesHeld)
}
