package main

import "encoding/binary"

// Messages are text. The first of a client is its name, and the others are
// chat. Those of the server are lines to show.
//
// A datagram of a client is its position: a sequence number, x and y. One of the
// server is a snapshot, or a part of it: the tick, and for each player its
// number, x and y.

// The field, in steps.
const (
	width  = 60
	height = 18
)

// position is where a player is.
type position struct{ x, y uint16 }

const (
	positionSize = 4 + 2 + 2
	playerSize   = 2 + 2 + 2
	// snapshotPlayers is how many players fit into a datagram on any path.
	snapshotPlayers = 180
	maxChat         = 200 // bytes of a line
	maxName         = 20
)

func appendPosition(b []byte, seq uint32, p position) []byte {
	b = binary.LittleEndian.AppendUint32(b, seq)
	b = binary.LittleEndian.AppendUint16(b, p.x)
	return binary.LittleEndian.AppendUint16(b, p.y)
}

// parsePosition reports false for what is no position on the field.
func parsePosition(b []byte) (seq uint32, p position, ok bool) {
	if len(b) != positionSize {
		return 0, p, false
	}
	p = position{binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])}
	return binary.LittleEndian.Uint32(b), p, p.x < width && p.y < height
}

func appendPlayer(b []byte, id uint16, p position) []byte {
	b = binary.LittleEndian.AppendUint16(b, id)
	b = binary.LittleEndian.AppendUint16(b, p.x)
	return binary.LittleEndian.AppendUint16(b, p.y)
}

// parseSnapshot calls see for each player in a snapshot, and returns its tick.
func parseSnapshot(b []byte, see func(id uint16, p position)) (tick uint32, ok bool) {
	if len(b) < 4 || (len(b)-4)%playerSize != 0 {
		return 0, false
	}
	tick = binary.LittleEndian.Uint32(b)
	for b = b[4:]; len(b) > 0; b = b[playerSize:] {
		see(binary.LittleEndian.Uint16(b), position{binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint16(b[4:])})
	}
	return tick, true
}
