package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// client is a player's end. A program with one session needs no group: it has a
// goroutine for messages, and one for datagrams.
type client struct {
	conn *kcp.Conn
	seq  uint32

	mu        sync.Mutex // guards the fields below
	lines     []string   // of chat, newest last
	tick      uint32
	seen      map[uint16]position // in the newest snapshot
	everSeen  map[uint16]bool
	snapshots int
}

// join opens a session and gives the name.
func join(ctx context.Context, addr, name string) (*client, error) {
	d := kcp.Dialer{Config: config()}
	dialled, err := d.DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, err
	}
	conn := dialled.(*kcp.Conn)
	if err := conn.WriteMessage([]byte(name[:min(len(name), maxName)])); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &client{conn: conn, seen: make(map[uint16]position), everSeen: make(map[uint16]bool)}, nil
}

// readMessages takes chat until the session ends. An end in order is io.EOF.
func (c *client) readMessages() error {
	b := make([]byte, 1024)
	for {
		n, err := c.conn.ReadMessage(b)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.lines = append(c.lines, string(b[:n]))
		c.mu.Unlock()
	}
}

// readSnapshots takes snapshots until the session ends.
func (c *client) readSnapshots() {
	for {
		b, err := c.conn.ReceiveDatagram(context.Background())
		if err != nil {
			return // readMessages has the reason
		}
		c.snapshot(b)
	}
}

// snapshot takes a snapshot, unless a newer one has come before.
func (c *client) snapshot(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tick, ok := parseSnapshot(b, func(uint16, position) {})
	if !ok || int32(tick-c.tick) < 0 {
		return
	}
	if tick != c.tick {
		clear(c.seen)
		c.tick = tick
	}
	_, _ = parseSnapshot(b, func(id uint16, p position) {
		c.seen[id], c.everSeen[id] = p, true
	})
	c.snapshots++
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
	c, err := join(ctx, s.addr, s.name)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go c.readSnapshots()
	go func() { ended <- c.readMessages() }()
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
				if err := c.conn.WriteMessage([]byte(line[:min(len(line), maxChat)])); err != nil {
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

// frame returns what the terminal is to show: the field, and the last lines of
// chat.
func (c *client) frame() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	field := make([][]byte, height)
	for y := range field {
		field[y] = []byte(strings.Repeat(" ", width))
	}
	for _, id := range slices.Sorted(maps.Keys(c.seen)) {
		if p := c.seen[id]; p.x < width && p.y < height {
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
	fmt.Fprintf(&b, "tick %d, %d players; w a s d and Enter to turn, or a line of chat\n", c.tick, len(c.seen))
	for _, line := range c.lines[max(0, len(c.lines)-5):] {
		fmt.Fprintln(&b, printable(line))
	}
	return b.String()
}

// printable replaces what could steer the terminal.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, line)
}
