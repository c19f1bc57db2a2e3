package kcp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/delayedack"
)

// thinHarness returns a harness with ThinAcks that has measured a round trip.
func thinHarness(t *testing.T, rtt uint32, more Extensions) *harness {
	more.ThinAcks = true
	h := newHarness(t, func(k *KCP) { k.SetExtensions(more) })
	h.send("first")
	h.advance(0)
	h.want(`push 0 frg=0 "first"`)
	h.now += rtt
	h.k.SetClock(h.now)
	h.input(ack(0, 1000, 1))
	return h
}

// due wants the next flush in ms.
func (h *harness) due(ms uint32) {
	h.t.Helper()
	at, ok := h.k.NextFlush()
	require.True(h.t, ok)
	require.Equal(h.t, h.now+ms, at)
}

// What comes in order is acknowledged by the una of a packet that leaves
// anyway, with an ACK once in a round trip, and alone where none leaves.
func TestThinAcks(t *testing.T) {
	h := thinHarness(t, 80, Extensions{})
	var una seq
	out := h.k.hooks.output
	h.k.hooks.output = func(packet []byte) {
		una = decodeHeader(packet).una
		out(packet)
	}
	h.input(push(0, 0, "a"))
	h.due(20)
	h.send("x")
	h.advance(10)
	h.want(`push 1 frg=0 "x"`, "ack 0 ts=0 una=1 wnd=127") // the first sample
	h.input(push(1, 0, "b"))
	h.advance(0) // whatever leaves may take it along, and this does
	h.want("ack 1 ts=0 una=2 wnd=126")
	h.input(segment(cmdPush, 0, 5, 2, 0, "c"), segment(cmdPush, 0, 6, 3, 0, "d"))
	h.send("y")
	h.advance(5)
	h.want(`push 2 frg=0 "y"`)
	require.Equal(t, seq(4), una)
	h.input(ack(2, h.now, 3))
	h.input(segment(cmdPush, 0, 7, 4, 0, "e"), segment(cmdPush, 0, 8, 5, 0, "f"))
	srtt := uint32(h.k.snd.rtt.srtt)
	h.due(srtt / 4)
	h.advance(srtt / 4)
	h.want("ack 4 ts=7 una=6 wnd=122") // as RFC 7323 has it, of the older one
	h.now += 100
	h.k.SetClock(h.now)
	h.input(push(6, 0, "g"))
	h.send("z")
	h.advance(0)
	h.want(`push 3 frg=0 "z"`, "ack 6 ts=0 una=7 wnd=121")
}

// The more waits, the sooner it is acknowledged; on a short path with the next
// tick.
func TestThinAcksDelay(t *testing.T) {
	full := strings.Repeat("x", defaultMTU-headerSize)
	for _, c := range []struct {
		rtt  uint32
		data []string
		due  uint32
	}{
		{80, []string{"a"}, 20},
		{400, []string{"a"}, 25},
		{3, []string{"a"}, delayedack.MinDelay},
		{80, []string{"a", "b", "c"}, 20},
		{80, []string{"a", "b", "c", "d"}, 5},
		{80, []string{full[:255]}, 20},
		{80, []string{full[:256]}, 5},
		{400, []string{full}, 5},
		{80, []string{full}, 5},
		{48, []string{full}, 3},
		{12, []string{full}, delayedack.MinDelay},
		{80, []string{full, full, full}, 5},
		{80, []string{full, full, full, full}, 0},
	} {
		h := thinHarness(t, c.rtt, Extensions{})
		for i, data := range c.data {
			h.input(push(uint32(i), 0, data))
		}
		h.due(c.due)
		h.advance(c.due)
		require.Len(t, h.out, 1)
		h.out = nil
	}
}

// A gap is told at once, three times; what is early has an ACK of its own, but
// not when it comes again meanwhile.
func TestThinAcksGap(t *testing.T) {
	h := thinHarness(t, 80, Extensions{})
	for sn := uint32(1); sn <= 3; sn++ {
		h.input(push(sn, 0, "x"))
		h.due(0)
		h.advance(0)
		require.Len(t, h.out, 1)
		require.Contains(t, h.out[0], "una=0")
		h.out = nil
	}
	h.input(push(4, 0, "x"))
	h.due(20)
	h.advance(20)
	h.want("ack 4 ts=0 una=0 wnd=128")
	h.input(push(4, 0, "x"), push(5, 0, "x")) // 4 is repeated beside 5
	h.advance(20)
	h.want("ack 5 ts=0 una=0 wnd=128")
	h.advance(20)
	h.input(push(5, 0, "x")) // 40 ms after the first: the ACK may have been lost
	h.advance(0)
	h.want("ack 5 ts=0 una=0 wnd=128")
	h.input(push(7, 0, "x")) // another gap
	h.due(0)
	h.advance(0)
	h.want("ack 7 ts=0 una=0 wnd=128")
	// What fills the gap is named, with its ts: it tells which transmission came.
	h.input(segment(cmdPush, 0, 3, 0, 0, "x"))
	h.send("y")
	h.advance(1)
	h.want(`push 1 frg=0 "y"`, "ack 0 ts=3 una=6 wnd=122")
	h.input(segment(cmdPush, 0, 9, 6, 0, "x"), segment(cmdPush, 0, 5, 8, 0, "x"))
	h.send("y")
	h.advance(1)
	h.want(`push 2 frg=0 "y"`, "ack 6 ts=9 una=9 wnd=119")
}

// A gap that the same packet fills is nothing to hurry for.
func TestThinAcksRepeatedInOnePacket(t *testing.T) {
	h := thinHarness(t, 80, Extensions{})
	h.input(push(1, 0, "b"), push(0, 0, "a"))
	h.due(20)
	h.advance(20)
	require.Len(t, h.out, 1)
	require.Contains(t, h.out[0], "una=2")
	h.out = nil
}

// The una of signals does not count everywhere, so they do not stand in for an
// acknowledgement.
func TestThinAcksBesideSignals(t *testing.T) {
	h := thinHarness(t, 80, Extensions{})
	h.input(push(0, 0, "a"))
	h.advance(20)
	h.want("ack 0 ts=0 una=1 wnd=127")
	h.input(push(1, 0, "b"))
	h.k.signals = append(h.k.signals, signal{code: sigAbort})
	h.advance(1)
	h.want("wins una=2 wnd=126", "ack 1 ts=0 una=2 wnd=126")
}
