package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// redundantHarness returns a harness that counts packets in *packets.
func redundantHarness(t *testing.T, packets *int, ext Extensions) *harness {
	h := newHarness(t, func(k *KCP) {
		k.SetFastResend(1)
		k.SetExtensions(ext)
	})
	out := h.k.hooks.Output
	h.k.hooks.Output = func(packet []byte) {
		*packets++
		out(packet)
	}
	return h
}

// What is not acknowledged comes again with the next packets, the newest first.
func TestRedundancy(t *testing.T) {
	packets := 0
	h := redundantHarness(t, &packets, Extensions{Redundancy: 100})
	step := func(data string, want ...string) {
		t.Helper()
		h.send(data)
		h.advance(10)
		h.want(want...)
	}
	step("a", `push 0 frg=0 "a"`)
	step("b", `push 1 frg=0 "b"`, `push 0 frg=0 "a"`)
	step("c", `push 2 frg=0 "c"`, `push 1 frg=0 "b"`, `push 0 frg=0 "a"`)
	require.Equal(t, 3, packets)
	require.EqualValues(t, 3, h.k.Counters().Repeats)
	h.input(ack(1, 1010, 0))
	h.send("d")
	h.advance(10)
	// An acknowledgement of what was sent later shows that 0 was lost; it leaves
	// as a retransmission.
	h.want(`push 0 frg=0 "a"`, `push 3 frg=0 "d"`, `push 2 frg=0 "c"`)
	h.send("e")
	h.advance(0) // in the same millisecond nothing is repeated
	h.want(`push 4 frg=0 "e"`)
	h.input(ack(4, h.now, 5))
	h.advance(10)
	h.want()
}

// However long nothing is acknowledged, the share is kept.
func TestRedundancyShare(t *testing.T) {
	for _, share := range []uint32{20, 100, 300} {
		packets, bytes := 0, 0
		h := redundantHarness(t, &packets, Extensions{Redundancy: share})
		require.NoError(t, h.k.SetWindow(1<<16, 128))
		h.k.peer.wnd = 1 << 16
		h.k.hooks.Output = func(packet []byte) { bytes += len(packet) + recovery.PacketOverhead }
		for range 2000 {
			h.send("12345678")
			h.k.snd.rtt.rto = 60000
			h.advance(1)
		}
		once := 2000 * (8 + wire.HeaderSize + recovery.PacketOverhead)
		require.InDelta(t, once*(100+int(share))/100, bytes, float64(once)/50)
		require.Equal(t, bytes-once, int(h.k.Counters().Repeats)*(8+wire.HeaderSize))
	}
}

// Without Redundancy, segments are repeated when something was lost lately, and
// for no more than acknowledgements left out would have taken. What is sent
// again is repeated once.
func TestEarlyRepair(t *testing.T) {
	packets := 0
	h := redundantHarness(t, &packets, Extensions{EarlyRepair: true, ThinAcks: true})
	sn := uint32(0)
	// exchange has the peer send a message and acknowledge all of ours below una.
	exchange := func(una uint32, want ...string) {
		t.Helper()
		h.input(segment(wire.CmdPush, 0, 0, sn, una, "p"))
		sn++
		h.send("m")
		h.advance(10)
		out := h.out
		h.out = nil
		for _, s := range out {
			if !strings.HasPrefix(s, "ack") {
				h.out = append(h.out, s)
			}
		}
		h.want(want...)
	}
	exchange(0, `push 0 frg=0 "m"`)
	exchange(0, `push 1 frg=0 "m"`)
	h.input(ack(1, 1010, 0)) // 0 is lost
	exchange(0, `push 0 frg=0 "m"`, `push 2 frg=0 "m"`)
	exchange(0, `push 3 frg=0 "m"`, `push 0 frg=0 "m"`, `push 2 frg=0 "m"`)
	exchange(0, `push 4 frg=0 "m"`, `push 3 frg=0 "m"`)
	for i := range uint32(recovery.LossMemory) - 2 {
		h.input(segment(wire.CmdPush, 0, 0, sn, 4+i, "p"))
		sn++
		h.send("m")
		h.advance(10)
	}
	require.InDelta(t, recovery.LossMemory, h.k.Counters().Repeats, 10)
	h.out = nil
	before := h.k.Counters().Repeats
	for range 5 {
		h.send("m")
		h.advance(1)
	}
	h.out = nil
	require.Equal(t, before, h.k.Counters().Repeats)
}

