package kcp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/delayedack"
	"github.com/arqnet/kcp/internal/replyrhythm"
)

// replyHarness is a harness with AwaitReplies, and an application that answers
// what it reads.
type replyHarness struct {
	*harness
	sn uint32 // of the next segment of the peer
}

const (
	replyUsual = 20 // milliseconds that an ACK waits on a path of 80
	replyTook  = 40 // milliseconds that the application takes
)

func newReplyHarness(t *testing.T) *replyHarness {
	return &replyHarness{harness: thinHarness(t, 4*replyUsual, Extensions{AwaitReplies: true})}
}

// arrives is the arrival of a segment, which the application reads.
func (h *replyHarness) arrives() {
	h.input(push(h.sn, 0, "a"))
	h.recv("a")
	h.sn++
}

// sends lets ms pass, and sends a segment that the peer acknowledges at once.
func (h *replyHarness) sends(ms uint32) {
	h.send("b")
	h.advance(ms)
	h.input(ack(uint32(h.k.snd.nxt)-1, h.now, uint32(h.k.snd.nxt)))
	h.k.snd.rtt.srtt = 4 * replyUsual
}

// replies is an exchange whose ACK leaves alone, after the usual time, or waits
// for the answer.
func (h *replyHarness) replies() {
	h.arrives()
	if r := &h.k.rcv.ackPolicy.Replies; !r.Waits {
		h.advance(replyUsual)
		h.sends(replyTook - replyUsual)
	} else {
		h.sends(replyTook)
	}
	h.out = nil
}

// ACKs wait for replies that come soon, and say so in front of the data, once the
// peer knows. Every so often one does not wait.
func TestAwaitReplies(t *testing.T) {
	h := newReplyHarness(t)
	for range replyrhythm.FirstReplies {
		h.replies()
		require.Zero(t, h.k.rcv.ackPolicy.Replies.Hold)
	}
	const hold = replyTook*3/2 + 2
	announced, from := 0, h.now+replyUsual+2*4*replyUsual
	for ; h.now < from; announced++ {
		h.arrives()
		h.due(replyUsual)
		h.advance(replyUsual)
		h.want(fmt.Sprintf("ack %d ts=0 una=%d wnd=128 frg=%#x", h.sn-1, h.sn, hold))
		h.sends(replyTook - replyUsual)
		h.out = nil
	}
	waited, acks := 0, 0
	for range 2 * replyrhythm.Sampled {
		h.arrives()
		if h.k.rcv.ackPolicy.Replies.Waits {
			waited++
			h.due(hold)
			var want []string
			if sampled := h.k.rcv.ackPolicy.Sampled; !seq(h.now+replyTook).Within(sampled, sampled+4*replyUsual) {
				want = append(want, fmt.Sprintf("ack %d ts=0 una=%d wnd=128 frg=%#x", h.sn-1, h.sn, hold|replyrhythm.Waited))
				acks++
			}
			h.sends(replyTook)
			h.want(append(want, fmt.Sprintf("push %d frg=0 \"b\"", uint32(h.k.snd.nxt)-1))...)
			continue
		}
		h.due(replyUsual)
		h.advance(replyUsual)
		h.want(fmt.Sprintf("ack %d ts=0 una=%d wnd=128 frg=%#x", h.sn-1, h.sn, hold))
		h.sends(replyTook - replyUsual)
		h.out = nil
	}
	require.Equal(t, 2*(replyrhythm.Sampled-1), waited)
	require.InDelta(t, waited/2, acks, 2) // one in a round trip
	for range 3 {                         // as before: more in a row leave sooner
		h.arrives()
	}
	h.due(hold)
	h.arrives()
	h.due(max(delayedack.MinDelay, 4*replyUsual/delayedack.SoonShare))
	h.advance(4 * replyUsual / delayedack.SoonShare)
	h.out = nil
}

