// Package fec is forward error correction in kcp-go's framing: packets in,
// packets out, with no goroutine, lock or clock of its own.
//
// Every packet is framed as
//
//	seqid 4 | type 2 | size 2 | KCP packet
//
// in little-endian, where size counts itself and the KCP packet. D data shards
// and the P parity shards computed over them make a group, with consecutive
// seqids: a seqid that leaves less than D when divided by D+P is a data shard's,
// any other a parity shard's. A parity shard has after its type the
// Reed-Solomon parity over `size | KCP packet` of its group, each shard padded
// with zeros to the longest. Any D shards of a group give back the other data
// shards.
//
// Seqids count from 0 modulo the largest multiple of D+P that 32 bits hold,
// so every group begins at a multiple of D+P, at the wrap too.
//
// An [Encoder] makes the packets of one direction of a session and a [Decoder]
// reads the other's. Neither may be used by two goroutines at once.
package fec

import (
	"encoding/binary"
	"errors"
)

// HeaderSize is the room, in bytes, that [Encoder.Encode] and [PutOOB] need in
// front of a packet.
const HeaderSize = frameSize + sizeSize

// Types of packets, the 16 bits at offset 4. A bare KCP packet has there one of
// its commands, 81 to 84, in the low byte, and so none of these.
const (
	TypeData   = 0x00f1
	TypeParity = 0x00f2
	TypeOOB    = 0x00f3 // out-of-band: outside any group
)

const (
	frameSize = 6     // seqid and type, which the parity does not cover
	sizeSize  = 2     // the size field, which it does
	convSize  = 4     // what an out-of-band packet has in front of its payload
	maxShard  = 65535 // what the size field can say, in bytes
	maxShards = 256   // data and parity shards of a group, the order of GF(2^8)
	oobSeqID  = 0xffffffff
)

// Reasons for which a packet is not accepted.
var (
	// ErrShort is a packet that ends before its header does.
	ErrShort = errors.New("fec: packet too short")
	// ErrType is a packet of none of the three types.
	ErrType = errors.New("fec: unknown packet type")
	// ErrSize is a size field that does not agree with the length of the packet.
	ErrSize = errors.New("fec: size field does not match the packet")
	// ErrSeqID is a parity shard with the seqid of an out-of-band packet, or an
	// out-of-band packet with another.
	ErrSeqID = errors.New("fec: impossible seqid")
	// ErrReplay is a parity shard that has been here before.
	ErrReplay = errors.New("fec: repeated parity shard")
	// ErrRatio is a number of data and parity shards that cannot be a group.
	ErrRatio = errors.New("fec: impossible ratio")
)

// Kind is what [Decoder.Decode] takes a packet for.
type Kind uint8

const (
	KindNone   Kind = iota // not accepted
	KindData               // data shard, holds a KCP packet
	KindParity             // parity shard, holds nothing for the session
	KindOOB                // out-of-band packet, holds a conv and a payload
)

// IsFEC reports whether packet has the header of this package, as opposed to
// being a bare KCP packet. It is false for a packet shorter than HeaderSize.
func IsFEC(packet []byte) bool {
	if len(packet) < HeaderSize {
		return false
	}
	switch packetType(packet) {
	case TypeData, TypeParity, TypeOOB:
		return true
	}
	return false
}

// PutOOB writes the header of an out-of-band packet to its first HeaderSize
// bytes, which are followed by the conv (4 bytes) and the payload. The packet
// is at most 65541 bytes long.
func PutOOB(packet []byte) {
	putHeader(packet, oobSeqID, TypeOOB)
	putSize(packet)
}

func packetSeqID(packet []byte) uint32 { return binary.LittleEndian.Uint32(packet) }
func packetType(packet []byte) uint16  { return binary.LittleEndian.Uint16(packet[4:]) }

func putHeader(packet []byte, seqid uint32, typ uint16) {
	binary.LittleEndian.PutUint32(packet, seqid)
	binary.LittleEndian.PutUint16(packet[4:], typ)
}

// putSize writes the size field. A packet that the field cannot describe is a
// mistake of the caller, which no peer could make sense of.
func putSize(packet []byte) {
	size := len(packet) - frameSize
	if size > maxShard {
		panic("fec: packet too long")
	}
	binary.LittleEndian.PutUint16(packet[frameSize:], uint16(size))
}

// sizeMatches reports whether the size field of a data or out-of-band packet,
// at least HeaderSize bytes long, says what the packet is.
func sizeMatches(packet []byte) bool {
	return int(binary.LittleEndian.Uint16(packet[frameSize:])) == len(packet)-frameSize
}
