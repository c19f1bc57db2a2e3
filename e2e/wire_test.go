package e2e

import (
	"encoding/binary"
	"iter"
	"time"

	"github.com/arqnet/kcp/internal/admission"
)

// The segments of WIRE.md §1 and the signals of §5, written down once more: who
// changes a number on the wire changes it here too.
const (
	headerSize = 24

	cmdAck  = 82
	cmdWask = 83
	cmdWins = 84
)

// signalCode is the frg of a signal.
type signalCode uint8

const (
	sigHello   signalCode = 1
	sigInfo    signalCode = 2
	sigConfirm signalCode = 3
	sigFin     signalCode = 4
	sigClose   signalCode = 5
	sigPing    signalCode = 6
	sigCookie  signalCode = 7
	sigProbe   signalCode = 10

	signalVersion = 2 // the sn of INFO
)

const (
	timeWaitTime  = admission.TimeWait
	handshakeTime = 10 * time.Second
	handoverGrace = time.Millisecond      // for which a socket may have no reader
	roundTrip     = 20 * time.Millisecond // that of the link clean
)

// header is the fixed part of a segment.
type header struct {
	conv        uint32
	cmd, frg    uint8
	wnd         uint16
	ts, sn, una uint32
	len         uint32
}

// decodeHeader reads a header from b.
func decodeHeader(b []byte) header {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	return header{
		conv: word(0), cmd: b[4], frg: b[5], wnd: uint16(word(4) >> 16),
		ts: word(8), sn: word(12), una: word(16), len: word(20),
	}
}

// append appends h to b.
func (h header) append(b []byte) []byte {
	for _, word := range []uint32{h.conv, uint32(h.cmd) | uint32(h.frg)<<8 | uint32(h.wnd)<<16, h.ts, h.sn, h.una, h.len} {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	return b
}

// headersOf returns the headers of the segments of a packet.
func headersOf(p []byte) iter.Seq[header] {
	return func(yield func(header) bool) {
		for len(p) >= headerSize {
			h := decodeHeader(p)
			if !yield(h) {
				return
			}
			p = p[min(len(p), headerSize+int(h.len)):]
		}
	}
}

// signal is a signal with its two arguments.
type signal struct {
	code   signalCode
	sn, ts uint32
}

// bytes returns the segment of a signal of a conversation.
func (s signal) bytes(conv uint32) []byte {
	h := header{conv: conv, cmd: cmdWins, frg: uint8(s.code), wnd: 128, sn: s.sn, ts: s.ts}
	switch s.code {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		h.cmd = cmdWask // wants an answer
	}
	return h.append(nil)
}

// signal returns the signal that h carries, if it carries one.
func (h header) signal() (s signal, ok bool) {
	ok = h.frg != 0 && (h.cmd == cmdWask || h.cmd == cmdWins)
	return signal{signalCode(h.frg), h.sn, h.ts}, ok
}

// infoSignal is the INFO of an endpoint of version 2 that has PROBE, reasons of
// CLOSE, and delays of ACKs.
func infoSignal() signal { return signal{sigInfo, signalVersion, 1 | 4 | 32} }

// bytesOf returns the segment of a signal.
func bytesOf(s signal) []byte { return s.bytes(7) }

func hello(token uint32) []byte { return bytesOf(signal{sigHello, 0, token}) }

// signals returns how many signals of a kind are in a packet.
func signals(p []byte, code signalCode) (n int) {
	for h := range headersOf(p) {
		if s, ok := h.signal(); ok && s.code == code {
			n++
		}
	}
	return n
}
