package machine

import "github.com/arqnet/kcp/internal/wire"

// mayAnswer reports whether a further request of the peer is looked at. An unvalidated
// peer has wire.MaxSignals of them answered in a tenth of a second, whatever was sent
// meanwhile: such a peer has little to ask.
func (k *KCP) mayAnswer() bool {
	v := k.snd.validation
	return len(k.signals) < wire.MaxSignals && (v == nil || v.MayAnswer(k.clock.now, wire.MaxSignals))
}

// signalPayload returns the payload of s when it is sent: the one of the host, if
// it fits into a packet.
func (k *KCP) signalPayload(s wire.Signal) []byte {
	if k.hooks.Host == nil || !s.Code.MayHavePayload() {
		return nil
	}
	payload := k.hooks.Host.SignalPayload(s.Code)
	if len(payload) > k.cfg.mtu-wire.HeaderSize {
		return nil
	}
	return payload
}

// flushSignals sends the waiting signals.
func (k *KCP) flushSignals(h *wire.Header) {
	for _, s := range k.signals {
		payload := k.signalPayload(s)
		if !k.maySend(wire.HeaderSize + len(payload)) {
			break // requests are repeated, by us or by the peer
		}
		b := k.reserve(wire.HeaderSize+len(payload), k.maxPacket())
		s.Encode(*h, b)
		if len(payload) > 0 {
			wire.PutPayload(b, payload)
		}
		k.cfg.trace.signal(true, s.Code)
	}
	if k.snd.blackHole.Losing() && len(k.signals) > 0 {
		k.emit() // in a larger packet they might not arrive (black hole detection)
	}
	k.signals = k.signals[:0]
}

// SendSignals sends the waiting signals and nothing else.
func (k *KCP) SendSignals() {
	k.flushSignals(&wire.Header{Conv: k.conv, Wnd: k.wndUnused(), Una: k.unaToSend()})
	k.emit()
}
