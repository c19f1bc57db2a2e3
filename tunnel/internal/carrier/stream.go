package carrier

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/hashicorp/yamux"
)

const (
	frameBytes   = 0
	frameMessage = 1
	frameEnd     = 2

	frameHead = 4
	// maxFrame is how many bytes of a stream of bytes one frame has at most.
	maxFrame = 32 << 10
)

var frames = sync.Pool{New: func() any { return new([frameHead + maxFrame]byte) }}

// stream is a stream over TCP.
type stream struct {
	c       *TCP
	y       *yamux.Stream
	opened  bool // by this end
	packets bool // immutable once the other end, or the caller, knows the stream
	done    chan struct{}

	writing  sync.Mutex
	finished bool // the end was sent; under writing

	reading sync.Mutex // guards the fields below; locked before mu
	head    [frameHead]byte
	got     int  // bytes of head
	kind    byte // of the frame that is being read
	left    int  // bytes of it
	ended   bool // the end has arrived

	mu     sync.Mutex
	err    error // why the stream has ended; nil: it has not, or both ends in order
	over   bool  // it has ended
	halves int   // ends that were sent and read
}

// arrive waits for the first frame of a stream of the peer, and has it accepted.
func (s *stream) arrive() {
	_ = s.SetReadDeadline(time.Now().Add(closeWait))
	s.reading.Lock()
	err := s.next()
	s.packets = s.kind == frameMessage
	s.reading.Unlock()
	if err != nil && !errors.Is(err, io.EOF) {
		_ = s.Reset(0)
		return
	}
	_ = s.SetReadDeadline(time.Time{})
	select {
	case s.c.accepted <- s:
	case <-s.done:
	}
}

// ID returns the number of the stream.
func (s *stream) ID() uint32 { return s.y.StreamID() }

// Options returns what kind of stream it is.
func (s *stream) Options() kcp.StreamOptions { return kcp.StreamOptions{Unordered: s.packets} }

// Done returns a channel that is closed when the stream has ended.
func (s *stream) Done() <-chan struct{} { return s.done }

// SetReadDeadline sets the time when calls that read return.
func (s *stream) SetReadDeadline(t time.Time) error { return s.y.SetReadDeadline(t) }

// failed returns why calls fail; nil: they do not.
func (s *stream) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// cause returns what an error of yamux means.
func (s *stream) cause(err error) error {
	if own := s.failed(); own != nil {
		return own
	}
	if errors.Is(err, yamux.ErrTimeout) {
		return os.ErrDeadlineExceeded
	}
	limit := time.NewTimer(recordWait)
	defer limit.Stop()
	select { // a record, or the end of the session, says why it was cut
	case <-s.done:
	case <-limit.C:
	}
	if own := s.failed(); own != nil {
		return own
	}
	return kcp.ErrReset
}

// take reads what has arrived.
func (s *stream) take(b []byte) (int, error) {
	n, err := s.y.Read(b)
	_ = s.c.hold(-n)
	if n > 0 || err == nil {
		return n, nil
	}
	return 0, s.cause(err)
}

// next waits for a frame with something in it. The caller holds reading.
func (s *stream) next() error {
	for s.left == 0 {
		if err := s.failed(); err != nil {
			return err
		}
		if s.ended {
			return io.EOF
		}
		for s.got < frameHead {
			n, err := s.take(s.head[s.got:])
			if err != nil {
				return err
			}
			s.got += n
		}
		s.got = 0
		word := binary.BigEndian.Uint32(s.head[:])
		s.kind, s.left = byte(word>>24), int(word&0xffffff)
		switch {
		case s.kind == frameEnd && s.left == 0:
			s.ended = true
			s.half()
		case s.kind > frameMessage:
			s.left = 0
			s.c.end(errViolation)
		}
	}
	return nil
}

// Read reads bytes.
func (s *stream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, s.failed()
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	if err := s.next(); err != nil {
		return 0, err
	}
	n, err := s.take(b[:min(len(b), s.left)])
	s.left -= n
	s.c.received.Add(uint64(n))
	return n, err
}

// ReadMessage reads a message. An error in the middle of one is the end of the stream.
func (s *stream) ReadMessage(b []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if err := s.next(); err != nil {
		return 0, err
	}
	if s.left > len(b) {
		return 0, io.ErrShortBuffer
	}
	size := s.left
	for s.left > 0 {
		n, err := s.take(b[size-s.left : size])
		if err != nil {
			return 0, err
		}
		s.left -= n
	}
	s.c.received.Add(uint64(size))
	return size, nil
}

// NextMessageSize returns the size of the message that ReadMessage has waited for.
func (s *stream) NextMessageSize() (int, bool) {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.left, s.left > 0 && s.failed() == nil
}

