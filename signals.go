package kcp

// mayAnswer reports whether a further request of the peer is looked at. An
// unvalidated peer has maxSignals of them answered in a tenth of a second, whatever was
// sent meanwhile: such a peer has little to ask.
func (k *KCP) mayAnswer() bool {
	v := k.snd.validation
	return len(k.signals) < maxSignals && (v == nil || v.MayAnswer(k.clock.now, maxSignals))
}

// signalPayload returns the payload of s when it is sent: the one of the host, if
// it fits into a packet.
func (k *KCP) signalPayload(s signal) []byte {
	if k.hooks.host == nil || !s.code.mayHavePayload() {
		return nil
	}
	payload := k.hooks.host.signalPayload(s.code)
	if len(payload) > k.cfg.mtu-headerSize {
		return nil
	}
	return payload
}

// flushSignals sends the waiting signals.
func (k *KCP) flushSignals(h *header) {
	for _, s := range k.signals {
		payload := k.signalPayload(s)
		if !k.maySend(headerSize + len(payload)) {
			break // requests are repeated, by us or by the peer
		}
		b := k.reserve(headerSize+len(payload), k.maxPacket())
		s.encode(*h, b)
		if len(payload) > 0 {
			putPayload(b, payload)
		}
		k.cfg.trace.signal(true, s.code)
	}
	if k.snd.blackHole.Losing() && len(k.signals) > 0 {
		k.emit() // in a larger packet they might not arrive (black hole detection)
	}
	k.signals = k.signals[:0]
}

// sendSignals sends the waiting signals and nothing else.
func (k *KCP) sendSignals() {
	k.flushSignals(&header{conv: k.conv, wnd: k.wndUnused(), una: k.unaToSend()})
	k.emit()
}
