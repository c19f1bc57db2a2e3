package kcp

// Signals are what two endpoints of this package tell each other beyond the
// reference's protocol: WASK and WINS segments without payload whose frg, which
// is 0 otherwise and which nobody else reads there, is not 0. To any other peer
// they are ordinary probes. WIRE.md §5 specifies them.

// signalCode is the frg of a signal.
type signalCode uint8

const (
	sigHello   signalCode = 1 + iota // opens a session; sn 0, ts the sender's token
	sigInfo                          // goes with hello and its answer: sn version, ts abilities
	sigConfirm                       // the answer to hello has come: sn the receiver's token, ts the sender's
	sigFin                           // no data from sn on; ts the receiver's token
	sigClose                         // as fin, and the sender does not read any more
	sigPing                          // asks for a sign of life; sn and ts arbitrary
	sigCookie                        // hello only counts together with these sn and ts
	sigReset                         // there is no such session; sn and ts of the signal it answers
	sigAbort                         // the session has ended; sn the receiver's token, ts a reason
	sigProbe                         // asks whether a packet of this size arrives; sn random, ts the size
	sigToken                         // goes with the answer to ping: sn the receiver's token, ts the sender's

	sigAnswer signalCode = 0x80 // with the code, sn and ts of what is answered; for hello: sn the sender's token
)

// signal is a signal with its two arguments.
type signal struct {
	code   signalCode
	sn, ts uint32
}

// answer returns the signal that acknowledges s.
func (s signal) answer() signal { return signal{s.code | sigAnswer, s.sn, s.ts} }

// asks reports whether s wants an answer. It then travels as a WASK, which a
// peer that knows no signals answers too.
func (s signal) asks() bool {
	switch s.code {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		return true
	}
	return false
}

// encode writes s to b. The header h has the rest of the fields.
func (s signal) encode(h header, b []byte) {
	h.cmd = cmdWins
	if s.asks() {
		h.cmd = cmdWask
	}
	h.frg, h.sn, h.ts, h.len = uint8(s.code), seq(s.sn), seq(s.ts), 0
	h.encode(b)
}

// signal returns the signal that h carries; ok is false where it is none. Only
// a probe has payload, which fills its packet.
func (h *header) signal() (s signal, ok bool) {
	if h.frg == 0 || h.len != 0 && signalCode(h.frg) != sigProbe || (h.cmd != cmdWask && h.cmd != cmdWins) {
		return signal{}, false
	}
	return signal{signalCode(h.frg), uint32(h.sn), uint32(h.ts)}, true
}

// flushSignals puts out the signals that wait.
func (k *KCP) flushSignals(h *header) {
	for _, s := range k.signals {
		if !k.maySend(headerSize) {
			break // what asks is repeated, and so is what was asked
		}
		s.encode(*h, k.reserve(headerSize))
	}
	if k.snd.blackHole.lost > 0 && len(k.signals) > 0 {
		k.emit() // in a larger packet they might not arrive
	}
	k.signals = k.signals[:0]
}

// sendSignals puts out the waiting signals and nothing else.
func (k *KCP) sendSignals() {
	k.flushSignals(&header{conv: k.conv, wnd: k.wndUnused(), una: k.unaToSend()})
	k.emit()
}
