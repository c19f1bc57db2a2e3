// Package arena is a small game: players walk about and talk. The players of a process
// are in one match. A process that was replaced goes on with its match until the last
// player has left.
//
// Messages are text. The first one of a player is its name. The server answers with
// "welcome to " and the name of the match. What the player says later goes to all players
// of the match. A datagram of a player is where it is: x and y, 2 bytes each. One of the
// server says where all are: number, x and y of each player.
package arena

import (
	"context"
	"encoding/binary"
	"errors"
	"log"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

const (
	tick       = time.Second / 20
	maxMessage = 1000
	maxShown   = 180 // players that fit into a datagram on any path
)

// Config returns the configuration of both ends. It has to be the same before and after
// an upgrade, as far as kcp.TakeOver says.
func Config() *kcp.Config {
	c := kcp.LowLatency()
	c.MessageMode = true
	return &c
}

// Match is the game of one process.
type Match struct {
	name string

	mu      sync.Mutex // guards the fields below
	players map[*kcp.Conn]*player
	last    uint16 // the number of the newest player
}

// player is a session.
type player struct {
	number uint16
	at     [4]byte // x and y, as they have come
}

// NewMatch returns a match without players.
func NewMatch(name string) *Match {
	return &Match{name: name, players: make(map[*kcp.Conn]*player)}
}

// Serve lets players in until Accept fails: the listener was closed or handed over.
// Players who are in play on.
func (m *Match) Serve(l *kcp.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go m.play(c.(*kcp.Conn))
	}
}

// play serves one player until the session ends.
func (m *Match) play(c *kcp.Conn) {
	defer c.Close()
	b := make([]byte, maxMessage)
	n, err := c.ReadMessage(b)
	if err != nil {
		return
	}
	name := string(b[:n])
	if err := c.WriteMessage([]byte("welcome to " + m.name)); err != nil {
		return
	}
	m.enter(c)
	defer m.leave(c)
	left := make(chan struct{})
	defer close(left)
	go m.show(c, left)
	go m.follow(c)
	for {
		n, err := c.ReadMessage(b)
		if err != nil {
			return
		}
		m.say(name + ": " + string(b[:n]))
	}
}

func (m *Match) enter(c *kcp.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.players[c] = &player{number: m.last}
}

func (m *Match) leave(c *kcp.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.players, c)
}

// say sends a line to all players. One who has fallen far behind has to leave.
func (m *Match) say(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.players {
		if err := c.TryWriteMessage([]byte(line)); errors.Is(err, kcp.ErrWouldBlock) {
			log.Printf("player at %v does not read", c.RemoteAddr())
			go c.Abort()
		}
	}
}

// follow takes the positions that a player sends, until the session ends.
func (m *Match) follow(c *kcp.Conn) {
	for {
		b, err := c.ReceiveDatagram(context.Background())
		if err != nil {
			return
		}
		m.mu.Lock()
		if p := m.players[c]; p != nil && len(b) == len(p.at) {
			copy(p.at[:], b)
		}
		m.mu.Unlock()
	}
}

// show sends a player where all are, until it has left.
func (m *Match) show(c *kcp.Conn, left <-chan struct{}) {
	next := time.NewTicker(tick)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			_ = c.SendDatagram(m.snapshot()) // if it fails, the session ends elsewhere
		case <-left:
			return
		}
	}
}

func (m *Match) snapshot() (b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shown := 0
	for _, p := range m.players {
		if shown++; shown > maxShown {
			break
		}
		b = binary.LittleEndian.AppendUint16(b, p.number)
		b = append(b, p.at[:]...)
	}
	return b
}
