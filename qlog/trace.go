package qlog

import (
	"net"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/trace"
)

// Trace returns the hooks that write to t. They serve one session.
func (t *Writer) Trace() *kcp.Trace {
	return &kcp.Trace{
		Sent:            t.sent,
		Repeated:        t.repeated,
		Received:        t.received,
		Stream:          t.segmentStream,
		Acked:           t.acked,
		Lost:            t.segmentLost,
		Spurious:        t.spurious,
		RTT:             func(sample, _, _ uint32) { t.rtt = sample },
		Metrics:         t.metrics,
		CongestionState: t.congestionState,
		MTU:             t.mtuUpdated,
		Signal:          t.signal,
		Datagram:        t.datagram,
		State:           t.sessionState,
		Moved:           t.moved,
		Dropped:         t.dropped,
		Stopped:         t.stopped,
	}
}

// segmentStream notes the stream of the segment that the next hook shows.
func (t *Writer) segmentStream(_, stream uint32) { t.stream = stream }

// takeStream returns the stream of the segment that is shown; 0: none.
func (t *Writer) takeStream() uint32 {
	stream := t.stream
	t.stream = 0
	return stream
}

func (t *Writer) sent(sn uint32, size, transmissions int, rto uint32) {
	stream := t.takeStream()
	t.event("quic:packet_sent", func(b []byte) []byte {
		b = packet(b, sn, size, stream)
		b = number(append(b, ','), "transmissions", transmissions)
		return number(append(b, ','), "rto", rto)
	})
}

func (t *Writer) repeated(sn uint32, size int) {
	stream := t.takeStream()
	t.event("quic:packet_sent", func(b []byte) []byte {
		return append(packet(b, sn, size, stream), `,"redundant":true`...)
	})
}

func (t *Writer) received(sn uint32, size int) {
	stream := t.takeStream()
	t.event("quic:packet_received", func(b []byte) []byte { return packet(b, sn, size, stream) })
}

func (t *Writer) acked(sn uint32, size, transmissions int) {
	t.event("quic:packets_acked", func(b []byte) []byte {
		b = append(b, `"packet_number_space":"application_data","packet_numbers":[`...)
		b = appendUint(b, sn)
		b = append(b, ']', ',')
		b = number(b, "payload_length", size)
		return number(append(b, ','), "transmissions", transmissions)
	})
}

// trigger returns the name that the draft has for a cause of losses.
func trigger(c trace.LossCause) string {
	switch c {
	case trace.LossFastRetransmit:
		return "reordering_threshold"
	case trace.LossReordering:
		return "time_threshold"
	}
	return "pto_expired"
}

func (t *Writer) segmentLost(sn uint32, size, transmissions int, cause trace.LossCause) {
	stream := t.takeStream()
	t.event("quic:packet_lost", func(b []byte) []byte {
		b = packet(b, sn, size, stream)
		b = text(append(b, ','), "trigger", trigger(cause))
		b = text(append(b, ','), "cause", cause.String())
		return number(append(b, ','), "transmissions", transmissions)
	})
}

func (t *Writer) spurious(sn uint32) {
	t.event("kcp:spurious_loss", func(b []byte) []byte { return number(b, "packet_number", sn) })
}

func (t *Writer) metrics(m trace.Metrics) {
	t.event("quic:recovery_metrics_updated", func(b []byte) []byte {
		b = number(b, "bytes_in_flight", m.BytesInFlight)
		b = number(append(b, ','), "packets_in_flight", m.InFlight)
		b = number(append(b, ','), "packets_queued", m.Queued)
		b = text(append(b, ','), "limited_by", m.LimitedBy.String())
		b = number(append(b, ','), "remote_window", int64(m.RemoteWindow)*int64(m.SegmentSize))
		if m.CongestionWindow < 1<<31-1 {
			b = number(append(b, ','), "congestion_window", int64(m.CongestionWindow)*int64(m.SegmentSize))
		}
		if m.PacingRate > 0 {
			b = number(append(b, ','), "pacing_rate", 8*m.PacingRate)
		}
		if m.SRTT > 0 {
			b = number(append(b, ','), "smoothed_rtt", m.SRTT)
			b = number(append(b, ','), "rtt_variance", m.RTTVar)
			b = number(append(b, ','), "latest_rtt", t.rtt)
			b = number(append(b, ','), "rto", m.RTO)
		}
		if m.MinRTT > 0 {
			b = append(b, `,"min_rtt":`...)
			b = appendMillis(b, m.MinRTT)
		}
		return b
	})
}

