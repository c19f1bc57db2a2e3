package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// client is a player's end. A program with one session needs no group: it has a
// goroutine for chat, and one for the world.
type client struct {
	conn *kcp.Conn
	chat *kcp.Stream
	seq  uint32

	mu       sync.Mutex // guards the fields below
	lines    []string   // of chat, newest last
	world    world      // the newest
	everSeen map[uint16]bool
	worlds   int
}

// dial opens a session.
func dial(ctx context.Context, addr string) (*kcp.Conn, error) {
	d := kcp.Dialer{Config: config()}
	conn, err := d.DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, err
	}
	return conn.(*kcp.Conn), nil
}

// join opens the stream for chat, and gives the name.
func join(ctx context.Context, conn *kcp.Conn, name string) (*client, error) {
	chat, err := conn.OpenStream(ctx, chatOptions)
	if err == nil {
		err = chat.WriteMessage([]byte(name[:min(len(name), maxName)]))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &client{conn: conn, chat: chat, everSeen: make(map[uint16]bool)}, nil
}

// say sends a line of chat.
func (c *client) say(line string) error {
	return c.chat.WriteMessage([]byte(line[:min(len(line), maxChat)]))
}

// maxLines is how many lines of chat are kept.
const maxLines = 1000

// readChat takes chat until the session ends. An end in order is io.EOF.
func (c *client) readChat() error {
	b := make([]byte, 1024)
	for {
		n, err := c.chat.ReadMessage(b)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.lines = append(c.lines[max(0, len(c.lines)-maxLines+1):], string(b[:n]))
		c.mu.Unlock()
	}
}

// readWorlds takes worlds until the session ends.
func (c *client) readWorlds() {
	s, err := c.conn.AcceptStream(context.Background())
	if err != nil {
		return // readChat has the reason
	}
	b := make([]byte, maxWorld)
	for {
		n, err := s.ReadMessage(b)
		if err != nil {
			return
		}
		if w, ok := parseWorld(b[:n]); ok {
			c.show(w)
		}
	}
}

// show takes a world, unless a newer one has come before.
func (c *client) show(w world) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if int32(w.tick-c.world.tick) < 0 {
		return
	}
	c.world = w
	for id := range w.players {
		c.everSeen[id] = true
	}
	c.worlds++
}

// moveTo sends the player's position.
func (c *client) moveTo(p position) error {
	c.seq++
	var b [positionSize]byte
	return c.conn.SendDatagram(appendPosition(b[:0], c.seq, p))
}

// walk returns the next position of one that walks in a direction, and turns
// back at the border.
func walk(p position, dx, dy int) (position, int, int) {
	x, y := int(p.x)+dx, int(p.y)+dy
	if x < 0 || x >= width {
		x, dx = int(p.x), -dx
	}
	if y < 0 || y >= height {
		y, dy = int(p.y), -dy
	}
	return position{uint16(x), uint16(y)}, dx, dy
}

// play joins a server and shows what it sees until ctx is done, or the session
// or the input ends.
func play(ctx context.Context, s settings, in io.Reader, out io.Writer) error {
	conn, err := dial(ctx, s.addr)
	if err != nil {
		return err
	}
	c, err := join(ctx, conn, s.name)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go c.readWorlds()
	go func() { ended <- c.readChat() }()
	typed := make(chan string)
	go readLines(in, typed)
	at, dx, dy := position{width / 2, height / 2}, 1, 0
	frames := time.NewTicker(time.Second / 15)
	defer frames.Stop()
	for {
		select {
		case <-frames.C:
			at, dx, dy = walk(at, dx, dy)
			if err := c.moveTo(at); err != nil {
				return err
			}
			if _, err := io.WriteString(out, c.frame()); err != nil {
				return err
			}
		case line, more := <-typed:
			switch {
			case !more:
				return c.conn.Close()
			case line == "w":
				dx, dy = 0, -1
			case line == "a":
				dx, dy = -1, 0
			case line == "s":
				dx, dy = 0, 1
			case line == "d":
				dx, dy = 1, 0
			default:
				if err := c.say(line); err != nil {
					return err
				}
			}
		case err := <-ended:
			if err == io.EOF {
				fmt.Fprintln(out, "the server has closed")
				return nil
			}
			return err
		case <-ctx.Done():
			return c.conn.Close()
		}
	}
}

// readLines passes on the lines of the input, without empty ones.
func readLines(in io.Reader, lines chan<- string) {
	defer close(lines)
	for scan := bufio.NewScanner(in); scan.Scan(); {
		if text := strings.TrimSpace(scan.Text()); text != "" {
			lines <- text
		}
	}
}

// frame returns what the terminal is to show: the field with the trails, and the last
// lines of chat.
func (c *client) frame() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	field := make([][]byte, height)
	for y := range field {
		field[y] = []byte(strings.Repeat(" ", width))
		for x := range width {
			if c.world.trail[y*width+x] != 0 {
				field[y][x] = '.'
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.world.players)) {
		if p := c.world.players[id]; p.x < width && p.y < height {
			field[p.y][p.x] = "0123456789abcdefghijklmnopqrstuvwxyz"[id%36]
		}
	}
	var b strings.Builder
	b.WriteString("\x1b[H\x1b[J") // from the top left corner, cleared
	border := "+" + strings.Repeat("-", width) + "+\n"
	b.WriteString(border)
	for _, row := range field {
		fmt.Fprintf(&b, "|%s|\n", row)
	}
	b.WriteString(border)
	fmt.Fprintf(&b, "tick %d, players: %d; w a s d and Enter to turn, or a line of chat\n", c.world.tick, len(c.world.players))
	for _, line := range c.lines[max(0, len(c.lines)-5):] {
		fmt.Fprintln(&b, printable(line))
	}
	return b.String()
}

// printable replaces what could steer the terminal, or begin another line.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, line)
}
