package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/arqnet/kcp"
)

// directions are what steers: x and y of a step.
var directions = map[string][2]int{"w": {0, -1}, "a": {-1, 0}, "s": {0, 1}, "d": {1, 0}}

// play joins the game, and shows what it sees until ctx is done, or the session or the
// input ends. A program with one session needs no group: it has a goroutine for each
// stream. w, a, s and d steer, and other lines of the input are chat.
func play(ctx context.Context, conn *kcp.Conn, name string, in io.Reader, out io.Writer) error {
	defer conn.Close()
	chat, err := conn.OpenStream(ctx, chatOptions)
	if err == nil {
		err = chat.WriteMessage([]byte(name), nil)
	}
	if err != nil {
		return err
	}
	worlds, lines, typed := make(chan world), make(chan string), make(chan string)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx) // ends the goroutines
	defer cancel()
	go readWorlds(ctx, conn, worlds)
	go func() { ended <- readChat(ctx, chat, lines) }()
	go readInput(ctx, in, typed)
	x, y, dx, dy := width/2, height/2, 1, 0
	var said []string
	steps := time.NewTicker(time.Second / 15)
	defer steps.Stop()
	for seq := uint32(1); ; {
		select {
		case <-steps.C:
			x, y = (x+dx+width)%width, (y+dy+height)%height
			b, _ := binary.Append(nil, binary.LittleEndian, position{seq, uint32(y*width + x)})
			if err := conn.SendDatagram(b); err != nil {
				return err
			}
			seq++
		case w := <-worlds:
			fmt.Fprint(out, frame(&w, said))
		case line := <-lines:
			said = append(said[max(0, len(said)-4):], line)
		case line, more := <-typed:
			if !more {
				return conn.Close()
			} else if to, ok := directions[line]; ok {
				dx, dy = to[0], to[1]
			} else if line != "" {
				if err := chat.WriteMessage([]byte(line[:min(len(line), maxChat)]), nil); err != nil {
					return err
				}
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				fmt.Fprintln(out, "the server has closed")
				return nil
			}
			return err
		case <-ctx.Done():
			return conn.Close()
		}
	}
}

// readWorlds takes worlds until the session ends. One that is older than another before
// does not count.
func readWorlds(ctx context.Context, conn *kcp.Conn, worlds chan<- world) {
	s, err := conn.AcceptStream(ctx)
	if err != nil {
		return // readChat has the reason
	}
	newest, b := uint32(0), make([]byte, worldSize)
	for {
		n, err := s.ReadMessage(b)
		if err != nil {
			return
		}
		var w world
		if !decode(b[:n], &w) || int32(w.Tick-newest) < 0 {
			continue
		}
		newest = w.Tick
		select {
		case worlds <- w:
		case <-ctx.Done():
			return
		}
	}
}

// readChat takes lines until the session ends. An end in order is io.EOF.
func readChat(ctx context.Context, chat *kcp.Stream, lines chan<- string) error {
	for b := make([]byte, 1024); ; {
		n, err := chat.ReadMessage(b)
		if err != nil {
			return err
		}
		select {
		case lines <- string(b[:n]):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func readInput(ctx context.Context, in io.Reader, typed chan<- string) {
	defer close(typed)
	for s := bufio.NewScanner(in); s.Scan(); {
		select {
		case typed <- strings.TrimSpace(s.Text()):
		case <-ctx.Done():
			return
		}
	}
}

// frame returns what the terminal is to show: the trails of the players, and what was
// said, in quotes, as it may steer the terminal.
func frame(w *world, said []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\x1b[H\x1b[Jtick %d; w a s d and Enter to turn, or a line of chat\n", w.Tick)
	for i, id := range w.Cells {
		b.WriteByte(" 123456789abcdefghijklmnopqrstuvwxyz"[id%36])
		if i%width == width-1 {
			b.WriteByte('\n')
		}
	}
	for _, line := range said {
		fmt.Fprintf(&b, "%q\n", line)
	}
	return b.String()
}
