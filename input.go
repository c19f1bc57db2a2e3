package kcp

// probe bits: what the next flush tells the peer about windows.
const (
	sendWask = 1 // send WASK
	sendWins = 2 // send WINS
)

// ackItem is an acknowledgement to be sent.
type ackItem struct{ sn, ts seq }

// newestAck is the ACK of a packet that the loss detector counts: the one of
// the highest segment among the latest transmissions (FASTACK_CONSERVE of the
// reference).
type newestAck struct {
	sn, ts seq
	seen   bool
}

func (a *newestAck) add(sn, ts seq) {
	if !a.seen || (sn.after(a.sn) && ts.after(a.ts)) {
		*a = newestAck{sn: sn, ts: ts, seen: true}
	}
}

// Input takes one packet from the peer; it does not keep packet. An error says
// why the packet, or the rest of it, was dropped; nothing else is disturbed.
func (k *KCP) Input(packet []byte) error { return k.input(packet, false) }

// InputRecovered is Input for a packet that forward error correction has
// reconstructed. It comes late, so its ACKs are no round-trip samples, its
// window is not news, and what it carries is acknowledged in a way that gives
// the peer no sample either but that of the newest packet that came by itself.
func (k *KCP) InputRecovered(packet []byte) error { return k.input(packet, true) }

func (k *KCP) input(packet []byte, recovered bool) error {
	if len(packet) < headerSize {
		return ErrPacketShort
	}
	k.counters.PacketsReceived++
	una := k.snd.una
	k.congestionState()
	k.snd.rate.begin()
	k.rcv.ackPolicy.gap = k.rcv.early > 0
	flying, early := k.snd.inFlight, uint32(0)
	var newest newestAck
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		payload, err := k.checkSegment(&h, packet[headerSize:])
		if err != nil {
			return err
		}
		isSignal, outside := k.inputSignal(&h)
		if outside {
			packet = packet[headerSize:]
			continue
		}
		if h.una.after(k.snd.nxt) {
			return ErrForgedUna
		}
		if !recovered {
			k.inputWindow(&h)
		}
		if k.snd.validation == nil {
			k.ackBelow(h.una)
		}
		switch h.cmd {
		case cmdAck:
			k.inputAck(&h, una, recovered)
			newest.add(h.sn, h.ts)
			if h.sn.after(h.una) {
				early++
			}
		case cmdPush:
			k.inputPush(&h, payload, recovered)
		case cmdPiece:
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
		packet = packet[headerSize+len(payload):]
	}
	k.countAck(newest, early)
	if k.cfg.ext.ThinAcks {
		k.decideAck()
	}
	k.peerAlive(flying - k.snd.inFlight)
	k.notifyAcked(una)
	k.snd.lastAlive = transmission{}
	if s := k.oldest(); s != nil {
		k.snd.lastAlive = transmission{s.sn, s.xmit}
	}
	return nil
}

// checkSegment returns the payload of a segment, rest being what follows its
// header, or why the segment is bad.
func (k *KCP) checkSegment(h *header, rest []byte) ([]byte, error) {
	if h.conv != k.conv {
		return nil, ErrConv
	}
	payload, ok := h.payload(rest)
	if !ok {
		return nil, ErrSegmentLength
	}
	if !knownCmd(h.cmd) && !(h.cmd == cmdPiece && k.cfg.ext.TakePieces) {
		return nil, ErrCommand
	}
	return payload, nil
}

// inputSignal gives a signal to whoever wants signals. isSignal is false where
// nobody does: the segment is the probe then that it seems to be. outside is true
// where the segment counts for nothing else.
func (k *KCP) inputSignal(h *header) (isSignal, outside bool) {
	if k.hooks.onSignal == nil {
		return false, false
	}
	s, isSignal := h.signal()
	return isSignal, isSignal && k.hooks.onSignal(s)
}

// inputWindow takes the peer's advertisement. The una of a peer never goes
// back, so a segment with less than the highest seen is older than that one.
func (k *KCP) inputWindow(h *header) {
	k.peer.unaWentBack = k.peer.wndMax > 0 && h.una.before(k.peer.una)
	if k.cfg.ext.FreshWindow && k.peer.wndMax > 0 && h.una.before(k.peer.una) {
		return
	}
	k.peer.una = h.una
	k.peer.wnd = uint32(h.wnd)
	k.peer.wndMax = max(k.peer.wndMax, k.peer.wnd)
}

// inputAck takes the acknowledgement of one segment, in a packet before which
// snd_una was una. The una of the packet itself may have covered the segment
// already, so it counts as news all the same.
func (k *KCP) inputAck(h *header, una seq, recovered bool) {
	k.counters.AcksReceived++
	if v := k.snd.validation; v != nil && !v.acknowledged(h.sn, h.ts) {
		return
	}
	var s *sendSegment
	if h.sn.within(k.snd.una, k.snd.nxt) {
		s = k.snd.ring.at(h.sn)
	}
	news := s != nil || h.sn.within(una, k.snd.una)
	rtt := k.clock.now.diff(h.ts)
	if rtt >= 0 && !recovered && (news || !k.cfg.ext.StrictRTT) {
		k.snd.rtt.sample(rtt, k.cfg.interval)
		k.snd.cc.OnRTT(k.lastState(), uint32(rtt))
		k.cfg.trace.rtt(uint32(rtt), uint32(k.snd.rtt.srtt), k.snd.rtt.rto)
	}
	if s == nil {
		k.matchLateAck(h.sn, h.ts)
		return
	}
	switch {
	case s.xmit == 1:
	case h.ts.before(s.ts):
		k.snd.recovery.count(s.xmit == 2)
		k.onSpurious(s.repaired)
	default:
		k.snd.recovery.count(false)
		k.onGenuine()
	}
	k.dropAcked(s, h.ts == s.ts)
	k.advanceUna()
}
