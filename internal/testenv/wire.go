package testenv

import (
	"encoding/binary"
	"net/netip"
)

// HeaderSize is the size of a segment's header (WIRE.md §1).
const HeaderSize = 24

// Segment returns a segment of conversation 7 with a window of 128 (WIRE.md §1).
func Segment(cmd, frg uint8, ts, sn, una uint32, payload string) []byte {
	b := []byte{7, 0, 0, 0, cmd, frg, 128, 0}
	for _, field := range []uint32{ts, sn, una, uint32(len(payload))} {
		b = binary.LittleEndian.AppendUint32(b, field)
	}
	return append(b, payload...)
}

// Piece returns a PIECE, with data of a segment of size bytes from at on.
func Piece(sn uint32, frg uint8, at, size int, data string) []byte {
	prefix := binary.LittleEndian.AppendUint16(nil, uint16(at))
	prefix = binary.LittleEndian.AppendUint16(prefix, uint16(size))
	return Segment(85, frg, 0, sn, 0, string(prefix)+data)
}

// Push returns a PUSH.
func Push(sn uint32, frg uint8, payload string) []byte { return Segment(81, frg, 0, sn, 0, payload) }

// Ack returns an ACK.
func Ack(sn, ts, una uint32) []byte { return Segment(82, 0, ts, sn, una, "") }

// Concat returns a packet of segments.
func Concat(segments [][]byte) (packet []byte) {
	for _, s := range segments {
		packet = append(packet, s...)
	}
	return packet
}

// PacketOf returns a packet of segments of a conversation.
func PacketOf(conv uint32, segments ...[]byte) []byte {
	p := Concat(segments)
	for rest := p; len(rest) >= HeaderSize; {
		binary.LittleEndian.PutUint32(rest, conv)
		rest = rest[HeaderSize+int(binary.LittleEndian.Uint32(rest[20:])):]
	}
	return p
}

// FloodAddr is the i-th forged source address.
func FloodAddr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}), 1000)
}
