package kcp

import (
	"io"
	"net"
	"os"

	"github.com/arqnet/kcp/internal/session"
)

// Write queues b, and sends at once as much as may leave. It blocks while
// Config.StreamWriteBuffer bytes of the stream wait to be sent. If the stream is
// unordered or not reliable, each Write is one message. Errors are
// os.ErrDeadlineExceeded, net.ErrClosed after CloseWrite or CancelWrite, and a
// *StreamError if the peer reads no more.
func (s *Stream) Write(b []byte) (n int, err error) {
	return s.conn.write(s, session.WriteCall{B: b, Message: s.messages, Waits: true})
}

// MaxMessageSize returns the largest message that WriteMessage takes, in bytes: what fits
// into a Config.StreamReceiveBuffer like this end's, or into more, up to 16 MiB, if the
// peer has shown more. A peer with less resets the stream with StreamTooLarge.
func (s *Stream) MaxMessageSize() int {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	return s.state.MaxMessage()
}

// WriteMessage queues b as one message, which may be empty, of up to MaxMessageSize
// bytes. options nil, and what they do not set, means the stream's own. It blocks and
// fails as Write does, with an *OptionError, a *SizeError, and ErrWouldBlock itself with
// NoWait. Then nothing was queued.
func (s *Stream) WriteMessage(b []byte, options *MessageOptions) error {
	_, err := s.conn.write(s, options.call(b))
	return err
}

// cannotReadLocked returns why a call that reads fails at once; nil if it does not.
func (s *Stream) cannotReadLocked() error {
	switch {
	case s.closed, s.conn.session.State().Left:
		return net.ErrClosed
	case s.conn.reportsStreams():
		return errGrouped
	case s.readDeadline.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// readEndLocked returns why nothing more can be read, once nothing can; nil if
// more may arrive.
func (s *Stream) readEndLocked() error {
	c := s.conn
	if s.state.ReadEnd() != nil {
		c.calls.ready.Remove(turnOf, s) // no group has to tell it
	}
	return c.session.StreamReadEnd(&s.state)
}

// Read reads up to len(b) bytes, and waits until there are some. The rest of a message
// that does not fit into b is for the next Read. After all that has arrived it returns
// io.EOF if the peer has closed its side. A reset also drops what was not read. Other
// errors are os.ErrDeadlineExceeded, also if data is there, and net.ErrClosed after
// CancelRead.
func (s *Stream) Read(b []byte) (n int, err error) {
	lent := false // what arrives may be copied straight into b
	takeBack := func() int {
		lent, s.filling = false, false
		return len(b) - s.state.TakeBack()
	}
	err = s.conn.await(blocking{op: "read", stream: s}, func() (pause, error) {
		if lent {
			n = takeBack()
		}
		if n == 0 {
			if err := s.cannotReadLocked(); err != nil {
				return pause{}, err
			}
		}
		if n = s.conn.session.ReadStream(&s.state, b, n, false); n > 0 {
			return pause{}, nil
		} else if _, more := s.state.NextMessage(); more {
			return pause{}, nil // b is empty
		}
		if err := s.readEndLocked(); err != nil || len(b) == 0 {
			return pause{}, err
		}
		if !s.filling { // else another Read has lent its buffer, and comes first
			lent, s.filling = true, true
			s.state.Lend(b)
		}
		return pause{on: &s.canRead}, nil
	}, func() {
		if lent && takeBack() > 0 {
			s.conn.session.Unwind() // what is in b is lost
		}
	})
	return n, err
}

// ReadMessage reads the next message into b and returns its size in bytes, which may be
// 0. Of a message that Read has begun, it returns the rest. A stream of bytes has no
// boundaries. Errors are Read's, and io.ErrShortBuffer if b is too small; the message
// stays queued.
func (s *Stream) ReadMessage(b []byte) (n int, err error) {
	err = s.conn.await(blocking{op: "read", stream: s}, func() (pause, error) {
		if err := s.cannotReadLocked(); err != nil {
			return pause{}, err
		}
		size, ok := s.state.NextMessage()
		switch {
		case !ok:
			return pause{on: &s.canRead}, s.readEndLocked()
		case size > len(b):
			return pause{}, io.ErrShortBuffer
		}
		n = s.conn.session.ReadStream(&s.state, b, 0, true)
		return pause{}, nil
	}, nil)
	return n, err
}

// NextMessageSize is as Conn's, for the next message of the stream.
func (s *Stream) NextMessageSize() (size int, ok bool) {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	if s.cannotReadLocked() != nil {
		return 0, false
	}
	return s.state.NextMessage()
}

// TryWrite is Write without waiting, as Conn.TryWrite is. If the stream is unordered or
// not reliable, b is one message, which is queued whole or not at all.
func (s *Stream) TryWrite(b []byte) (n int, err error) {
	return s.conn.write(s, session.WriteCall{B: b, Message: s.messages})
}
