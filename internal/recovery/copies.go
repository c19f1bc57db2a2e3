package recovery

import (
	"encoding/binary"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/wire"
)

// Redundancy for thin streams: packets that leave anyway carry recent small segments that
// are not acknowledged once more. To any receiver these are duplicates, which it drops.
// The next packet then makes up for a loss, instead of a retransmission a round trip
// later. What follows the lost segment, and would have to wait for it, is not delayed
// either. CopyPolicy decides how many copies packets carry. This file has their short
// form (WIRE.md §5.11).
//
// A copy in the short form has no header of its own. It rides behind the data of a
// segment, or in the payload of an ACK, and says by how much its sn differs.

const (
	// CopiesFlag in frg says that copies follow the data of a PUSH or STREAM segment.
	CopiesFlag = 0x80
	// MostCopies is how many copies a segment carries at most.
	MostCopies = 32
	// MaxCopyPayload is the largest payload of a copy, in bytes.
	MaxCopyPayload = 1<<13 - 1

	sizeSize = 2 // behind the copies that follow data: their size
	baseSize = 8 // in front of the copies in an ACK: sn and ts

	long    = 0x80 // in the second byte of a copy: a third follows
	stream  = 1    // in the third: a copy of a STREAM segment
	withFrg = 2    // in the third: frg follows
)

// Copy is a copy of a segment.
type Copy struct {
	SN     container.Serial
	Frg    uint8 // of a PUSH
	Stream bool  // of a STREAM segment, otherwise of a PUSH
	Data   []byte
}

// size returns the bytes of c in the short form.
func (c *Copy) size() int {
	n := 2 + len(c.Data)
	if c.long() {
		n++
	}
	if c.frg() {
		n++
	}
	return n
}

// Cmd returns the command of the segment.
func (c *Copy) Cmd() uint8 {
	if c.Stream {
		return wire.CmdStream
	}
	return wire.CmdPush
}

// frg reports whether frg has to be told.
func (c *Copy) frg() bool { return c.Frg != 0 && !c.Stream }

// long reports whether c needs a third byte.
func (c *Copy) long() bool { return len(c.Data) >= long || c.Stream || c.frg() }

// append appends c to b. Its sn is related to base.
func (c *Copy) append(b []byte, base container.Serial) []byte {
	b = append(b, byte(base.Diff(c.SN)), byte(len(c.Data)))
	if c.long() {
		b[len(b)-1] |= long
		third := byte(len(c.Data) >> 7 << 2)
		if c.Stream {
			third |= stream
		}
		if c.frg() {
			third |= withFrg
		}
		b = append(b, third)
	}
	if c.frg() {
		b = append(b, c.Frg)
	}
	return append(b, c.Data...)
}

// CopyCarrier is the last segment of a packet, if that can carry copies.
type CopyCarrier struct {
	at   int              // where it begins
	base container.Serial // to which the sn of copies are related
	n    int              // copies in it
	ack  bool
}

// Find makes c the last segment of a packet that this end has made, and reports whether
// it can carry copies, and carries none. next is the base of those in an ACK.
func (c *CopyCarrier) Find(packet []byte, next container.Serial) bool {
	*c = CopyCarrier{}
	for n := wire.Size(packet); c.at+n < len(packet); n = wire.Size(packet[c.at:]) {
		c.at += n
	}
	h := wire.DecodeHeader(packet[c.at:])
	c.base = h.SN
	switch h.Cmd {
	case wire.CmdAck:
		c.base, c.ack = next, true
		return h.Len == 0
	case wire.CmdPush, wire.CmdStream:
		return h.Frg&CopiesFlag == 0
	}
	return false
}

// Cost returns by how many bytes the packet grows for a copy; 0: c, which may be nil,
// cannot carry it.
func (c *CopyCarrier) Cost(of *Copy) int {
	if c == nil || c.n == MostCopies || len(of.Data) > MaxCopyPayload {
		return 0
	}
	if d := c.base.Diff(of.SN); d != int32(int8(d)) {
		return 0
	}
	n := of.size()
	switch {
	case c.n > 0:
	case c.ack:
		n += baseSize
	default:
		n += sizeSize
	}
	return n
}

// Close records that another segment follows, in the packet or the next.
func (c *CopyCarrier) Close() {
	if c != nil {
		c.n = MostCopies
	}
}

// Append appends a copy to the packet, which has room for what it costs. now is the ts
// of the packet.
func (c *CopyCarrier) Append(packet []byte, of *Copy, now container.Serial) []byte {
	h := wire.DecodeHeader(packet[c.at:])
	h.Len += uint32(c.Cost(of))
	size := 0
	switch {
	case c.ack && c.n == 0:
		packet = binary.LittleEndian.AppendUint32(packet, uint32(c.base))
		packet = binary.LittleEndian.AppendUint32(packet, uint32(now))
	case c.ack:
	case c.n == 0:
		h.Frg |= CopiesFlag
	default:
		size = int(binary.LittleEndian.Uint16(packet[len(packet)-sizeSize:]))
		packet = packet[:len(packet)-sizeSize]
	}
	h.Encode(packet[c.at:])
	c.n++
	packet = of.append(packet, c.base)
	if !c.ack {
		packet = binary.LittleEndian.AppendUint16(packet, uint16(size+of.size()))
	}
	return packet
}

// CopySection is the copies that a segment carries.
type CopySection struct {
	Base container.Serial
	TS   container.Serial
	rest []byte
}

// SplitCopies divides the payload of a segment into its data and the copies that it
// carries; ok is false if it is malformed. sn and ts are the segment's. An ACK has no
// data.
func SplitCopies(ack bool, payload []byte, sn, ts container.Serial) (data []byte, s CopySection, ok bool) {
	if ack {
		if len(payload) < baseSize {
			return nil, s, false
		}
		s.Base = container.Serial(binary.LittleEndian.Uint32(payload))
		s.TS = container.Serial(binary.LittleEndian.Uint32(payload[4:]))
		s.rest = payload[baseSize:]
		return nil, s, s.wellFormed()
	}
	at := len(payload) - sizeSize
	if at < 0 {
		return nil, s, false
	}
	rest := payload[:at]
	if at -= int(binary.LittleEndian.Uint16(payload[at:])); at < 0 {
		return nil, s, false
	}
	s = CopySection{sn, ts, rest[at:]}
	return payload[:at], s, s.wellFormed()
}

// wellFormed reports whether s consists of copies, of which there are not too many.
func (s CopySection) wellFormed() bool {
	for n := 0; len(s.rest) > 0; n++ {
		if _, ok := s.Next(); !ok || n == MostCopies {
			return false
		}
	}
	return true
}

// Next takes the next copy off s. ok is false if there is none.
func (s *CopySection) Next() (c Copy, ok bool) {
	b := s.rest
	if len(b) < 2 {
		return c, false
	}
	c.SN = s.Base - container.Serial(int8(b[0]))
	size := int(b[1])
	b = b[2:]
	if size >= long {
		if len(b) == 0 {
			return c, false
		}
		third := b[0]
		size = size&^long | int(third>>2)<<7
		c.Stream = third&stream != 0
		if b = b[1:]; third&withFrg != 0 {
			if len(b) == 0 {
				return c, false
			}
			c.Frg, b = b[0], b[1:]
		}
	}
	if size > len(b) {
		return c, false
	}
	c.Data, s.rest = b[:size], b[size:]
	return c, true
}
