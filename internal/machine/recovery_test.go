package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// recoveryHarness returns a harness with three segments in flight, sent at
// 1080, and a round trip of 80 ms measured: sn 0 is acknowledged.
func recoveryHarness(t *testing.T, fastResend uint32, ext Extensions) *harness {
	h := newHarness(t, func(k *KCP) {
		k.SetFastResend(fastResend)
		k.SetExtensions(ext)
	})
	h.send("first")
	h.advance(0)
	h.now += 80
	h.k.SetClock(h.now)
	h.input(ack(0, 1000, 1))
	for _, s := range []string{"a", "b", "c"} {
		h.send(s)
	}
	h.advance(0)
	h.out = nil
	return h
}

// later lets ms pass without a flush.
func (h *harness) later(ms uint32) {
	h.now += ms
	h.k.SetClock(h.now)
}

// One acknowledgement of a later segment is enough, after a quarter of a round
// trip, where FastResend of them do not come. It is no time-out.
func TestEarlyRetransmit(t *testing.T) {
	h := recoveryHarness(t, 2, Extensions{EarlyRetransmit: true})
	h.later(80)
	h.input(ack(3, 1080, 1))
	h.advance(0)
	h.want()
	at, ok := h.k.NextFlush()
	require.True(t, ok)
	require.Equal(t, h.now+20, at)
	h.advance(20)
	h.want(`push 1 frg=0 "a"`, `push 2 frg=0 "b"`)
	require.EqualValues(t, 2, h.k.Counters().FastRetransmits)
	require.Zero(t, h.k.Counters().TimeoutRetransmits)
	h.advance(20)
	h.want() // once

	h = recoveryHarness(t, 2, Extensions{EarlyRetransmit: true})
	h.later(80)
	h.input(ack(2, 1080, 1), ack(3, 1080, 1)) // two in one packet count
	h.advance(0)
	h.want(`push 1 frg=0 "a"`)

	h = recoveryHarness(t, 0, Extensions{EarlyRetransmit: true}) // switched off
	h.later(80)
	h.input(ack(3, 1080, 1))
	h.advance(20)
	h.want()
}

// A repair that turns out to have been needless makes the next one wait for
// more evidence; calm makes it quick again.
func TestReorderingTolerance(t *testing.T) {
	h := recoveryHarness(t, 1, Extensions{EarlyRetransmit: true})
	h.later(80)
	h.input(ack(2, 1080, 1))
	h.advance(0)
	h.want(`push 1 frg=0 "a"`)
	h.later(5)
	h.input(ack(1, 1080, 3)) // the first transmission was only late
	require.EqualValues(t, 1, h.k.Counters().SpuriousRetransmits)
	h.input(ack(3, 1080, 4))
	for range 2 {
		h.send("x")
	}
	h.advance(0)
	h.out = nil
	sent := h.now
	h.later(80)
	h.input(ack(5, sent, 4))
	h.advance(39)
	h.want()
	h.input(ack(4, sent, 6)) // late again, and nothing was retransmitted
	require.EqualValues(t, 1, h.k.Counters().FastRetransmits)

	// A repair that was needed does not count as needless.
	for range 2 {
		h.send("y")
	}
	h.advance(0)
	h.out = nil
	sent = h.now
	h.later(80)
	h.input(ack(7, sent, 6))
	h.advance(80)
	h.want(`push 6 frg=0 "y"`)
	h.later(80)
	h.input(ack(6, h.now-80, 8))
	require.EqualValues(t, 1, h.k.Counters().SpuriousRetransmits)

	// After 16 quiet round trips one acknowledgement is enough once more.
	h.later(17 * 100)
	for i := range uint32(2) {
		sn := 8 + 2*i
		h.send("z")
		h.send("z")
		h.advance(0)
		h.out = nil
		h.later(80)
		h.input(ack(sn+1, h.now-80, sn))
		h.advance(0)
		if i == 0 { // this repair notices
			h.want()
			h.advance(80)
		}
		h.want(fmt.Sprintf(`push %d frg=0 "z"`, sn))
		h.later(80)
		h.input(ack(sn, h.now-80, sn+2))
	}
}