// ACKs stop to wait when the replies stop, until there are some again, and for
// much longer when something is lost.
func TestAwaitRepliesEnds(t *testing.T) {
	for name, c := range map[string]struct {
		disturb func(h *replyHarness)
		again   int // replies until ACKs wait again
	}{
		"a duplicate": {func(h *replyHarness) { h.input(push(0, 0, "a")) }, replyrhythm.FirstReplies},
		"a gap": {func(h *replyHarness) {
			h.input(push(h.sn+1, 0, "a"))
			h.input(push(h.sn, 0, "a"))
			h.recv("a")
			h.recv("a")
			h.sn += 2
		}, replyrhythm.Streak},
		"a retransmission": {func(h *replyHarness) {
			h.send("b")
			h.advance(0)
			h.advance(h.k.snd.rtt.rto)
			h.input(ack(uint32(h.k.snd.nxt)-1, h.now, uint32(h.k.snd.nxt)))
			h.k.snd.rtt.srtt = 4 * replyUsual
		}, replyrhythm.Streak},
		"a late reply": {func(h *replyHarness) {
			h.arrives()
			h.sends(replyrhythm.MaxHold + 1)
		}, replyrhythm.FirstReplies},
		"no reply": {func(h *replyHarness) {
			h.arrives()
			h.advance(uint32(h.k.rcv.ackPolicy.Replies.Hold))
			h.want(fmt.Sprintf("ack %d ts=0 una=%d wnd=128 frg=%#x", h.sn-1, h.sn, replyTook*3/2+2|replyrhythm.Waited))
		}, replyrhythm.FirstReplies},
	} {
		t.Run(name, func(t *testing.T) {
			h := newReplyHarness(t)
			for !h.k.rcv.ackPolicy.Replies.Waits {
				h.replies()
			}
			c.disturb(h)
			h.advance(replyUsual)
			h.out = nil
			r := &h.k.rcv.ackPolicy.Replies
			require.Zero(t, r.Hold)
			r.Open = false
			n := 0
			for ; r.Hold == 0 && n < 2*replyrhythm.Streak; n++ {
				h.replies()
			}
			require.InDelta(t, c.again, n, 2)
		})
	}
}

// The announcement of the peer lengthens the time-out of new data, and an ACK that
// has waited is no sample. Without the extension frg of an ACK means nothing.
func TestAckHold(t *testing.T) {
	for _, on := range []bool{true, false} {
		for _, frg := range []uint8{0, 1, 77, replyrhythm.HoldMask, replyrhythm.Waited, replyrhythm.Waited | 77, 0xff} {
			t.Run(fmt.Sprint(on, frg), func(t *testing.T) {
				h := thinHarness(t, 40, Extensions{AwaitReplies: on})
				before := h.k.snd.rtt
				h.send("x")
				h.advance(0)
				h.now += 90
				h.k.SetClock(h.now)
				h.input(segment(cmdAck, frg, h.now-90, 1, 2, ""))
				waited := on && frg&replyrhythm.Waited != 0
				require.Equal(t, waited, h.k.snd.rtt == before)
				require.Equal(t, waited, h.k.snd.rate.Sample.RTT == 0)
				h.out = nil
				hold := uint32(0)
				if on {
					hold = uint32(frg & replyrhythm.HoldMask)
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
				h.input(segment(cmdWins, 0, 0, 0, 4, ""))
				require.Equal(t, hold == 0, h.k.snd.rate.Sample.RTT > 0)
			})
		}
	}
}

// What the peer sends shows that it does not have what left long ago: the
// time-out is then as if it acknowledged at once.
func TestAckHoldOfLostSegment(t *testing.T) {
	const hold = 90
	for _, c := range []struct{ after, due uint32 }{
		{40, 70 + hold}, // it may have left before the segment has arrived
		{60, 70},
		{69, 70},
		{100, 100},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			h := thinHarness(t, 40, Extensions{AwaitReplies: true})
			h.input(segment(cmdAck, hold, 0, 0, 1, ""))
			h.k.snd.rtt = rttEstimator{srtt: 40, rto: 70, minRTO: 30}
			h.send("x")
			h.advance(0)
			h.want(`push 1 frg=0 "x"`)
			left := h.now
			h.now += c.after
			h.k.SetClock(h.now)
			h.input(segment(cmdWins, 0, 0, 0, 1, ""))
			at, ok := h.k.NextFlush()
			require.True(t, ok)
			require.Equal(t, left+c.due, at)
		})
	}
}
