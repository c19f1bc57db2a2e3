package kcp

import (
	"github.com/arqnet/kcp/internal/recovery"
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
	sn, ts seq
	seen   bool
}

func (a *newestAck) add(sn, ts seq) {
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
	if len(packet) < headerSize {
		return ErrPacketShort
	}
	k.counters.PacketsReceived++
	una := k.snd.una
	k.congestionState()
	k.snd.rate.Begin()
	k.rcv.ackPolicy.Gap = k.rcv.early > 0
	flying, early := k.snd.inFlight, uint32(0)
	var newest newestAck
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, err := k.checkSegment(&h, packet[headerSize:])
		if err != nil {
			return err
		}
		isSignal, outside := false, false
		if h.frg != 0 && (h.cmd == cmdWask || h.cmd == cmdWins) {
			isSignal, outside = k.inputSignal(&h, payload)
		}
		if outside {
			packet = packet[headerSize+len(payload):]
			continue
		}
		if h.una.After(k.snd.nxt) {
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
			k.ackBelow(h.una)
		}
		if k.rcv.copies && (h.cmd == cmdAck && h.len > 0 || h.frg&recovery.CopiesFlag != 0 && (h.cmd == cmdPush || h.cmd == cmdStream)) {
			if payload, err = k.inputCopies(&h, payload, recovered); err != nil {
				return err
			}
		}
		switch h.cmd {
		case cmdAck:
			k.inputAck(&h, una, recovered)
			newest.add(h.sn, h.ts)
			if h.sn.After(h.una) {
				early++
			}
		case cmdPush:
			k.inputPush(&h, payload, recovered)
		case cmdStream:
			k.inputStream(&h, payload, recovered)
		case cmdPiece, cmdStreamPiece:
			if err := k.inputPiece(&h, payload, recovered); err != nil {
				return err
			}
		case cmdWask:
			k.counters.ProbesReceived++
			if !isSignal {
				k.peer.probe |= sendWins
			}
		case cmdWins:
			if !isSignal {
				k.counters.WindowUpdates++
			}
		}
		packet = packet[headerSize+int(h.len):]
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
func (k *KCP) afterInput(una seq, flying int) {
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
func (k *KCP) checkSegment(h *header, rest []byte) ([]byte, error) {
	if h.conv != k.conv {
		return nil, ErrConv
	}
	payload, ok := h.payload(rest)
	if !ok {
		return nil, ErrSegmentLength
	}
	if !knownCmd(h.cmd) && !(h.cmd == cmdPiece && k.cfg.ext.TakePieces) && !(streamCmd(h.cmd) && k.hooks.host != nil && k.hooks.host.takesStreams()) {
		return nil, ErrCommand
	}
	if h.cmd == cmdWask && h.frg != 0 && k.hooks.host != nil && !k.mayAnswer() {
		return nil, ErrRequests
	}
	return payload, nil
}

// inputSignal passes a signal to the host. Without a host isSignal is
// false, and the segment counts as the plain window probe or update that it
// looks like. outside reports that the segment is from outside the session, so
// that nothing else in it counts.
func (k *KCP) inputSignal(h *header, payload []byte) (isSignal, outside bool) {
	if k.hooks.host == nil {
		return false, false
	}
	s, isSignal := h.signal()
	if !isSignal {
		return false, false
	}
	k.cfg.trace.signal(false, s.code)
	return true, k.hooks.host.onSignal(s, payload)
}

// inputWindow takes the window that the peer advertises. A peer's una never decreases,
// so a segment whose una is below the highest seen is older than that one.
func (k *KCP) inputWindow(h *header) {
	k.peer.unaWentBack = k.peer.wndMax > 0 && h.una.Before(k.peer.una)
	if k.cfg.ext.FreshWindow && k.peer.wndMax > 0 && h.una.Before(k.peer.una) {
		return
	}
	k.peer.una = h.una
	k.peer.wnd = uint32(h.wnd)
	k.peer.wndMax = max(k.peer.wndMax, k.peer.wnd)
}

// inputAck processes the acknowledgement of one segment. una is snd_una before
// the packet. The packet's own una may have taken the segment out already, so
// its ACK still counts as new.
func (k *KCP) inputAck(h *header, una seq, recovered bool) {
	k.counters.AcksReceived++
	if v := k.snd.validation; v != nil && !v.Acknowledged(h.sn, h.ts) {
		return
	}
	var s *sendSegment
	if h.sn.Within(k.snd.una, k.snd.nxt) {
		s = k.snd.ring.at(h.sn)
	}
	isNew := s != nil || h.sn.Within(una, k.snd.una)
	rtt := k.clock.now.Diff(h.ts)
	if rtt >= 0 && !recovered && !k.snd.rate.Waited && (isNew || !k.cfg.ext.StrictRTT) {
		if k.cfg.ext.StrictRTT {
			k.snd.rtt.sampleWeighed(rtt, h.ts, k.clock.now, k.snd.inFlight, k.cfg.interval)
		} else {
			k.snd.rtt.sample(rtt, k.cfg.interval)
		}
		k.snd.cc.OnRTT(k.snd.ccState, uint32(rtt))
		if k.cfg.trace != nil {
			k.cfg.trace.rtt(uint32(rtt), uint32(k.snd.rtt.srtt), k.snd.rtt.rto)
		}
	}
	if s == nil {
		k.matchLateAck(h.sn, h.ts)
		return
	}
	switch {
	case s.xmit == 1:
	// An earlier transmission has arrived (Eifel detection, RFC 3522).
	case h.ts.Before(s.ts):
		k.snd.recovery.Episode.Count(s.xmit == 2)
		k.onSpurious(s.repaired)
		k.cfg.trace.spurious(s.sn)
	default:
		k.snd.recovery.Episode.Count(false)
		k.snd.recovery.Reordering.Genuine()
	}
	k.dropAcked(s, h.ts == s.ts)
	k.advanceUna()
}

// noteAckHold takes the peer's announcement from a segment, before its una. What
// una acknowledges shows no round trip if the ACK may have waited.
func (k *KCP) noteAckHold(h *header, recovered bool) {
	if !k.cfg.ext.AwaitReplies {
		return
	}
	k.snd.rate.Waited = k.peer.ackHold > 0
	if h.cmd == cmdAck && !recovered {
		k.peer.ackHold = h.frg & recovery.HoldMask
		k.snd.rate.Waited = h.frg&recovery.Waited != 0
	}
}

// matchLateAck handles the ACK of sn as sent at ts, after una has passed sn.
func (k *KCP) matchLateAck(sn, ts seq) {
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
			r.Episode.Resolve(p.Second)
			k.onSpurious(p.Early)
			k.cfg.trace.spurious(sn)
		}
	}
}
