package kcptun

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/tcp"
	"github.com/golang/snappy"
	"github.com/xtaci/smux"
)

// compressed is a session whose bytes are compressed: one stream of snappy's framing
// format in each direction, flushed after each write.
type compressed struct {
	net.Conn
	r *snappy.Reader

	mu sync.Mutex // for w
	w  *snappy.Writer
}

// compress returns conn, compressed.
func compress(conn net.Conn) net.Conn {
	return &compressed{Conn: conn, r: snappy.NewReader(conn), w: snappy.NewBufferedWriter(conn)}
}

func (c *compressed) Read(b []byte) (int, error) { return c.r.Read(b) }

func (c *compressed) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.w.Write(b); err != nil {
		return 0, err
	}
	if err := c.w.Flush(); err != nil {
		return 0, err
	}
	return len(b), nil
}

// nop returns the bytes of a NOP frame of smux as they travel at the begin of a session.
// Compressed, they are a stream of snappy's framing format. The session's stream begins
// behind them, as that format allows (its section 4.1).
func (c *Config) nop() []byte {
	const nop = 3
	frame := []byte{byte(c.SmuxVer), nop, 0, 0, 0, 0, 0, 0}
	if c.NoComp {
		return frame
	}
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	_, _ = w.Write(frame) // a buffer takes it
	_ = w.Close()
	return b.Bytes()
}

// buffers are buffers of connections.
var buffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// halfConn is a connection whose directions end each by themselves.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// counted counts what is written.
type counted struct {
	io.Writer
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// ending reads once more behind an end. smux 1.5.58 can report the end of a stream whose
// last bytes and end arrive while it looks: it finds no bytes first, then the end.
type ending struct{ r io.Reader }

func (e ending) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	if n == 0 && err == io.EOF {
		return e.r.Read(b)
	}
	return n, err
}

// relay carries bytes between a connection and a stream until both directions have
// ended, or one has failed. Behind the end of one direction, the other ends if no
// bytes have passed for as long as wait: a program kcptun has closed it without a word.
func relay(local halfConn, stream *smux.Stream, wait time.Duration) error {
	defer local.Close()
	defer stream.Close()
	var passed atomic.Int64
	ends := make(chan error, 2)
	carry := func(dst halfConn, src io.Reader) {
		buf := buffers.Get().(*[16 << 10]byte)
		defer buffers.Put(buf)
		// The writer and the reader hide what io.CopyBuffer would use in place of
		// the buffer.
		_, err := io.CopyBuffer(counted{dst, &passed}, ending{src}, buf[:])
		if err == nil {
			err = dst.CloseWrite()
		}
		ends <- err
	}
	go carry(stream, local)
	go carry(local, stream)
	if err := <-ends; err != nil {
		tcp.Abort(local)
		_ = stream.Close()
		<-ends
		return err
	}
	tick := time.NewTicker(wait)
	defer tick.Stop()
	last := passed.Load()
	for {
		select {
		case err := <-ends:
			if err != nil {
				tcp.Abort(local)
			}
			return err
		case <-tick.C:
		}
		if now := passed.Load(); now != last {
			last = now
			continue
		}
		tcp.Abort(local)
		_ = stream.Close()
		<-ends
		return errors.New("the other direction was idle after the end of one")
	}
}
