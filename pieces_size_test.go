package kcp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/internal/reassembly"
)

// Large packets are suspect when several were lost, over a time-out at least,
// and none has arrived since the first; what reaches how far into its packet
// tells which are large.
func TestLargePacketsAreSuspect(t *testing.T) {
	watch := func(k *KCP) {
		k.snd.blackHole.Watch(1000, 0, 0)
		require.NoError(t, k.SetMTU(1100))
	}
	quiet := func(h *harness) { h.out = nil }
	losses := func(h *harness) {
		for range 10 {
			h.advance(h.k.snd.rtt.rto * 2)
		}
		quiet(h)
	}
	for name, test := range map[string]struct {
		messages []int
		suspect  bool
	}{
		"full": {[]int{1076}, true}, "small": {[]int{500}, false}, "just not large": {[]int{976}, false},
		"just large": {[]int{977}, true}, "together": {[]int{400, 400, 200}, true}, "not together": {[]int{400, 400, 300}, false},
	} {
		h := newHarness(t, watch)
		for _, n := range test.messages {
			h.send(strings.Repeat("x", n))
		}
		h.advance(10)
		require.False(t, h.k.blackHoleSuspected(), name)
		losses(h)
		require.Equal(t, test.suspect, h.k.blackHoleSuspected(), name)
		h.input(ack(0, h.now, uint32(len(test.messages))))
		require.False(t, h.k.blackHoleSuspected(), name)
		quiet(h)
	}

	// What was small once, may have arrived then.
	h := newHarness(t, watch)
	h.send(strings.Repeat("x", 500))
	h.advance(10)
	h.send(strings.Repeat("x", 500))
	losses(h)
	require.False(t, h.k.blackHoleSuspected())

	// One time-out is not enough, however much was lost.
	h = newHarness(t, watch)
	for range 20 {
		h.send(strings.Repeat("x", 1076))
	}
	h.advance(10)
	h.advance(h.k.snd.rtt.rto)
	require.GreaterOrEqual(t, int(h.k.snd.blackHole.Lost), pmtud.WatchedLosses)
	require.False(t, h.k.blackHoleSuspected())
	losses(h)
	require.True(t, h.k.blackHoleSuspected())

	// While they are suspect, signals leave by themselves.
	quiet(h)
	packets := 0
	h.k.hooks.output = func(p []byte) {
		if packets++; packets == 1 {
			require.Len(t, p, headerSize)
		}
	}
	h.k.signals = []signal{{sigPing, 1, 2}}
	h.send("next")
	h.advance(1)
	require.Positive(t, packets)
}

// A retransmission, whole or in pieces, alone or beside others, is in no packet
// larger than what has arrived, or than what nearly every path takes.
func TestRetransmissionsAreNoLargerThanWhatArrived(t *testing.T) {
	h := newHarness(t, func(k *KCP) {
		k.SetExtensions(Extensions{SendPieces: true})
		k.snd.blackHole.Watch(1200, 0, 1200)
	})
	largest := 0
	h.k.hooks.output = func(p []byte) { largest = max(largest, len(p)) }
	wait := func(ms, want int) {
		t.Helper()
		largest = 0
		h.advance(uint32(ms))
		require.Equal(t, want, largest)
	}
	h.send(strings.Repeat("x", 1276))
	wait(10, headerSize+reassembly.HeaderSize+1276)
	require.EqualValues(t, largest, h.k.snd.ring.at(0).packet, "the size that left")
	h.send(strings.Repeat("x", 1276))
	wait(10, headerSize+1276)
	h.send(strings.Repeat("x", 640))
	wait(10, headerSize+640)
	h.send(strings.Repeat("x", 640))
	wait(10, headerSize+640)
	wait(500, headerSize+reassembly.HeaderSize+1160) // the largest multiple of 20 that fits into 1200
	h.input(ack(1, h.now, 0))
	require.EqualValues(t, 1188, h.k.snd.blackHole.Taken, "any transmission may be the one that has arrived")
	require.EqualValues(t, 2, h.k.snd.blackHole.Lost, "one packet each")
	h.k.blackHole().Probed(1300)
	wait(2000, headerSize+reassembly.HeaderSize+1260)
	require.Zero(t, h.k.snd.blackHole.Lost)
	h.input(ack(3, h.now, 4))
}

// What stands behind a segment in its packet is lost with it.
func TestLostPacketsCountInFull(t *testing.T) {
	h := newHarness(t, func(k *KCP) {
		k.SetExtensions(Extensions{ThinAcks: true})
		k.snd.blackHole.Watch(1000, 0, 0)
	})
	largest := 0
	h.k.hooks.output = func(p []byte) { largest = max(largest, len(p)) }
	h.input(push(0, 0, "x"))
	h.send(strings.Repeat("x", 976))
	h.advance(10)
	require.Equal(t, 2*headerSize+976, largest)
	h.advance(h.k.snd.rtt.rto * 2)
	require.EqualValues(t, 1, h.k.snd.blackHole.Lost)
	h.recv("x")
}
