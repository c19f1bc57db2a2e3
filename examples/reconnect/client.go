package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"time"

	"github.com/arqnet/kcp"
)

// client sends messages, and fetches files, over as many sessions as it takes.
type client struct {
	id   [idSize]byte // who it is for the server, in all sessions
	link *link
	out  *outbox
}

// newClient returns a client that begins with run.
func newClient(id [idSize]byte, config *kcp.Config, open func() (net.PacketConn, error), resolve func(context.Context) ([]net.Addr, error), log *log.Logger) *client {
	c := &client{id: id, out: newOutbox()}
	c.link = &link{
		open: open, config: config, resolve: resolve, use: c.converse, log: log,
		changed: make(chan struct{}), woken: make(chan struct{}, 1),
	}
	return c
}

// run keeps a session until ctx is done, or an error comes that will come again.
func (c *client) run(ctx context.Context) error { return c.link.run(ctx) }

// send queues a message of at most maxMessage bytes. The server gets all of them once,
// in order.
func (c *client) send(m []byte) { c.out.add(m) }

// flush waits until the server has all messages.
func (c *client) flush(ctx context.Context) error {
	for {
		n, changed := c.out.waiting()
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

// converse uses a session: it sends what the server does not have, and takes from the
// server what it has.
func (c *client) converse(ctx context.Context, conn *kcp.Conn) error {
	if _, err := conn.Write(c.id[:]); err != nil {
		return err
	}
	var stored uint64
	if err := readNumbers(conn, &stored); err != nil {
		return err
	}
	if err := c.out.stored(stored); err != nil {
		return err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write(conn, stored)
	}()
	defer func() {
		_ = conn.Abort() // ends the other goroutine, too
		<-written
	}()
	for {
		if err := readNumbers(conn, &stored); err != nil {
			return err
		}
		if err := c.out.stored(stored); err != nil {
			return err
		}
	}
}

// write sends the messages from number next on, until the session ends.
func (c *client) write(conn *kcp.Conn, next uint64) {
	for {
		m, changed := c.out.at(next)
		if changed != nil {
			select {
			case <-changed:
				continue
			case <-conn.Done():
				return
			}
		}
		if err := writeMessage(conn, m); err != nil {
			return // the reader gets it, too
		}
		next++
	}
}

// fetch gets a file, and goes on where it was after each session that ends. f is empty,
// or has a part of the version that is given; 0: of none.
func (c *client) fetch(ctx context.Context, name string, f *os.File, version uint64) error {
	for {
		conn, err := c.link.await(ctx)
		if err != nil {
			return err
		}
		var done bool
		version, done, err = c.fetchRest(ctx, conn, name, f, version)
		if done {
			return err
		}
		select { // the session is ending, or the server has ended the stream without an answer
		case <-conn.Done():
		case <-time.After(patience):
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// refused reports whether err is of the stream alone: the session goes on, and another
// one would not help. A server that is closing refuses new streams.
func refused(err error) bool {
	var ended *kcp.StreamError
	return errors.As(err, &ended) && ended.Code != kcp.StreamRefused
}

// fetchRest gets what is missing of a file, in one session. done reports whether another
// session would not help.
func (c *client) fetchRest(ctx context.Context, conn *kcp.Conn, name string, f *os.File, version uint64) (_ uint64, done bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return version, true, err
	}
	stream, err := conn.OpenStream(ctx, nil)
	if err != nil {
		return version, ctx.Err() != nil, err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { _ = stream.Reset(0) })()
	err = errors.Join(writeMessage(stream, []byte(name)), writeNumbers(stream, version, uint64(info.Size())), stream.CloseWrite())
	if err != nil {
		return version, refused(err), err
	}
	var now, size, from uint64
	if err := readNumbers(stream, &now, &size, &from); err != nil {
		return version, refused(err), err
	}
	if err := f.Truncate(int64(from)); err != nil {
		return version, true, err
	}
	got, err := io.Copy(io.NewOffsetWriter(f, int64(from)), stream)
	switch local := (&os.PathError{}); {
	case errors.As(err, &local):
		return now, true, err
	case ctx.Err() != nil:
		return now, true, context.Cause(ctx)
	}
	if err == nil && from+uint64(got) != size {
		err = errors.New("the file has become shorter")
		return now, true, err
	}
	return now, err == nil || refused(err), err
}
