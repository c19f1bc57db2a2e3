package kcp

import (
	"io"
	"net"
	"os"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/streams"
)

// cannotWriteLocked returns why nothing may be written now; nil if it may.
func (s *Stream) cannotWriteLocked() error {
	err := s.writeEndLocked()
	if err != net.ErrClosed && s.writeDeadline.expired() {
		return os.ErrDeadlineExceeded
	}
	return err
}

// writeEndLocked returns why nothing more may be written; nil if it may.
func (s *Stream) writeEndLocked() error {
	c, err := s.conn, s.state.CannotWrite()
	switch {
	case s.closed, c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case err != nil:
		return err
	case c.closing.Read == closing.ReadClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	}
	return nil
}

// Write queues b, and sends at once as much as may leave. It blocks while
// Config.StreamWriteBuffer bytes of the stream wait to be sent. If the stream is
// unordered or not reliable, each Write is one message, as with WriteMessage. Errors are
// os.ErrDeadlineExceeded when the write deadline has passed, net.ErrClosed after Close,
// CloseWrite, CancelWrite or Reset, a *StreamError if the stream was reset or the peer
// reads no more, ErrPeerClosed when the peer has closed the session, and the error with
// which the session ended.
func (s *Stream) Write(b []byte) (n int, err error) {
	return s.conn.write(s, writeCall{b: b, message: s.messages, waits: true})
}

// roomLocked is Room of the stream, for which messages whose lifetime is over make
// room.
func (s *Stream) roomLocked(n int) (room int, half streams.Half) {
	if room, half = s.state.Room(n); room <= 0 {
		s.conn.machineTimeLocked()
		s.state.Purge()
		room, half = s.state.Room(n)
	}
	return room, half
}

// MaxMessageSize returns the largest message that WriteMessage and SendMessage take, in
// bytes: what fits into a Config.StreamReceiveBuffer as that of this end, or into more if
// the peer has shown in this session that it has more, which it does once it reads. That
// is believed up to 8 MiB, or StreamReceiveBuffer or StreamWriteBuffer of this end. A
// peer with a smaller one resets the stream with StreamTooLarge. It may change with the
// path MTU: up to 128 bytes of the buffer are for each packet of the message.
func (s *Stream) MaxMessageSize() int {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	return s.state.MaxMessage()
}

// WriteMessage queues b as one message, which may be empty, of up to MaxMessageSize
// bytes. It blocks and fails as Write does; a larger message queues nothing, and fails
// with a *SizeError, which wraps ErrMessageTooLarge.
func (s *Stream) WriteMessage(b []byte) error { return s.SendMessage(b, nil) }

// SendMessage is WriteMessage with options for this message; nil means those of the
// stream. An option that is out of its range is an *OptionError.
func (s *Stream) SendMessage(b []byte, options *MessageOptions) error {
	_, err := s.conn.write(s, writeCall{b: b, message: true, options: options, waits: true})
	return err
}

// tryWriteLocked is Conn.tryWrite for the stream.
func (s *Stream) tryWriteLocked(w *writeCall) error {
	err, least := s.cannotWriteLocked(), 1
	if w.message {
		least = len(w.b)
		if err == nil {
			err = s.tooLargeLocked(least)
		}
	}
	for queued := false; err == nil && (w.n < len(w.b) || w.message && !queued) && !(queued && w.waits); queued = true {
		room, half := s.state.Room(least)
		if room <= 0 {
			room, half = s.roomLocked(least)
		}
		switch {
		case room <= 0 || !w.free:
			err, w.half = ErrWouldBlock, half
			if !w.waits {
				s.refused = s.refused || !w.free
				s.awaitRoomLocked(half)
			}
		case w.message:
			s.queueLocked(w)
			w.n = len(w.b)
		default:
			w.n += s.state.Write(w.b[w.n:min(w.n+room, len(w.b))])
		}
	}
	if w.free && (w.waits || !w.message || err != ErrWouldBlock) { // else it is meant to be missed
		s.state.SetCut(err != nil || w.n < len(w.b))
	}
	return err
}

