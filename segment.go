package kcp

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/serial"
)

// Segment header layout and commands: WIRE.md §1 and, for PIECE, §5.6.
const (
	headerSize = 24

	cmdPush = 81 // data
	cmdAck  = 82 // acknowledges one segment
	cmdWask = 83 // asks for the peer's window
	cmdWins = 84 // advertises the sender's window

	cmdPiece = 85 // part of a data segment

	cmdStream      = 86 // a segment of a stream
	cmdStreamPiece = 87 // a PIECE of one
)

// maxWindow is the largest window the 16-bit wnd field can carry.
const maxWindow = 0xffff

// header is the fixed part of a segment.
type header struct {
	conv uint32
	cmd  uint8
	frg  uint8
	wnd  uint16
	ts   serial.Number
	sn   serial.Number
	una  serial.Number
	len  uint32
}

// decodeHeader reads a header from b, which holds at least headerSize bytes.
func decodeHeader(b []byte) header {
	_ = b[headerSize-1]
	return header{
		conv: binary.LittleEndian.Uint32(b),
		cmd:  b[4],
		frg:  b[5],
		wnd:  binary.LittleEndian.Uint16(b[6:]),
		ts:   serial.Number(binary.LittleEndian.Uint32(b[8:])),
		sn:   serial.Number(binary.LittleEndian.Uint32(b[12:])),
		una:  serial.Number(binary.LittleEndian.Uint32(b[16:])),
		len:  binary.LittleEndian.Uint32(b[20:]),
	}
}

// encode writes h to b, which holds at least headerSize bytes.
func (h *header) encode(b []byte) {
	_ = b[headerSize-1]
	binary.LittleEndian.PutUint32(b, h.conv)
	b[4] = h.cmd
	b[5] = h.frg
	binary.LittleEndian.PutUint16(b[6:], h.wnd)
	binary.LittleEndian.PutUint32(b[8:], uint32(h.ts))
	binary.LittleEndian.PutUint32(b[12:], uint32(h.sn))
	binary.LittleEndian.PutUint32(b[16:], uint32(h.una))
	binary.LittleEndian.PutUint32(b[20:], h.len)
}

// putPayload puts payload behind the header that b begins with, and sets its
// len.
func putPayload(b, payload []byte) {
	binary.LittleEndian.PutUint32(b[20:], uint32(len(payload)))
	copy(b[headerSize:], payload)
}

// knownCmd reports whether cmd is one of the reference's four commands.
func knownCmd(cmd uint8) bool { return cmd >= cmdPush && cmd <= cmdWins }

// payload returns the payload of h, which begins rest. It reports false if h
// claims more bytes than rest holds. The comparison is unsigned in 64 bits, so
// a len of 0xffffffff is not -1 on 32-bit systems.
func (h *header) payload(rest []byte) ([]byte, bool) {
	if uint64(h.len) > uint64(len(rest)) {
		return nil, false
	}
	return rest[:h.len], true
}

// streamCmd reports whether cmd is one of those that need a host.
func streamCmd(cmd uint8) bool { return cmd == cmdStream || cmd == cmdStreamPiece }
