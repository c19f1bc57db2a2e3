package kcp

import "github.com/arqnet/kcp/internal/serial"

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
	h.frg, h.sn, h.ts, h.len = uint8(s.code), serial.Number(s.sn), serial.Number(s.ts), 0
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

// String returns the name of the signal in WIRE.md §5.
func (c signalCode) String() string {
	if c == sigHello|sigAnswer {
		return "WELCOME"
	}
	names := [...]string{
		sigHello: "HELLO", sigInfo: "INFO", sigConfirm: "CONFIRM", sigFin: "FIN", sigClose: "CLOSE", sigPing: "PING",
		sigCookie: "COOKIE", sigReset: "RESET", sigAbort: "ABORT", sigProbe: "PROBE", sigToken: "TOKEN",
		sigCrypto: "CRYPTO", sigAlert: "ALERT", sigResetKey: "RESETKEY", sigTiebreak: "TIEBREAKER", sigCount: "COUNT",
	}
	n := c &^ sigAnswer
	switch {
	case int(n) >= len(names) || names[n] == "":
		return "unknown signal"
	case c&sigAnswer != 0:
		return "answer to " + names[n]
	}
	return names[n]
}

// signalQueue is the signals that leave with the next flush; nil: none. NextFlush does
// not consider them.
type signalQueue []signal

// add appends signals.
func (q *signalQueue) add(s ...signal) { *q = append(*q, s...) }

// addOnce appends s unless it equals the last signal, or limit signals wait.
func (q *signalQueue) addOnce(s signal, limit int) {
	if len(*q) < limit && (len(*q) == 0 || q.last() != s) {
		q.add(s)
	}
}

// last returns the last signal; the zero signal if there is none.
func (q *signalQueue) last() signal {
	if n := len(*q); n > 0 {
		return (*q)[n-1]
	}
	return signal{}
}

// take takes s back if it is the last signal.
func (q *signalQueue) take(s signal) {
	if q.last() == s {
		*q = (*q)[:len(*q)-1]
	}
}

// drop drops all that wait.
func (q *signalQueue) drop() { *q = nil }

// replace puts signals in place of all that wait.
func (q *signalQueue) replace(s ...signal) { *q = append((*q)[:0], s...) }