// What una says of a segment that was sent twice speaks against nothing that
// left before the second time: only an ACK with its ts does, in the same packet
// or later.
func TestUnaDoesNotTellWhichTransmission(t *testing.T) {
	for _, test := range []struct {
		name   string
		acks   [][]byte
		second bool // the second transmission is known to have arrived
		first  bool
	}{
		{"una", [][]byte{segment(wire.CmdWins, 0, 0, 0, 4, "")}, false, false},
		{"second", [][]byte{ack(1, 1160, 4)}, true, false},
		{"first", [][]byte{ack(1, 1080, 4)}, false, true},
		{"second, behind another", [][]byte{ack(3, 1080, 4), ack(1, 1160, 4)}, true, false},
		{"first, no una", [][]byte{ack(1, 1080, 1)}, false, true},
		{"second, no una", [][]byte{ack(1, 1160, 1)}, true, false},
	} {
		h := recoveryHarness(t, 1, Extensions{EarlyRetransmit: true, SendOrder: true})
		require.NoError(t, h.k.SetMinRTO(1000))
		h.later(70)
		h.send("d")
		h.advance(0)
		h.want(`push 4 frg=0 "d"`)
		h.later(10)
		h.input(ack(2, 1080, 1))
		h.advance(0)
		h.want(`push 1 frg=0 "a"`)
		h.later(85)
		h.input(test.acks...)
		h.advance(0)
		if test.second {
			require.Contains(t, h.out, `push 4 frg=0 "d"`, test.name)
		} else {
			require.Empty(t, h.out, test.name)
		}
		h.out = nil
		spurious := h.k.Counters().SpuriousRetransmits
		require.Equal(t, test.first, spurious == 1, "%s: %d needless", test.name, spurious)
	}
}

// countTimeouts is no control that counts what it is told.
type countTimeouts struct {
	congestion.Control
	n int
}

func (c *countTimeouts) OnTimeout(*congestion.State) { c.n++ }

// The first time-out of full segments is answered with the last of them, and
// the controller is not told; small ones all fit in the one packet.
func TestTailProbe(t *testing.T) {
	cc := &countTimeouts{Control: congestion.NewNone()}
	h := newHarness(t, func(k *KCP) {
		k.SetFastResend(2)
		k.SetCongestionControl(cc)
		k.SetExtensions(Extensions{TailProbe: true, EarlyRetransmit: true})
	})
	for _, c := range []string{"a", "b", "c"} {
		h.send(strings.Repeat(c, h.k.cfg.mss))
	}
	h.advance(0)
	require.Len(t, h.out, 3)
	h.out = nil
	h.advance(200)
	require.Len(t, h.out, 1)
	require.Contains(t, h.out[0], "push 2 ")
	h.out = nil
	require.Zero(t, cc.n)
	// Its acknowledgement tells what is missing.
	h.later(80)
	h.input(ack(2, 1200, 1))
	h.advance(20)
	require.Len(t, h.out, 1)
	require.Contains(t, h.out[0], "push 1 ")
	h.out = nil
	h.advance(1000)
	h.advance(1000)
	h.out = nil
	require.NotZero(t, cc.n)

	// What later segments were acknowledged over is not held back.
	counted := recoveryHarness(t, 5, Extensions{TailProbe: true})
	for range 2 {
		counted.send(strings.Repeat("d", counted.k.cfg.mss))
	}
	counted.advance(0)
	counted.send("e")
	counted.advance(0)
	counted.out = nil
	counted.input(ack(6, 1080, 4))
	counted.advance(300)
	require.Len(t, counted.out, 2)
	counted.out = nil

	// It does not wait for a variance that is large: 2 srtt and 25 ms, or Interval.
	for interval, wait := range map[uint32]uint32{10: 2*80 + 25, 40: 2*80 + 40} {
		varied := recoveryHarness(t, 2, Extensions{TailProbe: true})
		varied.k.SetNoDelay(NoDelayOn)
		require.NoError(t, varied.k.SetInterval(interval))
		varied.later(80)
		varied.input(ack(3, 1080, 4))
		varied.k.snd.rtt.rto = 1000
		for range 2 {
			varied.send(strings.Repeat("d", varied.k.cfg.mss))
		}
		varied.advance(0)
		at, ok := varied.k.NextFlush()
		require.True(t, ok)
		require.Equal(t, wait, at-varied.now)
		varied.out = nil
	}

	small := recoveryHarness(t, 2, Extensions{TailProbe: true})
	small.advance(300)
	small.want(`push 1 frg=0 "a"`, `push 2 frg=0 "b"`, `push 3 frg=0 "c"`)
}

