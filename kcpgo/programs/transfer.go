package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"
)

// A transfer goes both ways at once over one connection. Each end sends as many
// bytes as was agreed, made from a seed, and then the SHA-256 of what it has
// received, which the other compares with what it has sent. A connection begins
// with a byte each way, by which the one that dials knows that there is a way.

const (
	hello     = 'h' // only a question
	begin     = 'b' // data follows
	seedUp    = 1
	seedDown  = 2
	chunkSize = 32 << 10
)

// sink is where the data goes: a TCP server that runs until it is closed.
type sink struct {
	net.Listener
	size int
}

func newSink(size int) (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{l, size}
	go s.serve()
	return s, nil
}

func (s *sink) serve() {
	for {
		c, err := s.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var b [1]byte
			if _, err := io.ReadFull(c, b[:]); err != nil {
				return
			}
			if _, err := c.Write(b[:]); err != nil {
				return
			}
			if b[0] == begin {
				_ = exchange(c, s.size, seedDown, seedUp) // the other end reports it
			}
			// The other end closes first. kcp-go's Close drops what was just
			// written, so a tunnel with it may lose the end of a connection that
			// is closed here.
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// send waits until there is a way to the sink, and transfers over it.
func send(ctx context.Context, a addresses, socks bool, size int) error {
	for {
		c, err := connect(ctx, a, socks, hello)
		if err == nil {
			c.Close()
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot reach the target: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
	c, err := connect(ctx, a, socks, begin)
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	return exchange(c, size, seedUp, seedDown)
}

// connect opens a connection through the tunnel and says what it is for.
func connect(ctx context.Context, a addresses, socks bool, what byte) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", a.entry)
	if err != nil {
		return nil, err
	}
	if err := greet(c, a, socks, what); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// greet has a byte come back from the sink.
func greet(c net.Conn, a addresses, socks bool, what byte) error {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if socks {
		if err := socksConnect(c, a.target); err != nil {
			return err
		}
	}
	b := []byte{what}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b)
	return err
}

// socksConnect asks a SOCKS5 server for an IPv4 address (RFC 1928 §3, §4).
func socksConnect(c net.Conn, target string) error {
	ap, err := netip.ParseAddrPort(target)
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte{5, 1, 0}); err != nil {
		return err
	}
	var method [2]byte
	if _, err := io.ReadFull(c, method[:]); err != nil {
		return err
	}
	if method != [2]byte{5, 0} {
		return fmt.Errorf("SOCKS5 answers %v", method)
	}
	request := append([]byte{5, 1, 0, 1}, ap.Addr().AsSlice()...)
	request = binary.BigEndian.AppendUint16(request, ap.Port())
	if _, err := c.Write(request); err != nil {
		return err
	}
	var reply [10]byte // with an IPv4 address, as all of the judges answer
	if _, err := io.ReadFull(c, reply[:]); err != nil {
		return err
	}
	if reply[1] != 0 {
		return fmt.Errorf("SOCKS5 refuses: %d", reply[1])
	}
	return nil
}

// exchange sends size bytes made from a seed, and expects the bytes of another.
func exchange(c io.ReadWriter, size int, out, in uint64) error {
	sent := make(chan error, 1)
	digest := sha256.New()
	go func() { sent <- sendStream(io.MultiWriter(c, digest), size, out) }()
	received := sha256.New()
	if n, err := io.CopyN(received, c, int64(size)); err != nil {
		return fmt.Errorf("received %d of %d bytes: %w", n, size, err)
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	want := sha256.New()
	if err := sendStream(want, size, in); err != nil {
		return err
	}
	if !bytes.Equal(received.Sum(nil), want.Sum(nil)) {
		return errors.New("what was received is not what was sent")
	}
	if _, err := c.Write(received.Sum(nil)); err != nil {
		return err
	}
	confirmed := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, confirmed); err != nil {
		return fmt.Errorf("no confirmation: %w", err)
	}
	if !bytes.Equal(confirmed, digest.Sum(nil)) {
		return errors.New("the other end has received something else")
	}
	return nil
}

// sendStream writes size bytes made from seed, in writes of many sizes.
func sendStream(w io.Writer, size int, seed uint64) error {
	luck := rand.New(rand.NewPCG(seed, 0))
	content := rand.NewChaCha8([32]byte{byte(seed)})
	buf := make([]byte, chunkSize)
	for size > 0 {
		b := buf[:min(1+luck.IntN(chunkSize), size)]
		_, _ = content.Read(b) // cannot fail
		if _, err := w.Write(b); err != nil {
			return err
		}
		size -= len(b)
	}
	return nil
}
