package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// outcome is what a simulated player has seen.
type outcome struct {
	players int // that were in any world
	worlds  int
	lines   []string // of chat
	end     error    // of the session: io.EOF if the server has closed it
}

// demo runs a server and simulated players for some time, and says what the
// players have seen.
func demo(ctx context.Context, s settings, out io.Writer) ([]outcome, error) {
	host, _, err := net.SplitHostPort(s.addr)
	if err != nil {
		return nil, err
	}
	l, err := kcp.Listen("udp", net.JoinHostPort(host, "0"), config())
	if err != nil {
		return nil, err
	}
	running, stop := context.WithTimeout(ctx, s.duration)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- newServer(out).run(running, l) }()
	results, errs := make([]outcome, s.players), make([]error, s.players)
	var players sync.WaitGroup
	for i := range s.players {
		players.Go(func() { results[i], errs[i] = simulate(ctx, l.Addr().String(), i) })
	}
	players.Wait()
	if err := errors.Join(append(errs, <-served)...); err != nil {
		return nil, err
	}
	for i, r := range results {
		fmt.Fprintf(out, "player %d: %d worlds, %d players seen, %d lines of chat\n", i, r.worlds, r.players, len(r.lines))
	}
	return results, nil
}

// simulate plays until the server closes: it walks, and says hello.
func simulate(ctx context.Context, addr string, number int) (o outcome, err error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return o, err
	}
	c, err := join(ctx, conn, fmt.Sprint("bot ", number))
	if err != nil {
		return o, err
	}
	defer c.conn.Close()
	if err := c.say(fmt.Sprint("hello from ", number)); err != nil {
		return o, err
	}
	go c.readWorlds()
	ended := make(chan error, 1)
	go func() { ended <- c.readChat() }()
	at, dx, dy := position{uint16(number * 7 % width), uint16(number * 5 % height)}, 1, 1
	steps := time.NewTicker(time.Second / 20)
	defer steps.Stop()
	for {
		select {
		case <-steps.C:
			at, dx, dy = walk(at, dx, dy)
			_ = c.moveTo(at) // the end of the session is told by ended
		case o.end = <-ended:
			c.mu.Lock()
			defer c.mu.Unlock()
			o.players, o.worlds, o.lines = len(c.everSeen), c.worlds, c.lines
			return o, nil
		}
	}
}