// In an outage the oldest segment is sent at a steady pace, beside its
// time-outs, and the first packet of the peer causes the rest to be
// retransmitted.
func TestOutageProbe(t *testing.T) {
	h := recoveryHarness(t, 2, Extensions{OutageProbe: 200, EarlyRetransmit: true})
	require.NoError(t, h.k.SetMinRTO(150))
	probes := 0
	for range 5000 {
		h.advance(1)
		probes += strings.Count(strings.Join(h.out, " "), "push 1 ")
		h.out = nil
	}
	require.InDelta(t, 5000/200, probes, 6)
	require.LessOrEqual(t, h.k.snd.oldest().xmit, uint32(10)) // the back-off is what it was
	h.later(100)
	h.input(ack(1, h.now-100, 2))
	h.advance(0)
	h.want(`push 2 frg=0 "b"`, `push 3 frg=0 "c"`)
	h.later(80)
	h.input(ack(3, h.now-80, 4))
	_, ok := h.k.NextFlush()
	require.False(t, ok)
}

// After an outage a large flight comes back by a slow start.
func TestRevivalIsGradual(t *testing.T) {
	h := newHarness(t, func(k *KCP) {
		k.SetFastResend(2)
		k.SetExtensions(Extensions{OutageProbe: 200, EarlyRetransmit: true, MaxRTO: 5000})
		require.NoError(t, k.SetWindow(200, 200))
		k.peer.wnd = 200
	})
	for range 200 {
		h.send("x")
	}
	for range 10000 {
		h.advance(1)
	}
	h.out = nil
	h.input(ack(0, h.now-100, 1))
	h.advance(0)
	require.Len(t, h.out, recovery.OutageFirst+recovery.OutageGrowth)
	h.out = nil
	h.later(100)
	h.input(ack(18, h.now-100, 19))
	h.advance(0)
	require.Len(t, h.out, recovery.OutageGrowth*18)
	h.out = nil
}

// resender is a state machine as sessions have it, with much in flight.
type resender struct {
	k    *KCP
	now  uint64
	sent []Seq // since the flight has left
}

// newResender returns one with n segments in flight, the last sent 100 ms ago.
func newResender(t *testing.T, control congestion.Control, n int) *resender {
	r := &resender{now: 1_000_000}
	r.k = New(7, func(p []byte) {
		for len(p) > 0 {
			h := wire.DecodeHeader(p)
			if h.Cmd == wire.CmdPush {
				r.sent = append(r.sent, h.SN)
			}
			p = p[wire.HeaderSize+int(h.Len):]
		}
	})
	k := r.k
	asSession(k, control)
	require.NoError(t, k.SetWindow(n, n))
	k.peer.wnd, k.peer.wndMax = uint32(n), uint32(n)
	k.SetCongestionControl(control)
	k.SetClockMicros(r.now)
	for range n {
		_, err := k.Send(make([]byte, 1376))
		require.NoError(t, err)
	}
	for k.snd.inFlight < n {
		k.snd.pace.Budget = 1e9
		k.Flush()
		r.later(10)
	}
	r.later(100_000)
	k.snd.pace.Budget = 0
	r.sent = nil
	return r
}

func (r *resender) later(micros uint64) {
	r.now += micros
	r.k.SetClockMicros(r.now)
}

var resendControls = map[string]func() congestion.Control{
	"unpaced":       congestion.NewNone,
	"paced":         func() congestion.Control { return pacedControl{congestion.NewNone(), 1_000_000} },
	"narrow":        func() congestion.Control { return narrowControl{congestion.NewNone(), 2048} },
	"slow":          func() congestion.Control { return pacedControl{congestion.NewNone(), 10_000} },
	"narrow, paced": func() congestion.Control { return pacedControl{narrowControl{congestion.NewNone(), 2048}, 1_000_000} },
}

// first returns the first of each number.
func first(numbers []Seq) (firsts []Seq) {
	seen := make(map[Seq]bool)
	for _, n := range numbers {
		if !seen[n] {
			firsts, seen[n] = append(firsts, n), true
		}
	}
	return firsts
}

