package kcp

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/arqnet/kcp/internal/fec"
)

// The packet pipeline: what happens to a packet between the state machine and
// the socket. Out: forward error correction, then the cipher. In: the reverse.
// Everything is done in the packet's own buffer, which has room in front for
// the headers and behind for the cipher's tag; WIRE.md §4 has the layout.

// datagramHeader is what an out-of-band datagram has between cipher and
// payload: an FEC header, and the conversation id.
const datagramHeader = fec.HeaderSize + 4

// packet is a datagram on its way out. Its buffer is one of the endpoint's, or
// that of a segment.
type packet struct {
	buf      []byte
	pooled   *buffer
	segment  *sendSegment
	datagram bool // out of band: past the state machine and FEC
}

// buffer is a packet's buffer in the endpoint's pool.
type buffer struct{ b []byte }

// overhead is the room that a packet needs around what the state machine, or a
// datagram, puts into it.
type overhead struct {
	cipherHead int
	fecHead    int // 0 without FEC
	tail       int
}

func (o overhead) head() int { return o.cipherHead + o.fecHead }

func (o overhead) total() int { return o.head() + o.tail }

// sender is the outgoing half of a session's pipeline. It is used by the one
// goroutine at a time that writes the session's packets to the socket.
type sender struct {
	encoder *fec.Encoder // nil: none
	room    overhead
}

// encode adds the error correction to p, unless that is to go plain, and returns
// the parity packets that it completes a group with; they are valid until the
// next call.
func (s *sender) encode(p *packet, now uint32, plain bool) [][]byte {
	inner := p.buf[s.room.cipherHead : len(p.buf)-s.room.tail]
	switch {
	case p.datagram:
		fec.PutOOB(inner)
	case !plain:
		return s.encoder.Encode(inner, now)
	}
	return nil
}

// opened is an incoming packet without cipher: where it belongs, and whether
// forward error correction is to look at it.
type opened struct {
	data []byte
	conv uint32
	kind openedKind
	from origin
	size int // of the UDP payload

	nonce []byte // nil with a cipher that takes no packet numbers:
	mark  uint64 // then what the replay filter knows the packet by
}

// segments returns what is for the state machine; ok is false where that is
// nothing.
func (p *opened) segments() (data []byte, ok bool) {
	switch p.kind {
	case plainPacket:
		return p.data, true
	case fecPacket:
		return p.data[fec.HeaderSize:], true
	}
	return nil, false
}

// origin is where a packet has come from.
type origin struct {
	addr netip.AddrPort
	peer net.Addr // where addr is not a UDP address
}

// netAddr returns the address as applications know it.
func (o origin) netAddr() net.Addr {
	if o.peer != nil {
		return o.peer
	}
	return net.UDPAddrFromAddrPort(o.addr)
}

type openedKind uint8

const (
	plainPacket  openedKind = iota // of the state machine
	fecPacket                      // data in an FEC header
	parityPacket                   // of no conversation: the address tells
	datagramPacket
)

// classify reads what kind of packet data is and of which conversation. It
// reports false if data is not long enough, or not as long as it claims to be.
func classify(data []byte, p *opened) bool {
	p.data = data
	if !fec.IsFEC(data) {
		if len(data) < headerSize {
			return false
		}
		p.conv = binary.LittleEndian.Uint32(data)
		return true
	}
	switch binary.LittleEndian.Uint16(data[4:]) {
	case fec.TypeParity:
		p.kind = parityPacket
		return len(data) > fec.HeaderSize
	case fec.TypeOOB:
		p.kind = datagramPacket
		if len(data) < datagramHeader || int(binary.LittleEndian.Uint16(data[6:])) != len(data)-6 {
			return false
		}
	default:
		p.kind = fecPacket
		if len(data) < fec.HeaderSize+headerSize {
			return false
		}
	}
	p.conv = binary.LittleEndian.Uint32(data[fec.HeaderSize:])
	return true
}
