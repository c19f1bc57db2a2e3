// Package wire has the format of segments and signals (WIRE.md §1 and §5).
package wire

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/container"
)

// Segment header layout and commands: WIRE.md §1 and, for PIECE, §5.6.
const (
	HeaderSize = 24

	CmdPush = 81 // data
	CmdAck  = 82 // acknowledges one segment
	CmdWask = 83 // asks for the peer's window
	CmdWins = 84 // advertises the sender's window

	CmdPiece = 85 // part of a data segment

	CmdStream      = 86 // a segment of a stream
	CmdStreamPiece = 87 // a PIECE of one
)

// MaxWindow is the largest window the 16-bit wnd field can carry.
const MaxWindow = 0xffff

// Header is the fixed part of a segment.
type Header struct {
	Conv uint32
	Cmd  uint8
	Frg  uint8
	Wnd  uint16
	TS   container.Serial
	SN   container.Serial
	Una  container.Serial
	Len  uint32
}

// DecodeHeader reads a header from b, which holds at least HeaderSize bytes.
func DecodeHeader(b []byte) Header {
	_ = b[HeaderSize-1]
	return Header{
		Conv: binary.LittleEndian.Uint32(b),
		Cmd:  b[4],
		Frg:  b[5],
		Wnd:  binary.LittleEndian.Uint16(b[6:]),
		TS:   container.Serial(binary.LittleEndian.Uint32(b[8:])),
		SN:   container.Serial(binary.LittleEndian.Uint32(b[12:])),
		Una:  container.Serial(binary.LittleEndian.Uint32(b[16:])),
		Len:  binary.LittleEndian.Uint32(b[20:]),
	}
}

// Encode writes h to b, which holds at least HeaderSize bytes.
func (h *Header) Encode(b []byte) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint32(b, h.Conv)
	b[4] = h.Cmd
	b[5] = h.Frg
	binary.LittleEndian.PutUint16(b[6:], h.Wnd)
	binary.LittleEndian.PutUint32(b[8:], uint32(h.TS))
	binary.LittleEndian.PutUint32(b[12:], uint32(h.SN))
	binary.LittleEndian.PutUint32(b[16:], uint32(h.Una))
	binary.LittleEndian.PutUint32(b[20:], h.Len)
}

// PutPayload puts payload behind the header that b begins with, and sets its
// len.
func PutPayload(b, payload []byte) {
	binary.LittleEndian.PutUint32(b[20:], uint32(len(payload)))
	copy(b[HeaderSize:], payload)
}

// IsReference reports whether cmd is one of the reference's four commands.
func IsReference(cmd uint8) bool { return cmd >= CmdPush && cmd <= CmdWins }

// Payload returns the payload of h, which begins rest. It reports false if h
// claims more bytes than rest holds. The comparison is unsigned in 64 bits, so
// a len of 0xffffffff is not -1 on 32-bit systems.
func (h *Header) Payload(rest []byte) ([]byte, bool) {
	if uint64(h.Len) > uint64(len(rest)) {
		return nil, false
	}
	return rest[:h.Len], true
}

// Size returns the size of the segment that b begins with. It is of a packet that this
// end has made.
func Size(b []byte) int { return HeaderSize + int(binary.LittleEndian.Uint32(b[20:])) }

// IsStream reports whether cmd is one of those that need a host.
func IsStream(cmd uint8) bool { return cmd == CmdStream || cmd == CmdStreamPiece }
