package handshake

import (
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
)

// Packets of the handshake (WIRE.md §8.1). They are made of segments, as all
// others, but bypass the state machine and FEC. In the clear they begin with HELLO
// and INFO, or with WELCOME and INFO, and end with a CRYPTO segment, whose seal
// covers the packet. Others carry at most one CRYPTO segment. Its bytes are
// repeated until they are acknowledged.

const (
	// window is what the segments of a handshake advertise, for receivers that do
	// not speak TLS.
	window = 128
	// PacketSize is the size of the packets of a handshake, in bytes: every path
	// takes it, and a dialling end fills its packets in the clear up to it (RFC
	// 9000 §14.1).
	PacketSize = 1200
)

// Message is the content of a packet of the handshake. Signals with code 0 are
// not there.
type Message struct {
	Hello, Welcome, Info, Ping, Pong, Cookie, Reset, Abort, Alert wire.Signal

	Crypto  bool // there is a CRYPTO segment; in the clear: the packet has opened
	Offset  uint32
	Una     uint32
	Data    []byte
	Windows int // plain window updates
}

// Parse reads a packet of the handshake. ok is false if it is not well-formed, or
// has a segment of another conversation.
func Parse(packet []byte, conv uint32) (m Message, ok bool) {
	for len(packet) >= wire.HeaderSize {
		h, crypto := wire.DecodeHeader(packet), wire.IsCrypto(packet)
		payload, fits := h.Payload(packet[wire.HeaderSize:])
		if !fits || h.Conv != conv {
			return m, false
		}
		packet = packet[wire.HeaderSize+len(payload):]
		if crypto {
			if m.Crypto || uint64(h.TS) > uint64(len(payload)) {
				return m, false
			}
			m.Crypto, m.Offset, m.Una, m.Data = true, uint32(h.SN), uint32(h.Una), payload[:h.TS]
			continue
		}
		if h.Cmd == wire.CmdWins && h.Frg == 0 {
			m.Windows++
		}
		if s, ok := h.Signal(); ok {
			m.take(s)
		}
	}
	return m, true
}

// take takes a signal, the first of each kind.
func (m *Message) take(s wire.Signal) {
	var to *wire.Signal
	switch s.Code {
	case wire.Hello:
		to = &m.Hello
	case wire.Welcome:
		to = &m.Welcome
	case wire.Info:
		to = &m.Info
	case wire.Ping:
		to = &m.Ping
	case wire.Pong:
		to = &m.Pong
	case wire.Cookie:
		to = &m.Cookie
	case wire.Reset:
		to = &m.Reset
	case wire.Abort:
		to = &m.Abort
	case wire.Alert:
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
	for len(packet)-at >= wire.HeaderSize {
		h, crypto := wire.DecodeHeader(packet[at:]), wire.IsCrypto(packet[at:])
		if at += wire.HeaderSize; crypto {
			return at, true
		}
		payload, fits := h.Payload(packet[at:])
		if !fits {
			return at, false
		}
		at += len(payload)
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
	wire.PutPayload(packet[at-wire.HeaderSize:], packet[at:]) // which is there
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
