package machine

import (
	"fmt"
	"testing"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
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
	var una Seq
	out := h.k.hooks.Output
	h.k.hooks.Output = func(packet []byte) {
		una = wire.DecodeHeader(packet).Una
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
	h.input(segment(wire.CmdPush, 0, 5, 2, 0, "c"), segment(wire.CmdPush, 0, 6, 3, 0, "d"))
	h.send("y")
	h.advance(5)
	h.want(`push 2 frg=0 "y"`)
	require.Equal(t, Seq(4), una)
	h.input(ack(2, h.now, 3))
	h.input(segment(wire.CmdPush, 0, 7, 4, 0, "e"), segment(wire.CmdPush, 0, 8, 5, 0, "f"))
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
	h.input(segment(wire.CmdPush, 0, 3, 0, 0, "x"))
	h.send("y")
	h.advance(1)
	h.want(`push 1 frg=0 "y"`, "ack 0 ts=3 una=6 wnd=122")
	h.input(segment(wire.CmdPush, 0, 9, 6, 0, "x"), segment(wire.CmdPush, 0, 5, 8, 0, "x"))
	h.send("y")
	h.advance(1)
	h.want(`push 2 frg=0 "y"`, "ack 6 ts=9 una=9 wnd=119")
}

// The announcement of the peer lengthens the time-out of new data, and an ACK that
// has waited is no sample. Without the extension frg of an ACK means nothing.
func TestAckHold(t *testing.T) {
	for _, on := range []bool{true, false} {
		for _, frg := range []uint8{0, 1, 77, recovery.HoldMask, recovery.Waited, recovery.Waited | 77, 0xff} {
			t.Run(fmt.Sprint(on, frg), func(t *testing.T) {
				h := thinHarness(t, 40, Extensions{AwaitReplies: on})
				before := h.k.snd.rtt
				h.send("x")
				h.advance(0)
				h.now += 90
				h.k.SetClock(h.now)
				h.input(segment(wire.CmdAck, frg, h.now-90, 1, 2, ""))
				waited := on && frg&recovery.Waited != 0
				require.Equal(t, waited, h.k.snd.rtt == before)
				require.Equal(t, waited, h.k.snd.rate.Sample.RTT == 0)
				h.out = nil
				hold := uint32(0)
				if on {
					hold = uint32(frg & recovery.HoldMask)
				}
				h.send("y")
				h.advance(0)
				h.due(h.k.snd.rtt.rto + hold)
				h.want(`push 2 frg=0 "y"`)
				h.advance(h.k.snd.rtt.rto + hold)
				h.want(`push 2 frg=0 "y"`)
				h.due(h.k.snd.rtt.rto * 3 / 2) // without it
				h.send("z")
				h.advance(1)
				h.want(`push 3 frg=0 "z"`)
				h.now++
				h.k.SetClock(h.now)
				h.input(segment(wire.CmdWins, 0, 0, 0, 4, ""))
				require.Equal(t, hold == 0, h.k.snd.rate.Sample.RTT > 0)
			})
		}
	}
}

// The wait that the peer has announced is no longer in the time-out of a segment that a
// later packet of the peer does not acknowledge.
func TestAckHoldEnds(t *testing.T) {
	for ms, ends := range map[uint32]bool{40 + 80: false, 40 + 80 + 1: true} { // srtt, and 4 rttvar
		h := thinHarness(t, 40, Extensions{AwaitReplies: true})
		h.send("x")
		h.advance(0)
		h.later(40)
		h.input(segment(wire.CmdAck, 77, h.now-40, 1, 2, ""))
		h.k.snd.rtt.rttvar = 20
		h.out = nil
		h.send("y")
		h.advance(0)
		rto := h.k.snd.rtt.rto
		h.later(ms)
		h.input(segment(wire.CmdWins, 0, 0, 0, 2, ""))
		left := rto - min(ms, rto)
		if !ends {
			left = rto + 77 - ms
		}
		h.due(left)
		h.out = nil
	}
}

// A repetition is not suspected because of what left before it in the same
// millisecond, and a lost one is found by what left after it, whatever its sn.
func TestSendOrder(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) {
			k.SetExtensions(Extensions{SendOrder: on})
			k.SetFastResend(2)
		})
		for _, s := range []string{"a", "b", "c"} {
			h.send(s)
		}
		h.advance(0)
		h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
		h.advance(20)
		for _, s := range []string{"d", "e"} {
			h.send(s)
		}
		h.advance(0)
		h.want(`push 3 frg=0 "d"`, `push 4 frg=0 "e"`)
		h.input(ack(1, 1000, 0))
		h.input(ack(2, 1000, 0))
		h.advance(0)
		h.want(`push 0 frg=0 "a"`)
		h.k.snd.timeouts = timeouts{}
		h.advance(30)
		h.input(ack(3, 1020, 0))
		h.input(ack(4, 1020, 0))
		h.advance(0)
		if !on {
			h.want(`push 0 frg=0 "a"`) // which is on its way
			continue
		}
		h.want()

		// The repetition is lost; so is f, which left before g and h.
		for _, s := range []string{"f", "g", "h"} {
			h.send(s)
		}
		h.advance(0)
		h.want(`push 5 frg=0 "f"`, `push 6 frg=0 "g"`, `push 7 frg=0 "h"`)
		h.advance(20)
		h.input(ack(6, 1050, 0))
		h.advance(0)
		h.want()
		h.input(ack(7, 1050, 0))
		h.advance(0)
		h.want(`push 0 frg=0 "a"`, `push 5 frg=0 "f"`)
		// Now it is the repetition of 0 that tells about g's: sn is no order.
		h.k.snd.timeouts = timeouts{}
		h.send("i")
		h.advance(0)
		h.want(`push 8 frg=0 "i"`)
		h.send("j")
		h.advance(0)
		h.want(`push 9 frg=0 "j"`)
		h.advance(20)
		h.input(ack(0, 1070, 1))
		h.input(ack(5, 1070, 5))
		h.advance(0)
		h.want()
	}
}