// tooLargeLocked returns why a message of n bytes may not be written; nil if it may.
func (s *Stream) tooLargeLocked(n int) error {
	if limit := s.state.MaxMessage(); n > limit {
		means := "what fits into Config.StreamReceiveBuffer of this end, and the peer has shown no larger one"
		if s.state.PeerTakesMore() {
			means = "what fits into the peer's Config.StreamReceiveBuffer"
		}
		return &SizeError{n, limit, ErrMessageTooLarge, means}
	}
	return nil
}

// queueLocked queues w.b as one message.
func (s *Stream) queueLocked(w *writeCall) {
	p := s.state.Params()
	lifetime, retransmits := p.Lifetime, p.Retransmits
	var done func(error)
	if o := w.options; o != nil {
		if ms := lifetimeMillis(o.Lifetime); ms > 0 {
			lifetime = ms
		}
		if o.MaxRetransmits != 0 {
			retransmits = transmissions(o.MaxRetransmits)
		}
		done = o.Done
	}
	deadline := int64(0)
	if lifetime > 0 {
		deadline = s.conn.deadlineLocked(lifetime, w.begun)
	}
	s.state.Send(w.b, uint32(retransmits), deadline, done)
}

// cannotReadLocked returns why a call that reads fails at once; nil if it does
// not.
func (s *Stream) cannotReadLocked() error {
	switch {
	case s.closed, s.conn.closing.Caller != closing.Uses:
		return net.ErrClosed
	case s.conn.reportsStreams():
		return ErrGrouped
	case s.readDeadline.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// readEndLocked returns why nothing more can be read, once nothing can; nil if
// more may arrive.
func (s *Stream) readEndLocked() error {
	c := s.conn
	if err := s.state.ReadEnd(); err != nil {
		c.calls.ready.Remove(turnOf, s) // no group has to tell it
		s.state.ReadDone()
		c.kickStreams() // the stream may be over
		return err
	}
	if c.closing.Phase >= closing.Ended && c.closing.err == nil {
		return net.ErrClosed
	}
	return c.reason(c.closing.err)
}

// afterReadLocked sends the credit that a call has made due, which has read n bytes.
func (s *Stream) afterReadLocked(n int) {
	c := s.conn
	c.accountRead(n)
	if s.state.CreditDue() && c.closing.Phase < closing.Lingering {
		c.push()
	}
}

// Read reads up to len(b) bytes, and waits until there are some, unless b is empty. The
// rest of a message that does not fit into b is for the next Read. It fails at once with
// os.ErrDeadlineExceeded when the read deadline has passed, and net.ErrClosed after
// Close, CancelRead or Reset. After all that has arrived, it returns io.EOF if the peer
// has closed its side, a *StreamError if the stream was reset, which also drops what was
// not read, and otherwise the error with which the session ended. That is ErrPeerClosed
// or a *PeerCloseError if the peer has closed the session while more might have followed:
// see Conn.Close.
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
		if n > 0 {
			n += s.state.Read(b[n:])
		} else if err := s.cannotReadLocked(); err != nil {
			return pause{}, err
		} else if n = s.state.Read(b); n == 0 {
			if _, more := s.state.NextMessage(); more {
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
		}
		s.afterReadLocked(n)
		return pause{}, nil
	}, func() {
		if done := false; lent && takeBack() > 0 {
			s.conn.endIfUnwound(&done) // what is in b is lost
		}
	})
	return n, err
}

// ReadMessage reads the next message into b and returns its size in bytes, which may be
// 0. Of a message that Read has begun, it returns the rest. A stream of bytes has no
// boundaries. Errors are those of Read, and io.ErrShortBuffer if b is too small; the
// message stays queued.
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
		n = size
		s.state.ReadMessage(b)
		s.afterReadLocked(n)
		return pause{}, nil
	}, nil)
	return n, err
}

// NextMessageSize is that of Conn, for the next message of the stream, or the
// rest of one that Read has begun.
func (s *Stream) NextMessageSize() (size int, ok bool) {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	if s.cannotReadLocked() != nil {
		return 0, false
	}
	return s.state.NextMessage()
}
