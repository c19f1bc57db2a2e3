package machine

import (
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// tracer calls the hooks of a Trace. A nil tracer calls nothing, which is what
// a state machine without Trace has.
type tracer struct {
	hooks *trace.Hooks
	last  trace.Metrics // as of the last call of Metrics
	state string        // of the congestion controller, as of the last call of CongestionState
}

// newTracer returns the tracer of t; nil if t is nil.
func newTracer(t *trace.Hooks) *tracer {
	if t == nil {
		return nil
	}
	return &tracer{hooks: t}
}

// stream calls Stream if s is a segment of a stream.
func (t *tracer) stream(s *Segment) {
	if t.hooks.Stream != nil && s.ofStream() && streams.ID(s.data) != 0 {
		t.hooks.Stream(uint32(s.sn), streams.ID(s.data))
	}
}

// receivedStream calls Stream if h, with its payload, is a segment of a stream.
func (t *tracer) receivedStream(h *wire.Header, payload []byte) {
	if t.hooks.Stream == nil || h.Cmd != wire.CmdStream {
		return
	}
	if s, _, ok := streams.Decode(payload); ok && s.ID != 0 {
		t.hooks.Stream(uint32(h.SN), streams.ID(payload))
	}
}

func (t *tracer) sent(s *Segment) {
	if t == nil {
		return
	}
	t.stream(s)
	if t.hooks.Sent != nil {
		t.hooks.Sent(uint32(s.sn), len(s.data), int(s.xmit), s.rto)
	}
}

func (t *tracer) repeated(s *Segment) {
	if t == nil {
		return
	}
	t.stream(s)
	if t.hooks.Repeated != nil {
		t.hooks.Repeated(uint32(s.sn), len(s.data))
	}
}

func (t *tracer) received(h *wire.Header, payload []byte) {
	if t == nil {
		return
	}
	t.receivedStream(h, payload)
	if t.hooks.Received != nil {
		t.hooks.Received(uint32(h.SN), len(payload))
	}
}

func (t *tracer) rtt(sample, srtt, rto uint32) {
	if t != nil && t.hooks.RTT != nil {
		t.hooks.RTT(sample, srtt, rto)
	}
}

func (t *tracer) acked(s *Segment) {
	if t != nil && t.hooks.Acked != nil {
		t.hooks.Acked(uint32(s.sn), len(s.data), int(s.xmit))
	}
}

func (t *tracer) lost(s *Segment) {
	if t == nil {
		return
	}
	t.stream(s)
	if t.hooks.Lost != nil {
		t.hooks.Lost(uint32(s.sn), len(s.data), int(s.xmit), s.cause)
	}
}

func (t *tracer) spurious(sn Seq) {
	if t != nil && t.hooks.Spurious != nil {
		t.hooks.Spurious(uint32(sn))
	}
}

func (t *tracer) mtu(size int) {
	if t != nil && t.hooks.MTU != nil {
		t.hooks.MTU(size)
	}
}

func (t *tracer) signal(sent bool, code wire.Code) {
	if t != nil && t.hooks.Signal != nil {
		t.hooks.Signal(sent, code.String())
	}
}

// traceMetrics calls Metrics and CongestionState if there is something new. The
// machine has a tracer.
func (k *KCP) traceMetrics() {
	t := k.cfg.trace
	if t.hooks.Metrics != nil {
		m := trace.Metrics{
			CongestionWindow: k.snd.cc.Window(),
			PacingRate:       k.snd.cc.PacingRate(),
			InFlight:         k.snd.inFlight,
			BytesInFlight:    k.snd.flightBytes,
			Queued:           k.snd.queue.n,
			RemoteWindow:     int(k.peer.wnd),
			SegmentSize:      k.cfg.mss,
			SRTT:             uint32(k.snd.rtt.srtt),
			RTTVar:           uint32(k.snd.rtt.rttvar),
			RTO:              k.snd.rtt.rto,
			MinRTT:           k.snd.rate.MinRTT,
			LimitedBy:        k.limit.By,
		}
		if m != t.last {
			t.last = m
			t.hooks.Metrics(m)
		}
	}
	if t.hooks.CongestionState == nil {
		return
	}
	if c, ok := k.snd.cc.(congestion.StateNamer); ok {
		if s := c.State(); s != t.state {
			old := t.state
			t.state = s
			t.hooks.CongestionState(old, s)
		}
	}
}