// A queue that grows by more than the variance within a round trip makes no
// time-outs, while a segment that others have overtaken, and one on a path that
// answers no more, time out as ever.
func TestPostponeTimeouts(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) {
			k.SetExtensions(Extensions{PostponeTimeouts: on, SendOrder: true})
		})
		for i := range 20 { // a path of 100 ms, without variance
			h.send("x")
			h.advance(0)
			h.advance(100)
			h.input(ack(uint32(i), h.now-100, uint32(i)+1))
		}
		h.out = nil
		require.Less(t, h.k.snd.rtt.rto, uint32(125))
		for range 3 {
			h.send("x")
			h.advance(0)
			h.advance(10)
		}
		h.want(`push 20 frg=0 "x"`, `push 21 frg=0 "x"`, `push 22 frg=0 "x"`)
		h.now = h.now - 30 + h.k.snd.rtt.rto - 1
		h.k.SetClock(h.now)
		h.input(ack(20, h.now, 21)) // whose queue has grown
		h.advance(15)
		if !on {
			h.want(`push 21 frg=0 "x"`)
			continue
		}
		h.want()
		h.input(ack(22, h.now, 22))
		h.send("a")
		h.send("b")
		h.advance(0)
		h.want(`push 23 frg=0 "a"`, `push 24 frg=0 "b"`)
		rto := h.k.snd.ring.at(23).rto
		h.advance(rto - 1)
		h.input(ack(24, h.now, 22))
		h.advance(1)
		h.want(`push 23 frg=0 "a"`) // it was overtaken
		h.input(ack(23, h.now, 25))
		h.send("y")
		h.advance(0)
		h.want(`push 25 frg=0 "y"`)
		rto = h.k.snd.ring.at(25).rto
		h.k.snd.rate.NewestAckedRTT = 10_000_000
		h.advance(2*rto + 1)
		h.want(`push 25 frg=0 "y"`)
	}
}

// An ACK beyond una goes out again with the next one, before it, while the peer
// repeats what has arrived; not otherwise, not twice, and not for long.
func TestRepeatAcks(t *testing.T) {
	h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{RepeatAcks: true}) })
	step := func(want ...string) {
		t.Helper()
		h.advance(1)
		h.want(want...)
	}
	h.input(push(1, 0, "b"))
	step("ack 1 ts=0 una=0 wnd=128")
	h.input(push(2, 0, "c"))
	step("ack 2 ts=0 una=0 wnd=128")
	h.input(push(1, 0, "b")) // its ACK was lost
	step("ack 1 ts=0 una=0 wnd=128")
	h.input(push(3, 0, "d"))
	step("ack 3 ts=0 una=0 wnd=128")
	h.input(push(4, 0, "e"))
	step("ack 3 ts=0 una=0 wnd=128", "ack 4 ts=0 una=0 wnd=128")
	h.input(push(5, 0, "f"))
	step("ack 4 ts=0 una=0 wnd=128", "ack 5 ts=0 una=0 wnd=128")
	h.now += 2 * recovery.RepeatDelay
	h.input(push(6, 0, "g"))
	step("ack 6 ts=0 una=0 wnd=128")
	h.input(push(0, 0, "a")) // una covers all
	step("ack 0 ts=0 una=7 wnd=121")
	h.k.rcv.ackRepeats = recovery.RepeatFor(1)
	h.input(push(8, 0, "i"), push(9, 0, "j"))
	step("ack 8 ts=0 una=7 wnd=121", "ack 9 ts=0 una=7 wnd=121")
	h.send("x")
	step(`push 0 frg=0 "x"`) // no ACK, as there is no other to go with
	h.input(push(10, 0, "k"))
	step("ack 8 ts=0 una=7 wnd=121", "ack 10 ts=0 una=7 wnd=121")
}