// Repeats after losses take no more bytes than the acknowledgements left out.
func TestEarlyRepairIsPaidFor(t *testing.T) {
	packets := 0
	h := redundantHarness(t, &packets, Extensions{EarlyRepair: true, ThinAcks: true})
	require.NoError(t, h.k.SetWindow(1000, 1000))
	h.k.peer.wnd = 1000
	h.k.snd.redundancy.OnLoss(0)
	message := strings.Repeat("m", 4*recovery.SavedAck-wire.HeaderSize)
	for sn := range uint32(recovery.LossMemory - 4) {
		h.k.snd.rtt.rto = 60000
		h.input(push(sn, 0, "p"))
		h.send(message)
		h.advance(10)
		h.out = nil
	}
	require.EqualValues(t, (recovery.LossMemory-4)/4, h.k.Counters().Repeats)
}

// fastControl is no congestion control but a pacing rate.
type fastControl struct {
	congestion.Control
	window int
}

func (c fastControl) Window() int { return c.window }

func (fastControl) PacingRate() int64 { return 1e9 }

// A retransmission leaves with copies in packets of their own if nothing new may leave.
func TestRepeatInSpare(t *testing.T) {
	for name, test := range map[string]struct {
		set    func(k *KCP)
		copies bool
	}{
		"nothing waits":           {func(*KCP) {}, true},
		"data waits":              {func(k *KCP) { k.snd.queue.n++ }, false},
		"the window is full":      {func(k *KCP) { k.snd.queue.n++; k.peer.wnd = 2 }, true},
		"no pacing":               {func(k *KCP) { k.snd.cc = congestion.NewNone() }, false},
		"a queue on the path":     {func(k *KCP) { k.snd.rate.NewestAckedRTT = 2 * k.snd.rate.MinRTT }, false},
		"an outage":               {func(k *KCP) { k.snd.recovery.Outage.On = true; k.snd.recovery.Outage.ProbeAt = k.clock.now + 1000 }, false},
		"a window that is filled": {func(k *KCP) { k.snd.cc = fastControl{k.snd.cc, 4} }, false},
		"a window that is not":    {func(k *KCP) { k.snd.cc = fastControl{k.snd.cc, 5} }, true},
		"switched off":            {func(k *KCP) { k.cfg.ext.EarlyRepair = false }, false},
		"streams":                 {func(k *KCP) { k.rare = &rareMachine{streaming: true} }, false},
		"a small segment":         {func(*KCP) {}, false}, // with the next packet
		"a cap":                   {func(k *KCP) { k.CapRate(1, 0) }, false},
		"an unvalidated address":  {func(k *KCP) { k.LimitUnvalidated(0, false); k.snd.validation.Received(1 << 20) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			packets := 0
			h := redundantHarness(t, &packets, Extensions{EarlyRepair: true, PipeWindow: true, SendOrder: true})
			h.k.SetCongestionControl(fastControl{congestion.NewNone(), 100})
			full := strings.Repeat("F", h.k.cfg.mss)
			if name == "a small segment" {
				full = "F"
			}
			push := func(sn int) string { return fmt.Sprintf("push %d frg=0 %q", sn, full) }
			for sn := range 3 {
				h.send(full)
				h.advance(1)
				h.want(push(sn))
			}
			h.input(ack(1, 1002, 0))
			test.set(h.k)
			h.k.snd.recovery.Credit.Left = 1
			h.k.flushRetransmissions(&wire.Header{Conv: 7}, h.k.snd.cc.PacingRate())
			h.k.flushLost(&wire.Header{Conv: 7}, h.k.snd.cc.PacingRate())
			h.k.emit()
			if !test.copies {
				h.want(push(0))
				return
			}
			h.want(push(0), push(0), push(0))
			require.EqualValues(t, recovery.SpareCopies, h.k.Counters().Repeats)
			require.EqualValues(t, 1, h.k.Counters().FastRetransmits)
		})
	}
}

// To an address that is not validated only the oldest segment is retransmitted, and the
// others once it is.
func TestUnvalidatedGetsTheOldestOnly(t *testing.T) {
	h := newHarness(t, nil)
	h.k.LimitUnvalidated(0, false)
	h.k.Validation().Received(10_000)
	for _, s := range []string{"a", "b", "c"} {
		h.send(s)
	}
	h.advance(0)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
	h.advance(250)
	h.want(`push 0 frg=0 "a"`)
	for h.k.Validation().Take(1) {
	}
	h.advance(1000)
	h.want()
	h.k.ValidateAddress()
	h.advance(1000)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
}

// To an address that is not validated no redundant copies are sent.
func TestNoCopiesToTheUnvalidated(t *testing.T) {
	packets := 0
	h := redundantHarness(t, &packets, Extensions{Redundancy: 100})
	h.k.LimitUnvalidated(0, false)
	h.k.Validation().Received(10_000)
	for i, s := range []string{"a", "b"} {
		h.send(s)
		h.advance(10)
		h.want(fmt.Sprintf("push %d frg=0 %q", i, s))
	}
}