// What has to wait before it is retransmitted is due all the time: a driver that comes
// when NextFlush says sends it, oldest first, and is never asked to come at once again.
// While nothing arrives it leaves slower and slower.
func TestResendingGoesOn(t *testing.T) {
	for name, control := range resendControls {
		r := newResender(t, control(), 512)
		k := r.k
		for i := range 4 {
			require.NoError(t, k.Input(ack(uint32(511-i), uint32(k.snd.ring.at(Seq(511-i)).ts), 0)))
		}
		for steps := 0; len(r.sent) < 40; steps++ {
			require.Less(t, steps, 3000, "%s: %d sent", name, len(r.sent))
			k.Flush()
			r.sent = first(r.sent) // copies follow at once, and what is lost again comes first
			at, ok := k.NextFlush()
			require.True(t, ok, name)
			require.True(t, Seq(at).After(k.clock.now), "%s: NextFlush stands still, %d sent", name, len(r.sent))
			r.later(uint64(uint32(Seq(at)-k.clock.now)) * 1000)
			due, _ := k.NextFlush()
			require.False(t, Seq(due).After(k.clock.now), "%s: NextFlush puts it off, %d sent", name, len(r.sent))
		}
		for i, sn := range r.sent[:40] {
			require.EqualValues(t, i, sn, "%s: not the oldest", name)
		}
		requireBooks(t, k)
		require.Less(t, r.now, uint64(60_000_000), name)
	}
}

// What was declared lost and is acknowledged before it is retransmitted was not
// lost: that counts as reordering, and is not sent.
func TestAcknowledgedBeforeResending(t *testing.T) {
	r := newResender(t, congestion.NewNone(), 512)
	k := r.k
	ackOf := func(sn uint32) []byte { return ack(sn, uint32(k.snd.ring.at(Seq(sn)).ts), 0) }
	require.NoError(t, k.Input(concat([][]byte{ackOf(510), ackOf(511)})))
	k.Flush()
	waiting := k.snd.loss.due.n
	require.Greater(t, waiting, 400)
	require.NoError(t, k.Input(ackOf(500)))
	require.Equal(t, waiting-1, k.snd.loss.due.n)
	require.EqualValues(t, 1, k.snd.recovery.Reordering.Spurious)
	require.Zero(t, k.counters.SpuriousRetransmits)
	require.NoError(t, k.Input(segment(wire.CmdWins, 0, 0, 0, 512, "")))
	require.Zero(t, k.snd.loss.due.n)
	require.Zero(t, k.WaitSend())
	_, ok := k.NextFlush()
	require.False(t, ok)
}

// A few acknowledgements, each of the newest segment in flight, cause
// retransmissions of twice what they acknowledge, and a little beside: not of the
// window.
func TestFewAcksResendLittle(t *testing.T) {
	for name, control := range resendControls {
		r := newResender(t, control(), 2048)
		k := r.k
		for i := range 6 {
			require.NoError(t, k.Input(ack(uint32(2047-i), uint32(k.snd.ring.at(Seq(2047-i)).ts), 0)))
			k.Flush()
			r.later(1000)
		}
		k.Flush()
		require.NotEmpty(t, r.sent, name)
		require.LessOrEqual(t, len(r.sent), recovery.FreeResends+6*recovery.ResendGrowth+10+6, name)
	}
}

// A segment is suspected after 5 transmissions no more.
func TestFastResendLimit(t *testing.T) {
	for sent, want := range map[uint32]bool{5: true, 6: false} {
		h := recoveryHarness(t, 2, Extensions{EarlyRetransmit: true, SendOrder: true})
		s := h.k.snd.ring.at(1)
		s.xmit = sent
		h.later(80)
		h.input(ack(3, 1080, 1))
		require.Equal(t, want, s.early, "after %d", sent)
		h.out = nil

		counted := recoveryHarness(t, 1, Extensions{SendOrder: true})
		counted.k.snd.ring.at(1).xmit = sent
		counted.later(80)
		counted.input(ack(3, 1080, 1))
		counted.advance(0)
		require.Equal(t, want, slices.Contains(counted.out, `push 1 frg=0 "a"`), "after %d", sent)
		counted.out = nil
	}
}

// Only transmissions since the peer was last heard count for DeadLink.
func TestSilenceBeginsWithTheLastPacket(t *testing.T) {
	h := newHarness(t, nil)
	require.Zero(t, h.k.Sender().SilentTransmissions(), "nothing is in flight")
	h.send("x")
	later := func() {
		for range 100 {
			h.advance(50)
		}
	}
	later()
	sent := h.k.Sender().SilentTransmissions()
	require.Greater(t, sent, 1)
	h.input(segment(wire.CmdWask, 0, 0, 0, 0, ""))
	require.Zero(t, h.k.Sender().SilentTransmissions())
	later()
	require.Positive(t, h.k.Sender().SilentTransmissions())
	h.out = nil
}
