package wire

import "github.com/arqnet/kcp/internal/container"

// Signals are the messages that two endpoints of this package exchange beyond
// the reference's protocol. They are WASK and WINS segments whose frg is not 0,
// without payload except for PROBE, CLOSE and RESETKEY. Other implementations
// write 0 there and never read it, so to them signals are ordinary probes.
// WIRE.md §5 specifies signals.

// Code is the frg of a signal.
type Code uint8

const (
	Hello    Code = 1 + iota // opens a session; sn 0, ts the sender's token
	Info                     // goes with HELLO and with answers: sn version, ts capabilities
	Confirm                  // the answer to HELLO has arrived: sn the receiver's token, ts the sender's
	Fin                      // no data from sn on; ts the receiver's token
	Close                    // as FIN, and the sender does not read any more
	Ping                     // keep-alive, path validation: asks for an answer; sn and ts arbitrary
	Cookie                   // HELLO counts only together with these sn and ts
	Reset                    // no such session (stateless reset); sn and ts as in the signal it answers
	Abort                    // the session has ended; sn the receiver's token, ts 0
	Probe                    // asks whether a packet of this size arrives; sn random, ts the size
	Token                    // goes with the answer to PING: sn the receiver's token, ts the sender's
	Crypto                   // with TLS: carries bytes of the handshake (WIRE.md §8.1); no signal to the machine
	Alert                    // with TLS: the handshake has failed; sn the alert, ts the receiver's token
	ResetKey                 // with TLS: the key of the sender's stateless resets (WIRE.md §8.6); sn a time, ts a mask
	Tiebreak                 // goes with the HELLO of an end whose peer dials too (WIRE.md §5.1): a random number
	Count                    // goes with PING, or with the answer: sn packets sent, ts packets of the receiver that are missing

	// Answer is set in the code of an answer, which has sn and ts of the
	// signal it answers. The answer to HELLO has the sender's token as sn.
	Answer Code = 0x80

	Welcome = Hello | Answer
	Pong    = Ping | Answer
)

// MaxSignals is how many signals may wait for the next flush and a further
// request still be answered. A packet is dropped from the first request beyond
// that: a flood of requests costs less than as much data, and no more answers
// than fit into one packet. An honest peer's packets have a handful of requests.
const MaxSignals = 16

// Signal is a signal with its two arguments.
type Signal struct {
	Code   Code
	SN, TS uint32
}

// Answer returns the signal that acknowledges s.
func (s Signal) Answer() Signal { return Signal{s.Code | Answer, s.SN, s.TS} }

// Asks reports whether s wants an answer. It is then sent as a WASK, which a
// legacy peer answers too.
func (s Signal) Asks() bool {
	switch s.Code {
	case Hello, Confirm, Fin, Close, Ping, Probe:
		return true
	}
	return false
}

// Tokenless reports whether s should show the token of its sender, and does not: no end
// draws 0. Such a signal counts for nothing.
func (s Signal) Tokenless() bool {
	return s.Code == Hello && s.TS == 0 || s.Code == Welcome && s.SN == 0
}

// Encode writes s to b. The other fields are h's.
func (s Signal) Encode(h Header, b []byte) {
	h.Cmd = CmdWins
	if s.Asks() {
		h.Cmd = CmdWask
	}
	h.Frg, h.SN, h.TS, h.Len = uint8(s.Code), container.Serial(s.SN), container.Serial(s.TS), 0
	h.Encode(b)
}

// Signal returns the signal that h carries; ok is false if it carries none.
// Only PROBE, whose payload fills its packet, CLOSE and RESETKEY have payload.
func (h *Header) Signal() (s Signal, ok bool) {
	if h.Frg == 0 || h.Len != 0 && !Code(h.Frg).MayHavePayload() || (h.Cmd != CmdWask && h.Cmd != CmdWins) {
		return Signal{}, false
	}
	return Signal{Code(h.Frg), uint32(h.SN), uint32(h.TS)}, true
}

// IsCrypto reports whether b, which holds at least HeaderSize bytes, begins with a CRYPTO
// segment.
func IsCrypto(b []byte) bool { return b[4] == CmdWins && Code(b[5]) == Crypto }

// MayHavePayload reports whether signals with this code may have payload.
func (c Code) MayHavePayload() bool {
	return c == Probe || c == Close || c == ResetKey
}

// String returns the name of the signal in WIRE.md §5.
func (c Code) String() string {
	if c == Welcome {
		return "WELCOME"
	}
	names := [...]string{
		Hello: "HELLO", Info: "INFO", Confirm: "CONFIRM", Fin: "FIN", Close: "CLOSE", Ping: "PING",
		Cookie: "COOKIE", Reset: "RESET", Abort: "ABORT", Probe: "PROBE", Token: "TOKEN",
		Crypto: "CRYPTO", Alert: "ALERT", ResetKey: "RESETKEY", Tiebreak: "TIEBREAKER", Count: "COUNT",
	}
	n := c &^ Answer
	switch {
	case int(n) >= len(names) || names[n] == "":
		return "unknown signal"
	case c&Answer != 0:
		return "answer to " + names[n]
	}
	return names[n]
}

// Queue is the signals that leave with the next flush; nil: none. NextFlush does
// not consider them.
type Queue []Signal

// Add appends signals.
func (q *Queue) Add(s ...Signal) { *q = append(*q, s...) }

// AddOnce appends s unless it equals the last signal, or limit signals wait.
func (q *Queue) AddOnce(s Signal, limit int) {
	if len(*q) < limit && (len(*q) == 0 || q.Last() != s) {
		q.Add(s)
	}
}

// Last returns the last signal; the zero signal if there is none.
func (q *Queue) Last() Signal {
	if n := len(*q); n > 0 {
		return (*q)[n-1]
	}
	return Signal{}
}

// Take takes s back if it is the last signal.
func (q *Queue) Take(s Signal) {
	if q.Last() == s {
		*q = (*q)[:len(*q)-1]
	}
}

// Drop drops all that wait.
func (q *Queue) Drop() { *q = nil }

// Replace puts signals in place of all that wait.
func (q *Queue) Replace(s ...Signal) { *q = append((*q)[:0], s...) }
