package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
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
}

// put sends a file, in as many sessions as it takes, until ctx is done.
func (c *client) put(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	if err != nil {
		return err
	}
	r := &request{filepath.Base(path), size, hash.Sum(nil)}
	furthest, pause := int64(0), shortestPause
	for {
		reached, err := c.session(ctx, f, r)
		if err == nil {
			c.log.Printf("%q: complete; the server has SHA-256 %x, too", r.Name, r.Sum)
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

// session sends what the server does not have yet, and waits until it has compared the
// SHA-256. at is where in the file the session began.
func (c *client) session(ctx context.Context, f *os.File, r *request) (at int64, err error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Abort(0, "") // after Close it does nothing
	defer context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return 0, err
	}
	if err := binary.Read(conn, binary.BigEndian, &at); err != nil {
		return 0, err
	}
	if at < 0 || at > r.Size {
		return 0, fmt.Errorf("the server says that it has %d bytes", at)
	}
	c.log.Printf("%q: the server has %d of %d bytes", r.Name, at, r.Size)
	if _, err := io.Copy(conn, io.NewSectionReader(f, at, r.Size-at)); err != nil {
		return at, err
	}
	sum := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, sum); err != nil {
		return at, err
	}
	if !bytes.Equal(sum, r.Sum) {
		return at, errors.New("the server has another SHA-256")
	}
	_ = conn.Close() // the server has all, whatever becomes of the session
	return at, nil
}

// mayPass reports whether another attempt may succeed after an error. A session that
// was taken over must not dial again, or two clients take over from each other forever.
func mayPass(err error) bool {
	var closed *kcp.PeerCloseError
	var handshake *kcp.HandshakeError
	var file *fs.PathError
	if errors.As(err, &closed) {
		return closed.Code == codeBusy
	}
	return !errors.As(err, &handshake) && !errors.As(err, &file)
}
