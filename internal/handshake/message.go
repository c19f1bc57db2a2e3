package handshake

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/protect"
)

// Packets of the handshake (WIRE.md §8.1). They are made of segments, as all
// others, but bypass the state machine and FEC. In the clear they begin with HELLO
// and INFO, or with WELCOME and INFO, and end with a CRYPTO segment, whose seal
// covers the packet. Others carry at most one CRYPTO segment. Its bytes are
// repeated until they are acknowledged.

// Signal is a signal with its two arguments (WIRE.md §5).
type Signal struct {
	Code   uint8
	SN, TS uint32
}

// Codes of signals.
const (
	CodeHello   = 1
	CodeInfo    = 2
	CodeConfirm = 3
	CodeFin     = 4
	CodeClose   = 5
	CodePing    = 6
	CodeCookie  = 7
	CodeReset   = 8
	CodeAbort   = 9
	CodeProbe   = 10
	CodeToken   = 11
	CodeCrypto  = 12
	CodeAlert   = 13
	CodeTie     = 15   // TIEBREAKER
	CodeAnswer  = 0x80 // set in the code of an answer
	CodeWelcome = CodeHello | CodeAnswer
	CodePong    = CodePing | CodeAnswer

	// Asking has the bit of each signal that wants an answer.
	Asking = 1<<CodeHello | 1<<CodeConfirm | 1<<CodeFin | 1<<CodeClose | 1<<CodePing | 1<<CodeProbe
)

const (
	// SegmentSize is the size of a segment without payload, in bytes.
	SegmentSize = 24

	cmdWask = 83 // of signals that are answered
	cmdWins = 84 // of others

	// window is what the segments of a handshake advertise, for receivers that do
	// not speak TLS.
	window = 128
	// PacketSize is the size of the packets of a handshake, in bytes: every path
	// takes it, and a dialling end fills its packets in the clear up to it (RFC
	// 9000 §14.1).
	PacketSize = 1200
)

// Answer returns the signal that acknowledges s.
func (s Signal) Answer() Signal { return Signal{s.Code | CodeAnswer, s.SN, s.TS} }

// Tokenless reports whether s should show the token of its sender, and does not: no end
// draws 0. Such a signal counts for nothing.
func (s Signal) Tokenless() bool {
	return s.Code == CodeHello && s.TS == 0 || s.Code == CodeWelcome && s.SN == 0
}

// Segment is the header of a segment (WIRE.md §1).
type Segment struct {
	Conv        uint32
	Cmd         uint8
	Code        uint8 // of a signal
	Window      uint16
	TS, SN, Una uint32
	Len         uint32
}

// DecodeSegment reads a header from b, which has at least SegmentSize bytes.
func DecodeSegment(b []byte) Segment {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	return Segment{Conv: word(0), Cmd: b[4], Code: b[5], Window: binary.LittleEndian.Uint16(b[6:]), TS: word(8), SN: word(12), Una: word(16), Len: word(20)}
}

// Put writes s to b.
func (s Segment) Put(b []byte) {
	binary.LittleEndian.PutUint32(b, s.Conv)
	b[4], b[5] = s.Cmd, s.Code
	binary.LittleEndian.PutUint16(b[6:], s.Window)
	for i, v := range []uint32{s.TS, s.SN, s.Una, s.Len} {
		binary.LittleEndian.PutUint32(b[8+4*i:], v)
	}
}

// put writes s to b as a segment of a conversation.
func (s Signal) put(conv uint32, b []byte) {
	cmd := uint8(cmdWins)
	if s.Code == CodeHello {
		cmd = cmdWask
	}
	Segment{Conv: conv, Cmd: cmd, Code: s.Code, Window: window, SN: s.SN, TS: s.TS}.Put(b)
}

// isCrypto reports whether s is a CRYPTO segment.
func (s *Segment) isCrypto() bool { return s.Cmd == cmdWins && s.Code == CodeCrypto }

// Message is the content of a packet of the handshake. Signals with code 0 are
// not there.
type Message struct {
	Hello, Welcome, Info, Ping, Pong, Cookie, Reset, Abort, Alert Signal

	Crypto  bool // there is a CRYPTO segment; in the clear: the packet has opened
	Offset  uint32
	Una     uint32
	Data    []byte
	Windows int // plain window updates
}

// Parse reads a packet of the handshake. ok is false if it is not well-formed, or
// has a segment of another conversation.
func Parse(packet []byte, conv uint32) (m Message, ok bool) {
	for len(packet) >= SegmentSize {
		s := DecodeSegment(packet)
		packet = packet[SegmentSize:]
		if uint64(s.Len) > uint64(len(packet)) || s.Conv != conv {
			return m, false
		}
		payload := packet[:s.Len]
		packet = packet[s.Len:]
		if s.isCrypto() {
			if m.Crypto || uint64(s.TS) > uint64(len(payload)) {
				return m, false
			}
			m.Crypto, m.Offset, m.Una, m.Data = true, s.SN, s.Una, payload[:s.TS]
			continue
		}
		if s.Cmd == cmdWins && s.Code == 0 {
			m.Windows++
		}
		if s.Len == 0 && (s.Cmd == cmdWask || s.Cmd == cmdWins) {
			m.take(Signal{s.Code, s.SN, s.TS})
		}
	}
	return m, true
}

// take takes a signal, the first of each kind.
func (m *Message) take(s Signal) {
	var to *Signal
	switch s.Code {
	case CodeHello:
		to = &m.Hello
	case CodeWelcome:
		to = &m.Welcome
	case CodeInfo:
		to = &m.Info
	case CodePing:
		to = &m.Ping
	case CodePong:
		to = &m.Pong
	case CodeCookie:
		to = &m.Cookie
	case CodeReset:
		to = &m.Reset
	case CodeAbort:
		to = &m.Abort
	case CodeAlert:
		to = &m.Alert
	default:
		return
	}
	if to.Code == 0 && !s.Tokenless() {
		*to = s
	}
}

// InitialAt returns where the sealed content of a packet in the clear begins. It
// reports false if the packet has no CRYPTO segment.
func InitialAt(packet []byte) (at int, ok bool) {
	for len(packet)-at >= SegmentSize {
		s := DecodeSegment(packet[at:])
		at += SegmentSize
		switch {
		case s.isCrypto():
			return at, true
		case uint64(s.Len) > uint64(len(packet)-at):
			return at, false
		}
		at += int(s.Len)
	}
	return at, false
}

// OpenInitial opens a packet in the clear, in place, and returns it with its
// CRYPTO segment as in other packets. One without that stays as it is.
func OpenInitial(k *protect.Initial, packet []byte) ([]byte, error) {
	at, ok := InitialAt(packet)
	if !ok {
		return packet, nil
	}
	packet, err := k.Open(packet, at)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(packet[at-4:], uint32(len(packet)-at))
	return packet, nil
}

// maxClientHello is the longest ClientHello that a server reads, in bytes.
const maxClientHello = 16 << 10

// wholeClientHello reports whether b begins with a whole ClientHello. ok is
// false if it cannot be one, or is too long.
func wholeClientHello(b []byte) (whole, ok bool) {
	const head = messageHead
	if len(b) == 0 {
		return false, true
	}
	if b[0] != typeClientHello {
		return false, false
	}
	if len(b) < head {
		return false, true
	}
	n := int(b[1])<<16 | int(b[2])<<8 | int(b[3])
	return len(b) >= head+n, n <= maxClientHello-head
}
