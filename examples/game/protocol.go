package main

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp"
)

// A player opens one stream, for chat. Its messages are text: the first of the
// player is its name, and the others are chat. Messages of the server are lines to show.
//
// The server opens a stream to each player, for the world: see world.append. A
// datagram of a player is its position: a sequence number, x and y.

// chatOptions are as in the stream for chat: its lines leave first, however much
// of the world waits to be sent.
var chatOptions = &kcp.StreamOptions{Priority: 1}

// worldOptions are as in the stream for the world: a new one does not wait for
// what is missing of an older one.
var worldOptions = &kcp.StreamOptions{Unordered: true}

// worldLifetime is how long a world is worth sending. Then a newer one has left.
const worldLifetime = 100 * time.Millisecond

// The field, in cells.
const (
	width  = 60
	height = 18
)

const (
	positionSize = 4 + 2 + 2
	playerSize   = 2 + 2 + 2
	worldSize    = 4 + 2*width*height // without players; more than a datagram holds
	maxWorld     = 64 << 10
	maxChat      = 200 // bytes of a line
	maxName      = 20
)

// position is where a player is.
type position struct{ x, y uint16 }

func appendPosition(b []byte, seq uint32, p position) []byte {
	b = binary.LittleEndian.AppendUint32(b, seq)
	b = binary.LittleEndian.AppendUint16(b, p.x)
	return binary.LittleEndian.AppendUint16(b, p.y)
}

// parsePosition reports false for what is not a position on the field.
func parsePosition(b []byte) (seq uint32, p position, ok bool) {
	if len(b) != positionSize {
		return 0, p, false
	}
	p = position{binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])}
	return binary.LittleEndian.Uint32(b), p, p.x < width && p.y < height
}

// world is all that players see.
type world struct {
	tick    uint32
	trail   [width * height]uint16 // which player was last on a cell; 0: none
	players map[uint16]position
}

// move puts a player on a cell.
func (w *world) move(id uint16, p position) {
	w.players[id] = p
	w.trail[int(p.y)*width+int(p.x)] = id
}

// append appends the tick, the trail of each cell, and for each player its number, x
// and y.
func (w *world) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, w.tick)
	for _, id := range w.trail {
		b = binary.LittleEndian.AppendUint16(b, id)
	}
	for id, p := range w.players {
		b = binary.LittleEndian.AppendUint16(b, id)
		b = binary.LittleEndian.AppendUint16(b, p.x)
		b = binary.LittleEndian.AppendUint16(b, p.y)
	}
	return b
}

// parseWorld reports false for what append has not made.
func parseWorld(b []byte) (w world, ok bool) {
	if len(b) < worldSize || (len(b)-worldSize)%playerSize != 0 {
		return w, false
	}
	w.tick = binary.LittleEndian.Uint32(b)
	for i := range w.trail {
		w.trail[i] = binary.LittleEndian.Uint16(b[4+2*i:])
	}
	w.players = make(map[uint16]position)
	for b = b[worldSize:]; len(b) > 0; b = b[playerSize:] {
		id := binary.LittleEndian.Uint16(b)
		w.players[id] = position{binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint16(b[4:])}
	}
	return w, true
}