func (t *Writer) congestionState(old, new string) {
	t.event("quic:congestion_state_updated", func(b []byte) []byte {
		if old != "" {
			b = append(text(b, "old", old), ',')
		}
		return text(b, "new", new)
	})
}

func (t *Writer) mtuUpdated(size int) {
	old := t.mtu
	t.mtu = size
	t.event("quic:mtu_updated", func(b []byte) []byte {
		if old > 0 {
			b = append(number(b, "old", old), ',')
		}
		return number(b, "new", size)
	})
}

func (t *Writer) signal(sent bool, name string) {
	event := "kcp:signal_received"
	if sent {
		event = "kcp:signal_sent"
	}
	t.event(event, func(b []byte) []byte { return text(b, "signal", name) })
}

func (t *Writer) datagram(e trace.DatagramEvent, size int) {
	t.event("kcp:datagram_"+e.String(), func(b []byte) []byte {
		b = append(b, `"raw":{`...)
		return append(number(b, "payload_length", size), '}')
	})
}

// stateName returns the name that the draft has for a state of a session.
func stateName(s trace.SessionState) string {
	switch s {
	case trace.SessionDialled, trace.SessionAccepted:
		return "attempted"
	case trace.SessionEstablished:
		return "handshake_confirmed"
	case trace.SessionClosing:
		return "closing"
	case trace.SessionDraining:
		return "draining"
	}
	return "closed"
}

func (t *Writer) sessionState(s trace.SessionState, err error) {
	if s == trace.SessionDialled || s == trace.SessionAccepted {
		t.event("quic:connection_started", func(b []byte) []byte {
			b = endpoint(b, "local", t.opts.Local)
			return endpoint(append(b, ','), "remote", t.opts.Remote)
		})
	}
	old := t.state
	t.state = stateName(s)
	t.event("quic:connection_state_updated", func(b []byte) []byte {
		if old != "" {
			b = append(text(b, "old", old), ',')
		}
		return text(b, "new", t.state)
	})
	if s != trace.SessionEnded {
		return
	}
	t.event("quic:connection_closed", func(b []byte) []byte {
		initiator, trigger := closing(err)
		b = text(b, "initiator", initiator)
		b = text(append(b, ','), "trigger", trigger)
		if err != nil {
			b = text(append(b, ','), "reason", err.Error())
		}
		return b
	})
	t.stopped()
}

// stopped ends the trace. It does not wait until all is written.
func (t *Writer) stopped() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeLocked()
}

func (t *Writer) moved(remote string) {
	t.paths++
	addr, _ := net.ResolveUDPAddr("udp", remote)
	t.event("quic:tuple_assigned", func(b []byte) []byte {
		b = append(b, `"tuple_id":"`...)
		b = appendUint(b, uint32(t.paths))
		b = append(b, '"')
		if addr != nil {
			b = endpoint(append(b, ','), "tuple_remote", addr)
		}
		return b
	})
}

func (t *Writer) dropped(size int, reason error) {
	t.event("quic:packet_dropped", func(b []byte) []byte {
		b = append(b, `"raw":{`...)
		b = append(number(b, "length", size), '}', ',')
		b = append(text(b, "trigger", "invalid"), ',')
		return text(b, "details", reason.Error())
	})
}
