package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

// The pause between two attempts grows from the shortest to the longest, and begins
// again when the server has got something meanwhile.
const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 30 * time.Second
)

// client sends files.
type client struct {
	dial func(ctx context.Context) (*kcp.Conn, error)
	log  *log.Logger
	bar  *progress
}

var (
	errChanged = errors.New("the file has become shorter")
	errDiffers = errors.New("the server has answered with another SHA-256")
)

// put sends a file, in as many sessions as it takes, until ctx is done.
func (c *client) put(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := c.describe(ctx, f)
	if err != nil {
		return err
	}
	c.log.Printf("%q: %d bytes, sha256 %x", r.name, r.size, r.sum)
	furthest, pause := int64(0), shortestPause
	for {
		reached, err := c.session(ctx, f, r)
		if err == nil {
			c.log.Printf("%q: complete; the server has sha256 %x, too", r.name, r.sum)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !mayPass(err) {
			return err
		}
		if reached > furthest {
			furthest, pause = reached, shortestPause
		}
		wait := pause/2 + rand.N(pause) // so that the clients of a server do not return at once
		c.log.Printf("%s; again in %s", err, wait.Round(time.Millisecond))
		pause = min(2*pause, longestPause)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// describe makes the request for a file.
func (c *client) describe(ctx context.Context, f *os.File) (*request, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a regular file", f.Name())
	}
	r := &request{size: info.Size(), name: filepath.Base(f.Name())}
	if len(r.name) > maxName {
		return nil, fmt.Errorf("the name has more than %d bytes", maxName)
	}
	var read atomic.Int64
	defer c.bar.show("reading", r.size, read.Load)()
	r.sum, err = sumOf(f, ctx.Done(), &read)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return r, err
}

// session sends what the server does not have yet, and waits until it has compared
// the SHA-256. reached is how much of the file had arrived when the session ended; 0
// if the server has not said where to begin.
func (c *client) session(ctx context.Context, f *os.File, r *request) (reached int64, err error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Abort() // after Close it does nothing
	defer context.AfterFunc(ctx, func() { _ = conn.AbortWithError(codeInterrupted, "interrupted") })()
	head := r.bytes()
	if _, err := conn.Write(head); err != nil {
		return 0, err
	}
	var at int64
	if err := binary.Read(conn, binary.BigEndian, &at); err != nil {
		return 0, err
	}
	if at < 0 || at > r.size {
		return 0, fmt.Errorf("the server says that it has %d bytes", at)
	}
	c.log.Printf("%q: the server has %d of %d bytes", r.name, at, r.size)
	// What is written may wait here for long. What counts is what the peer has.
	arrived := func() int64 { return at + max(int64(conn.Stats().BytesAcked)-int64(len(head)), 0) }
	defer func() { reached = arrived() }()
	defer c.bar.show("sending", r.size, arrived)()
	return 0, send(conn, f, r, at)
}

// send sends the file from an offset on, and waits for the answer.
func send(conn *kcp.Conn, f *os.File, r *request, at int64) error {
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.CopyN(conn, f, r.size-at); err == io.EOF {
		return errChanged
	} else if err != nil {
		return err
	}
	var sum [sha256.Size]byte
	if _, err := io.ReadFull(conn, sum[:]); err != nil {
		return err
	}
	if sum != r.sum {
		return errDiffers
	}
	_ = conn.Close() // the server has all, whatever becomes of the session
	return nil
}

// mayPass reports whether another attempt may succeed after an error. A session that
// was taken over must not dial again, or two clients take over from each other
// forever.
func mayPass(err error) bool {
	var closed *kcp.PeerCloseError
	var handshake *kcp.HandshakeError
	var file *fs.PathError
	switch {
	case errors.As(err, &closed):
		return closed.Code == codeBusy
	case errors.As(err, &handshake), errors.As(err, &file), errors.Is(err, errChanged), errors.Is(err, errDiffers):
		return false
	}
	return true // the network, or the server, is not there at the moment
}
