package machine

import (
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// Bits of peerWindow.probe: the window segments that the next flush sends.
const (
	sendWask = 1 // send WASK
	sendWins = 2 // send WINS
)

// newestAck is the ACK of a packet that the loss detector counts: the ACK of the
// highest segment among the latest transmissions (FASTACK_CONSERVE of the
// reference). The zero value holds none.
type newestAck struct {
	sn, ts Seq
	seen   bool
}

func (a *newestAck) add(sn, ts Seq) {
	if !a.seen || (sn.After(a.sn) && ts.After(a.ts)) {
		*a = newestAck{sn: sn, ts: ts, seen: true}
	}
}

// Input processes one packet from the peer; it does not retain packet. An error says why
// the packet, or the rest of it, was dropped; segments before the bad one have taken
// effect.
func (k *KCP) Input(packet []byte) error { return k.input(packet, false) }

// InputRecovered is Input for a packet that forward error correction has reconstructed.
// As it is late, its ACKs are not round-trip samples, and its window is not taken. Its
// data is acknowledged with the ts of the newest packet that arrived by itself.
func (k *KCP) InputRecovered(packet []byte) error { return k.input(packet, true) }

func (k *KCP) input(packet []byte, recovered bool) error {
	if len(packet) < wire.HeaderSize {
		return ErrPacketShort
	}
	k.counters.PacketsReceived++
	una := k.snd.una
	k.congestionState()
	k.snd.rate.Begin()
	k.rcv.ackPolicy.Gap = k.rcv.early > 0
	flying, early := k.snd.inFlight, uint32(0)
	var newest newestAck
	for len(packet) >= wire.HeaderSize {
		h := wire.DecodeHeader(packet)
		payload, err := k.checkSegment(&h, packet[wire.HeaderSize:])
		if err != nil {
			return err
		}
		isSignal, outside := false, false
		if h.Frg != 0 && (h.Cmd == wire.CmdWask || h.Cmd == wire.CmdWins) {
			isSignal, outside = k.inputSignal(&h, payload)
		}
		if outside {
			packet = packet[wire.HeaderSize+len(payload):]
			continue
		}
		if h.Una.After(k.snd.nxt) {
			return ErrForgedUna
		}
		if !recovered {
			k.inputWindow(&h)
		}
		k.noteAckHold(&h, recovered)
		if k.snd.validation == nil {
			if k.rare != nil && !recovered {
				k.noteCovered(&h)
			}
			k.ackBelow(h.Una)
		}
		if k.rcv.copies && (h.Cmd == wire.CmdAck && h.Len > 0 || h.Frg&recovery.CopiesFlag != 0 && (h.Cmd == wire.CmdPush || h.Cmd == wire.CmdStream)) {
			if payload, err = k.inputCopies(&h, payload, recovered); err != nil {
				return err
			}
		}
		switch h.Cmd {
		case wire.CmdAck:
			k.inputAck(&h, una, recovered)
			newest.add(h.SN, h.TS)
			if h.SN.After(h.Una) {
				early++
			}
		case wire.CmdPush:
			k.inputPush(&h, payload, recovered)
		case wire.CmdStream:
			k.inputStream(&h, payload, recovered)
		case wire.CmdPiece, wire.CmdStreamPiece:
			if err := k.inputPiece(&h, payload, recovered); err != nil {
				return err
			}
		case wire.CmdWask:
			k.counters.ProbesReceived++
			if !isSignal {
				k.peer.probe |= sendWins
			}
		case wire.CmdWins:
			if !isSignal {
				k.counters.WindowUpdates++
			}
		}
		packet = packet[wire.HeaderSize+int(h.Len):]
	}
	if k.peer.ackHold != 0 {
		k.waitNoLonger()
	}
	k.countAck(newest, early)
	if k.rare != nil && k.snd.inFlight > 0 {
		k.resendOverdue()
	}
	k.afterInput(una, flying)
	return nil
}

// afterInput acts on what a packet's segments changed together. una and flying
// are snd_una and the segments in flight before it.
func (k *KCP) afterInput(una Seq, flying int) {
	if k.cfg.ext.ThinAcks {
		k.rcv.ackPolicy.Decide(k.clock.now, uint32(k.snd.rtt.srtt), k.rcv.early > 0, k.cfg.mss, k.rcv.share)
	}
	r, acked := &k.snd.recovery, flying-k.snd.inFlight
	r.Credit.Earn(acked)
	r.Outage.Alive(k.clock.now, k.snd.una, k.snd.nxt, acked)
	if r.Outage.From != r.Outage.End {
		k.resendAfterOutage()
	}
	k.notifyAcked(una)
	k.snd.lastAlive = transmission{}
	if s := k.snd.oldest(); s != nil {
		k.snd.lastAlive = transmission{s.sn, s.xmit}
	}
	if k.cfg.trace != nil {
		k.traceMetrics()
	}
}

// checkSegment returns the payload of the segment with header h, or the reason
// why the segment is bad. rest is what follows the header.
func (k *KCP) checkSegment(h *wire.Header, rest []byte) ([]byte, error) {
	if h.Conv != k.conv {
		return nil, ErrConv
	}
	payload, ok := h.Payload(rest)
	if !ok {
		return nil, ErrSegmentLength
	}
	if !wire.IsReference(h.Cmd) && !(h.Cmd == wire.CmdPiece && k.cfg.ext.TakePieces) && !(wire.IsStream(h.Cmd) && k.hooks.Host != nil && k.hooks.Host.TakesStreams()) {
		return nil, ErrCommand
	}
	if h.Cmd == wire.CmdWask && h.Frg != 0 && k.hooks.Host != nil && !k.mayAnswer() {
		return nil, ErrRequests
	}
	return payload, nil
}

// inputSignal passes a signal to the host. Without a host isSignal is
// false, and the segment counts as the plain window probe or update that it
// looks like. outside reports that the segment is from outside the session, so
// that nothing else in it counts.
func (k *KCP) inputSignal(h *wire.Header, payload []byte) (isSignal, outside bool) {
	if k.hooks.Host == nil {
		return false, false
	}
	s, isSignal := h.Signal()
	if !isSignal {
		return false, false
	}
	k.cfg.trace.signal(false, s.Code)
	return true, k.hooks.Host.OnSignal(s, payload)
}

// inputWindow takes the window that the peer advertises. A peer's una never decreases,
// so a segment whose una is below the highest seen is older than that one.
func (k *KCP) inputWindow(h *wire.Header) {
	k.peer.unaWentBack = k.peer.wndMax > 0 && h.Una.Before(k.peer.una)
	if k.cfg.ext.FreshWindow && k.peer.wndMax > 0 && h.Una.Before(k.peer.una) {
		return
	}
	k.peer.una = h.Una
	k.peer.wnd = uint32(h.Wnd)
	k.peer.wndMax = max(k.peer.wndMax, k.peer.wnd)
}

// inputAck processes the acknowledgement of one segment. una is snd_una before
// the packet. The packet's own una may have taken the segment out already, so
// its ACK still counts as new.
func (k *KCP) inputAck(h *wire.Header, una Seq, recovered bool) {
	k.counters.AcksReceived++
	if v := k.snd.validation; v != nil && !v.Acknowledged(h.SN, h.TS) {
		return
	}
	var s *Segment
	if h.SN.Within(k.snd.una, k.snd.nxt) {
		s = k.snd.ring.at(h.SN)
	}
	isNew := s != nil || h.SN.Within(una, k.snd.una)
	rtt := k.clock.now.Diff(h.TS)
	if rtt >= 0 && !recovered && !k.snd.rate.Waited && (isNew || !k.cfg.ext.StrictRTT) {
		if k.cfg.ext.StrictRTT {
			k.snd.rtt.sampleWeighed(rtt, h.TS, k.clock.now, k.snd.inFlight, k.cfg.interval)
		} else {
			k.snd.rtt.sample(rtt, k.cfg.interval)
		}
		k.snd.cc.OnRTT(k.snd.ccState, uint32(rtt))
		if k.cfg.trace != nil {
			k.cfg.trace.rtt(uint32(rtt), uint32(k.snd.rtt.srtt), k.snd.rtt.rto)
		}
	}
	if s == nil {
		k.matchLateAck(h.SN, h.TS)
		if isNew {
			k.snd.recovery.Episode.Echoed(h.TS)
		}
		return
	}
	switch {
	case s.xmit == 1:
	// An earlier transmission has arrived (Eifel detection, RFC 3522).
	case h.TS.Before(s.ts):
		k.snd.recovery.Episode.Count(s.xmit == 2 || k.snd.recovery.Episode.First(h.TS))
		k.onSpurious(s.repaired)
		k.cfg.trace.spurious(s.sn)
	default:
		k.snd.recovery.Episode.Count(false)
		k.snd.recovery.Reordering.Genuine()
	}
	k.dropAcked(s, h.TS == s.ts)
	k.advanceUna()
}

// noteAckHold takes the peer's announcement from a segment, before its una. What
// una acknowledges shows no round trip if the ACK may have waited.
func (k *KCP) noteAckHold(h *wire.Header, recovered bool) {
	if !k.cfg.ext.AwaitReplies {
		return
	}
	k.snd.rate.Waited = k.peer.ackHold > 0
	if h.Cmd == wire.CmdAck && !recovered {
		k.peer.ackHold = h.Frg & recovery.HoldMask
		k.snd.rate.Waited = h.Frg&recovery.Waited != 0
	}
}

// matchLateAck handles the ACK of sn as sent at ts, after una has passed sn.
func (k *KCP) matchLateAck(sn, ts Seq) {
	r := &k.snd.recovery
	if r.Retransmissions.Open == 0 {
		return
	}
	for p := r.Retransmissions.Acked(sn); p != nil; p = r.Retransmissions.Acked(sn) {
		switch {
		case ts == p.TS:
			r.Episode.Resolve(false)
			r.Reordering.Genuine()
			k.snd.rate.OnDelivered(&p.Tx, k.clock.micros-p.Tx.At)
		case ts.Before(p.TS):
			r.Episode.Resolve(p.Second || r.Episode.First(ts))
			k.onSpurious(p.Early)
			k.cfg.trace.spurious(sn)
		}
	}
}
