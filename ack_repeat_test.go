package kcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/delayedack"
)

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
	h.now += 2 * delayedack.RepeatDelay
	h.input(push(6, 0, "g"))
	step("ack 6 ts=0 una=0 wnd=128")
	h.input(push(0, 0, "a")) // una covers all
	step("ack 0 ts=0 una=7 wnd=121")
	h.k.rcv.ackRepeats = delayedack.RepeatFor(1)
	h.input(push(8, 0, "i"), push(9, 0, "j"))
	step("ack 8 ts=0 una=7 wnd=121", "ack 9 ts=0 una=7 wnd=121")
	h.send("x")
	step(`push 0 frg=0 "x"`) // no ACK, as there is no other to go with
	h.input(push(10, 0, "k"))
	step("ack 8 ts=0 una=7 wnd=121", "ack 10 ts=0 una=7 wnd=121")
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
		h.advance(2*rto + 1)
		h.want(`push 25 frg=0 "y"`)
	}
}
