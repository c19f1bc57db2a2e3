package kcp

// Signals are the messages that two endpoints of this package exchange beyond
// the reference's protocol. They are WASK and WINS segments whose frg is not 0,
// without payload except for PROBE, CLOSE and RESETKEY. Other implementations
// write 0 there and never read it, so to them signals are ordinary probes.
// WIRE.md §5 specifies signals.

// signalCode is the frg of a signal.
type signalCode uint8

const (
	sigHello    signalCode = 1 + iota // opens a session; sn 0, ts the sender's token
	sigInfo                           // goes with HELLO and with answers: sn version, ts capabilities
	sigConfirm                        // the answer to HELLO has arrived: sn the receiver's token, ts the sender's
	sigFin                            // no data from sn on; ts the receiver's token
	sigClose                          // as FIN, and the sender does not read any more
	sigPing                           // keep-alive, path validation: asks for an answer; sn and ts arbitrary
	sigCookie                         // HELLO counts only together with these sn and ts
	sigReset                          // no such session (stateless reset); sn and ts as in the signal it answers
	sigAbort                          // the session has ended; sn the receiver's token, ts 0
	sigProbe                          // asks whether a packet of this size arrives; sn random, ts the size
	sigToken                          // goes with the answer to PING: sn the receiver's token, ts the sender's
	sigCrypto                         // with TLS: carries bytes of the handshake (WIRE.md §8.1); no signal to the machine
	sigAlert                          // with TLS: the handshake has failed; sn the alert, ts the receiver's token
	sigResetKey                       // with TLS: the key of the sender's stateless resets (WIRE.md §8.6); sn a time, ts a mask
	sigTiebreak                       // goes with the HELLO of an end whose peer dials too (WIRE.md §5.1): a random number
	sigCount                          // goes with PING, or with the answer: sn packets sent, ts packets of the receiver that are missing

	// sigAnswer is set in the code of an answer, which has sn and ts of the
	// signal it answers. The answer to HELLO has the sender's token as sn.
	sigAnswer signalCode = 0x80
)

// maxSignals is how many signals may wait for the next flush and a further
// request still be answered. A packet is dropped from the first request beyond
// that: a flood of requests costs less than as much data, and no more answers
// than fit into one packet. An honest peer's packets have a handful of requests.
const maxSignals = 16

// mayAnswer reports whether a further request of the peer is looked at. An
// unvalidated peer has maxSignals of them answered in a tenth of a second, whatever was
// sent meanwhile: such a peer has little to ask.
func (k *KCP) mayAnswer() bool {
	v := k.snd.validation
	return len(k.signals) < maxSignals && (v == nil || v.MayAnswer(k.clock.now, maxSignals))
}

// signal is a signal with its two arguments.
type signal struct {
	code   signalCode
	sn, ts uint32
}

// answer returns the signal that acknowledges s.
func (s signal) answer() signal { return signal{s.code | sigAnswer, s.sn, s.ts} }

// asks reports whether s wants an answer. It is then sent as a WASK, which a
// legacy peer answers too.
func (s signal) asks() bool {
	switch s.code {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		return true
	}
	return false
}

// encode writes s to b. The other fields are h's.
func (s signal) encode(h header, b []byte) {
	h.cmd = cmdWins
	if s.asks() {
		h.cmd = cmdWask
	}
	h.frg, h.sn, h.ts, h.len = uint8(s.code), seq(s.sn), seq(s.ts), 0
	h.encode(b)
}

// signal returns the signal that h carries; ok is false if it carries none.
// Only PROBE, whose payload fills its packet, CLOSE and RESETKEY have payload.
func (h *header) signal() (s signal, ok bool) {
	if h.frg == 0 || h.len != 0 && !signalCode(h.frg).mayHavePayload() || (h.cmd != cmdWask && h.cmd != cmdWins) {
		return signal{}, false
	}
	return signal{signalCode(h.frg), uint32(h.sn), uint32(h.ts)}, true
}

// mayHavePayload reports whether signals with this code may have payload.
func (c signalCode) mayHavePayload() bool {
	return c == sigProbe || c == sigClose || c == sigResetKey
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
