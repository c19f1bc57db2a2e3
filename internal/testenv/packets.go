package testenv

import (
	"encoding/binary"
	"testing"

	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
)

// ManyPushes returns a packet of n segments from sn on, whose frg are those given
// in turn; 0 if there are none.
func ManyPushes(sn uint32, n int, payload string, frgs ...uint8) (p []byte) {
	frgs = append(frgs, 0)[:max(len(frgs), 1)]
	for i := range n {
		p = append(p, Push(sn+uint32(i), frgs[i%len(frgs)], payload)...)
	}
	return p
}

// OutOfBand returns a datagram of conversation 7.
func OutOfBand(b []byte) []byte {
	p := binary.LittleEndian.AppendUint32(nil, 0xffffffff)
	p = binary.LittleEndian.AppendUint16(p, 0xf3)
	p = binary.LittleEndian.AppendUint16(p, uint16(len(b)+6))
	return append(binary.LittleEndian.AppendUint32(p, 7), b...)
}

// FECShard returns a packet in an FEC header, or parity where there is none.
func FECShard(seqid uint32, packet []byte) []byte {
	p := binary.LittleEndian.AppendUint32(nil, seqid)
	if packet == nil {
		return append(binary.LittleEndian.AppendUint16(p, 0xf2), make([]byte, 1300)...)
	}
	p = binary.LittleEndian.AppendUint16(p, 0xf1)
	p = binary.LittleEndian.AppendUint16(p, uint16(len(packet)+2))
	return append(p, packet...)
}

// WithConv sets the conversation of a packet.
func WithConv(conv uint32, p []byte) []byte {
	switch binary.LittleEndian.Uint16(p[4:]) {
	case 0xf1:
		copy(p[8:], PacketOf(conv, p[8:]))
	case 0xf3:
		binary.LittleEndian.PutUint32(p[8:], conv)
	case 0xf2:
	default:
		p = PacketOf(conv, p)
	}
	return p
}

// Sealed returns a packet as c makes it.
func Sealed(t *testing.T, c crypt.Cipher, content []byte) []byte {
	head, tail := c.Overhead()
	p := append(make([]byte, head), content...)
	p = append(p, make([]byte, tail)...)
	require.NoError(t, c.Seal(p))
	return p
}
