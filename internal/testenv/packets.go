package testenv

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
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

// SegmentOf returns the segment of a signal, of conversation 7.
func SegmentOf(s wire.Signal) []byte {
	b := make([]byte, wire.HeaderSize)
	s.Encode(wire.Header{Conv: 7, Wnd: 128}, b)
	return b
}

// SignalsOf returns the signals of a packet.
func SignalsOf(p []byte) (all []wire.Signal) {
	for len(p) >= wire.HeaderSize {
		h := wire.DecodeHeader(p)
		if s, ok := h.Signal(); ok {
			all = append(all, s)
		}
		p = p[wire.HeaderSize+int(h.Len):]
	}
	return all
}

// Outage drops everything from now on between a server, at an address with a port, and its
// clients, but for the first packets to it, up, and from it, down.
func Outage(network *netsim.Network, server string, up, down int) {
	at := netip.MustParseAddrPort(server)
	network.SetFilter(func(_, to netip.AddrPort, _ []byte) bool {
		passes := &down
		if to == at {
			passes = &up
		}
		*passes--
		return *passes >= 0
	})
}