// Write writes bytes.
func (s *stream) Write(b []byte) (n int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for len(b) > 0 {
		part := b[:min(len(b), maxFrame)]
		if err := s.frame(frameBytes, part); err != nil {
			return n, err
		}
		n, b = n+len(part), b[len(part):]
	}
	return n, nil
}

// WriteMessage writes a message. It waits for room, whatever the options say: what is
// sent waits for the connection, as all others do.
func (s *stream) WriteMessage(b []byte, _ *kcp.MessageOptions) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.frame(frameMessage, b)
}

// frame writes a frame. The caller holds writing.
func (s *stream) frame(kind byte, b []byte) error {
	if err := s.failed(); err != nil {
		return err
	}
	if s.finished {
		return net.ErrClosed
	}
	buf := frames.Get().(*[frameHead + maxFrame]byte)
	defer frames.Put(buf)
	whole := binary.BigEndian.AppendUint32(buf[:0], uint32(kind)<<24|uint32(len(b)))
	if _, err := s.y.Write(append(whole, b...)); err != nil {
		err = s.cause(err)
		_ = s.Reset(0) // what followed would be taken for the rest of the frame
		return err
	}
	s.c.sent.Add(uint64(len(b)))
	return s.failed() // a reset may have made room
}

// CloseWrite sends the end, behind what was written.
func (s *stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.frame(frameEnd, nil); err != nil {
		return err
	}
	s.finished = true
	s.half()
	return nil
}

// half notes that one direction has ended in order.
func (s *stream) half() {
	s.mu.Lock()
	s.halves++
	whole := s.halves == 2 && !s.over
	s.over = s.over || whole
	s.mu.Unlock()
	if whole {
		close(s.done)
		go s.bury()
	}
}

// Close ends both directions, and does not wait. What was written is delivered.
func (s *stream) Close() error {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over {
		return net.ErrClosed
	}
	_ = s.y.SetWriteDeadline(time.Now().Add(closeWait))
	go func() {
		if err := s.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
			_ = s.Reset(0)
		}
		s.end(net.ErrClosed)
	}()
	return nil
}

// Reset ends the stream at once, at both ends, and does not wait.
func (s *stream) Reset(code uint64) error {
	if !s.end(net.ErrClosed) {
		return net.ErrClosed
	}
	record := binary.BigEndian.AppendUint32([]byte{recordReset}, s.ID())
	record = binary.BigEndian.AppendUint64(record, code)
	s.c.mu.Lock()
	err := s.c.tellLocked(record)
	s.c.mu.Unlock()
	if err != nil {
		s.c.end(err)
	}
	return nil
}

// end ends the stream at once because of err. It reports false if it had ended before.
func (s *stream) end(err error) bool {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return false
	}
	s.over, s.err = true, err
	s.mu.Unlock()
	close(s.done)
	_ = s.y.SetDeadline(time.Unix(1, 0)) // ends calls that wait
	go s.bury()
	return true
}

// bury ends the stream of yamux, drops what still arrives, so that it is not held, and
// forgets the stream when the peer has ended it as well.
func (s *stream) bury() {
	s.writing.Lock() // nothing follows the end: yamux would drop it uncounted
	_ = s.y.Close()
	s.writing.Unlock()
	s.reading.Lock()
	defer s.reading.Unlock()
	_ = s.y.SetReadDeadline(time.Time{})
	for s.c.Err() == nil && s.drop() == nil {
	}
	s.c.forget(s)
}

// drop waits, without a buffer, and drops something of what has arrived.
func (s *stream) drop() error {
	if _, err := s.y.Read(nil); err != nil {
		return err
	}
	buf := frames.Get().(*[frameHead + maxFrame]byte)
	defer frames.Put(buf)
	n, err := s.y.Read(buf[:])
	_ = s.c.hold(-n)
	return err
}

// rawStream is the first stream: the connection itself, until it is closed.
type rawStream struct {
	Stream // nil: a hello needs no more than the methods below
	c      *TCP
	once   sync.Once
	closed chan struct{} // closed when the other streams may begin
}

func (r *rawStream) Read(b []byte) (int, error) {
	n, err := r.c.tls.Read(b)
	return n, handshakeError(err)
}

func (r *rawStream) Write(b []byte) (int, error) {
	n, err := r.c.tls.Write(b)
	return n, handshakeError(err)
}

// Close has the other streams begin.
func (r *rawStream) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}

// SetReadDeadline sets the time when Read returns.
func (r *rawStream) SetReadDeadline(t time.Time) error { return r.c.tls.SetReadDeadline(t) }
