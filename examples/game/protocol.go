package main

import (
	"encoding/binary"
	"time"

	"github.com/arqnet/kcp"
)

// A player opens one stream, for chat. Its messages are text: the first of the
// player is its name, and the others are chat. Messages of the server are lines to show.
//
// The server opens a stream to each player, for the world: the tick, and who was last on
// each cell. A datagram of a player is its position: a sequence number, and the cell.

// chatOptions are of the stream for chat: its lines leave first, however much of the world
// waits to be sent.
var chatOptions = &kcp.StreamOptions{Priority: 1}

// worldOptions are of the stream for the world: a new one does not wait for what is
// missing of an older one.
var worldOptions = &kcp.StreamOptions{Unordered: true}

// worldLifetime is how long a world is worth sending. Then a newer one has left.
const worldLifetime = 100 * time.Millisecond

const (
	width, height = 60, 18 // of the field, in cells
	maxChat       = 200    // bytes of a line
	maxName       = 20
)

// world is all that players see.
type world struct {
	Tick  uint32
	Cells [width * height]uint16 // which player was last on a cell; 0: none
}

var worldSize = binary.Size(world{}) // more than a datagram holds

// position is where a player says that it is.
type position struct{ Seq, Cell uint32 }

// decode reads what binary.Append has made of v, and reports false for what has another
// size.
func decode(b []byte, v any) bool {
	n, err := binary.Decode(b, binary.LittleEndian, v)
	return err == nil && n == len(b)
}
