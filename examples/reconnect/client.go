package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"strconv"
	"sync"

	"github.com/arqnet/kcp"
)

// client sends lines, over as many sessions as it takes.
type client struct {
	id   string // who it is for the server, in all sessions
	link *link

	mu      sync.Mutex
	first   uint64        // number of the first in waiting
	waiting []string      // lines that the server has not acknowledged, in order
	changed chan struct{} // closed, and replaced, when something is added, or leaves
}

// newClient returns a client that begins with link.run.
func newClient(id string, dial func(context.Context) (*kcp.Conn, error), log *log.Logger) *client {
	c := &client{id: id, first: 1, changed: make(chan struct{})}
	c.link = &link{dial: dial, use: c.converse, log: log, woken: make(chan struct{}, 1)}
	return c
}

// change changes the fields under the mutex, and wakes who waits.
func (c *client) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// send queues a line.
func (c *client) send(line string) {
	c.change(func() { c.waiting = append(c.waiting, line) })
}

// flush waits until the server has all lines.
func (c *client) flush(ctx context.Context) error {
	for {
		c.mu.Lock()
		n, changed := len(c.waiting), c.changed
		c.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// converse uses a session: it sends what the server does not have, and takes from it what
// it has acknowledged. What Flush says would be too little: the server's endpoint may have
// a line when the process is killed.
func (c *client) converse(_ context.Context, conn *kcp.Conn) error {
	var writing sync.WaitGroup
	writing.Go(func() { c.write(conn) })
	defer writing.Wait()
	defer conn.Abort(0, "") // ends write, too
	in := bufio.NewScanner(conn)
	for in.Scan() {
		n, err := strconv.ParseUint(in.Text(), 10, 64)
		if err != nil {
			return err
		}
		c.change(func() {
			for ; c.first <= n && len(c.waiting) > 0; c.first++ {
				c.waiting = c.waiting[1:]
			}
		})
	}
	if in.Err() != nil {
		return in.Err()
	}
	return io.EOF
}

// write sends the lines that the server does not have, until the session ends.
func (c *client) write(conn *kcp.Conn) {
	_, err := fmt.Fprintln(conn, c.id)
	for next := uint64(0); err == nil; {
		c.mu.Lock()
		next = max(next, c.first)
		i, lines, changed := int(next-c.first), c.waiting, c.changed
		c.mu.Unlock()
		if i < len(lines) {
			_, err = fmt.Fprintf(conn, "%d %s\n", next, lines[i])
			next++
			continue
		}
		select {
		case <-changed:
		case <-conn.Done():
			return
		}
	}
}
