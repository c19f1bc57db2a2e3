package machine

import (
	"testing"

	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
	"github.com/stretchr/testify/require"
)

// lossRecord collects what a Trace says of losses, of one segment each.
type lossRecord struct {
	causes   map[uint32][]trace.LossCause
	spurious []uint32
}

func (r *lossRecord) trace() *trace.Hooks {
	r.causes = make(map[uint32][]trace.LossCause)
	return &trace.Hooks{
		Lost:     func(sn uint32, _, _ int, cause trace.LossCause) { r.causes[sn] = append(r.causes[sn], cause) },
		Spurious: func(sn uint32) { r.spurious = append(r.spurious, sn) },
	}
}

// A hook learns why a segment is retransmitted: each cause by itself.
func TestLossCauses(t *testing.T) {
	start := func(t *testing.T, segments int, x Extensions) (*harness, *lossRecord) {
		r := new(lossRecord)
		h := newHarness(t, func(k *KCP) {
			k.SetFastResend(2)
			k.SetExtensions(x)
			k.SetTrace(r.trace())
		})
		for range segments {
			h.send("x")
			h.advance(1)
		}
		h.out = nil
		return h, r
	}
	t.Run("time-out", func(t *testing.T) {
		h, r := start(t, 1, Extensions{})
		h.advance(wireTestRTO)
		h.out = nil
		require.Equal(t, map[uint32][]trace.LossCause{0: {trace.LossTimeout}}, r.causes)
	})
	t.Run("tail loss probe", func(t *testing.T) {
		h, r := start(t, 2, Extensions{TailProbe: true, SendOrder: true, EarlyRetransmit: true})
		h.advance(wireTestRTO)
		h.advance(2 * wireTestRTO)
		h.out = nil
		require.Equal(t, []trace.LossCause{trace.LossTailProbe, trace.LossTimeout}, r.causes[1])
	})
	t.Run("fast retransmit", func(t *testing.T) {
		h, r := start(t, 3, Extensions{})
		h.input(ack(1, 1001, 0))
		h.input(ack(2, 1002, 0))
		h.advance(1)
		h.want(`push 0 frg=0 "x"`)
		require.Equal(t, map[uint32][]trace.LossCause{0: {trace.LossFastRetransmit}}, r.causes)
		h.input(ack(0, 1000, 0)) // of the first transmission
		require.Equal(t, []uint32{0}, r.spurious)
	})
	t.Run("reordering window", func(t *testing.T) {
		h, r := start(t, 2, Extensions{SendOrder: true, EarlyRetransmit: true})
		h.advance(40)
		h.input(ack(1, 1001, 0))
		h.advance(30)
		h.out = nil
		require.Equal(t, map[uint32][]trace.LossCause{0: {trace.LossReordering}}, r.causes)
	})
	t.Run("end of outage", func(t *testing.T) {
		h, r := start(t, 4, Extensions{OutageProbe: 200, EarlyRetransmit: true, SendOrder: true})
		for range 3000 {
			h.advance(1)
		}
		clear(r.causes)
		h.input(ack(0, h.now-100, 1))
		h.advance(0)
		h.out = nil
		require.Equal(t, []trace.LossCause{trace.LossOutage}, r.causes[3])
	})
}

// wireTestRTO is longer than the first time-out, in milliseconds.
const wireTestRTO = 250

// What a peer has closed without taking counts as dropped, not as acknowledged, also after
// Compact, when nothing has arrived since.
func TestDiscardedIsNotAcknowledged(t *testing.T) {
	acked := 0
	h := newHarness(t, func(k *KCP) {
		k.SetTrace(&trace.Hooks{Acked: func(uint32, int, int) { acked++ }})
	})
	h.send("a")
	h.send("b")
	h.advance(0)
	h.out = nil
	h.input(ack(0, 1000, 1))
	h.k.DiscardSend()
	h.k.Compact()
	h.send("c")
	h.advance(0)
	h.out = nil
	require.Equal(t, 1, h.k.snd.inFlight)
	h.k.DiscardSend()
	require.Zero(t, h.k.WaitSend())
	require.Equal(t, 1, acked)
	require.EqualValues(t, 1, h.k.Counters().BytesAcked)
	require.NotNil(t, h.k.Tracing())
}

// Every state and cause has a name of its own.
func TestTraceNames(t *testing.T) {
	seen := make(map[string]bool)
	add := func(name string) {
		require.NotContains(t, name, "unknown")
		require.False(t, seen[name], name)
		seen[name] = true
	}
	for s := trace.SessionDialled; s <= trace.SessionEnded; s++ {
		add(s.String())
	}
	for c := trace.LossFastRetransmit; c <= trace.LossOutage; c++ {
		add(c.String())
	}
	require.Equal(t, "unknown", trace.SessionState(0).String())
	require.Equal(t, "unknown", trace.LossCause(0).String())
}

// A machine without hooks allocates nothing for them, and one with hooks is told
// of its figures only when they change.
func TestTraceMetrics(t *testing.T) {
	var got []trace.Metrics
	h := newHarness(t, func(k *KCP) {
		k.SetTrace(&trace.Hooks{Metrics: func(m trace.Metrics) { got = append(got, m) }})
	})
	n := len(got)
	h.advance(10)
	h.advance(10)
	require.Len(t, got, n)
	h.send("abc")
	h.advance(0)
	h.want(`push 0 frg=0 "abc"`)
	require.Len(t, got, n+1)
	last := got[n]
	require.Equal(t, 1, last.InFlight)
	require.Equal(t, int64(wire.HeaderSize+3), last.BytesInFlight)
	h.advance(40)
	h.input(ack(0, h.now-40, 1))
	last = got[len(got)-1]
	require.Zero(t, last.InFlight)
	require.Equal(t, uint32(40), last.SRTT)
	h.k.SetTrace(nil)
	require.Nil(t, h.k.Tracing())
}
