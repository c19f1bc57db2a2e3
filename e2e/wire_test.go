package e2e

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp/internal/admission"
)

// The segments of WIRE.md §1 and the signals of §5, written down once more: who
// changes a number on the wire changes it here too.
const (
	headerSize = 24

	cmdPush  = 81
	cmdAck   = 82
	cmdWask  = 83
	cmdWins  = 84
	cmdPiece = 85
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
	sigReset   signalCode = 8
	sigAbort   signalCode = 9
	sigProbe   signalCode = 10
	sigToken   signalCode = 11
	sigCrypto  signalCode = 12
	sigAlert   signalCode = 13

	sigAnswer signalCode = 0x80

	signalVersion = 2 // the sn of INFO
)

const (
	timeWaitTime  = admission.TimeWait
	handshakeTime = 10 * time.Second
	handoverGrace = time.Millisecond // for which a socket may have no reader
)

// seq is a sequence number or a time stamp.
type seq uint32

// header is the fixed part of a segment.
type header struct {
	conv        uint32
	cmd, frg    uint8
	wnd         uint16
	ts, sn, una seq
	len         uint32
}

// decodeHeader reads a header from b.
func decodeHeader(b []byte) header {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	return header{
		conv: word(0), cmd: b[4], frg: b[5], wnd: uint16(word(4) >> 16),
		ts: seq(word(8)), sn: seq(word(12)), una: seq(word(16)), len: word(20),
	}
}

// encode writes h to b.
func (h header) encode(b []byte) {
	words := []uint32{h.conv, uint32(h.cmd) | uint32(h.frg)<<8 | uint32(h.wnd)<<16, uint32(h.ts), uint32(h.sn), uint32(h.una), h.len}
	for i, word := range words {
		binary.LittleEndian.PutUint32(b[4*i:], word)
	}
}

// signal is a signal with its two arguments.
type signal struct {
	code   signalCode
	sn, ts uint32
}

// encode writes s to b. The other fields are h's.
func (s signal) encode(h header, b []byte) {
	h.cmd = cmdWins
	switch s.code {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		h.cmd = cmdWask // wants an answer
	}
	h.frg, h.sn, h.ts = uint8(s.code), seq(s.sn), seq(s.ts)
	h.encode(b)
}

// signal returns the signal that h carries, if it carries one.
func (h header) signal() (s signal, ok bool) {
	ok = h.frg != 0 && (h.cmd == cmdWask || h.cmd == cmdWins)
	return signal{signalCode(h.frg), uint32(h.sn), uint32(h.ts)}, ok
}

// infoSignal is the INFO of an endpoint of version 2 that has PROBE, reasons of
// CLOSE, and delays of ACKs.
func infoSignal() signal { return signal{sigInfo, signalVersion, 1 | 4 | 32} }

// bytesOf returns the segment of a signal.
func bytesOf(s signal) []byte {
	b := make([]byte, headerSize)
	s.encode(header{conv: 7, wnd: 128}, b)
	return b
}

func hello(token uint32) []byte { return bytesOf(signal{sigHello, 0, token}) }

// signalsOf returns the signals of a packet.
func signalsOf(p []byte) (all []signal) {
	for len(p) >= headerSize {
		h := decodeHeader(p)
		if s, ok := h.signal(); ok {
			all = append(all, s)
		}
		p = p[headerSize+int(h.len):]
	}
	return all
}
