package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/tcp"
)

// localConn is a connection at this end: of TCP, or standard input and output.
type localConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

const (
	// smallRead is the buffer of a connection that has sent little lately, so
	// that thousands of idle ones take little memory.
	smallRead = 2 << 10
	// largeRead is the buffer of a busy one.
	largeRead = 32 << 10
)

var largeBuffers = sync.Pool{New: func() any { return new([largeRead]byte) }}

// pump copies from src to dst until src ends, which is not an error. It calls passed with
// the number of bytes that dst has taken.
func pump(dst io.Writer, src io.Reader, passed func(int)) error {
	var small [smallRead]byte
	var large *[largeRead]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		buf := small[:]
		if large != nil {
			buf = large[:]
		}
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
			passed(n)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case large == nil && n == smallRead:
			large = largeBuffers.Get().(*[largeRead]byte)
		case large != nil && n < smallRead:
			largeBuffers.Put(large)
			large = nil
		}
	}
}

// probeInterval is how often a stream is looked at while a connection does not take
// what has arrived on it.
const probeInterval = 2 * time.Second

// watchfulWriter writes to a connection until the stream that it carries is reset,
// which nobody would see if the connection takes nothing.
type watchfulWriter struct {
	local  localConn
	stream carrier.Stream
}

func (w *watchfulWriter) Write(b []byte) (n int, err error) {
	for {
		if conn, ok := w.local.(net.Conn); ok {
			_ = conn.SetWriteDeadline(time.Now().Add(probeInterval))
		}
		m, err := w.local.Write(b[n:])
		n += m
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		// Reading nothing does not wait; it does not end because all has arrived.
		if _, err := w.stream.Read(nil); err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
	}
}

// awaitOpen waits for the answer to the opening of a stream of bytes. Its errors
// are the refusal of the peer, or errors of the stream.
func awaitOpen(stream carrier.Stream) error {
	var status [1]byte
	if _, err := io.ReadFull(stream, status[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return refusal(codeMalformed)
		}
		return refused(err)
	}
	if status[0] != statusOpen {
		return refusal(codeVersion)
	}
	return nil
}

// relay carries bytes between a connection and a stream until both directions have
// ended, each by itself, or one has failed, which resets both. With awaiting, the
// peer's answer to the opening comes first in the stream. It releases the stream, and
// returns why it failed.
func (s *session) relay(local localConn, stream carrier.Stream, awaiting bool, about subject) error {
	c := s.carries(about, false)
	defer c.ended()
	tcp.EndsByReset(local, true)
	s.register(stream, local)
	defer s.release(stream)
	var failed sync.Once
	var cause error
	fail := func(err error) {
		failed.Do(func() {
			cause = refused(err)
			_ = stream.Reset(uint64(codeGone))
			tcp.Abort(local)
		})
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		err := pump(blockable{stream, &c.out, c.began}, local, c.send)
		if err == nil {
			err = stream.CloseWrite()
		}
		if err != nil {
			fail(err)
		}
	})
	err := error(nil)
	if awaiting {
		c.awaiting.Store(true)
		err = awaitOpen(stream)
		c.awaiting.Store(false)
	}
	if err == nil {
		err = pump(blockable{&watchfulWriter{local, stream}, &c.in, c.began}, stream, c.receive)
	}
	if err == nil {
		err = local.CloseWrite()
	}
	if err != nil {
		fail(err)
	}
	sending.Wait()
	_ = stream.Close()
	if cause == nil {
		tcp.EndsByReset(local, false)
	}
	_ = local.Close()
	return cause
}
