package kcp

import (
	"io"
	"net"
	"os"

	"github.com/arqnet/kcp/internal/session"
)

// Read reads up to len(b) bytes, and waits until there are some. The rest of a message
// that does not fit into b is for the next Read. After all that has arrived it returns
// io.EOF if the peer has closed the session, or its side of it, and io.ErrUnexpectedEOF
// if it has done so within a message. Other errors are os.ErrDeadlineExceeded, also if
// data is there, and ErrInUse in a Group.
func (c *Conn) Read(b []byte) (n int, err error) {
	lent := false // the state machine copies what arrives straight into b
	takeBack := func() int {
		lent, c.io.filling = false, false
		return len(b) - c.session.TakeBack()
	}
	err = c.await(blocking{op: "read"}, func() (pause, error) {
		if lent {
			n = takeBack()
		}
		if n == 0 {
			if err := c.cannotRead(); err != nil || len(b) == 0 {
				return pause{}, err
			}
		}
		if n = c.session.Read(b, n); n > 0 {
			return pause{}, nil
		} else if err := c.session.ReadEnd(false); err != nil {
			return pause{}, err
		}
		if !c.io.filling { // else another Read has lent its buffer, and comes first
			lent, c.io.filling = true, true
			c.session.Lend(b)
		}
		return pause{on: &c.io.canRead}, nil
	}, func() {
		if lent && takeBack() > 0 {
			c.session.Unwind() // what is in b is lost
		}
	})
	return n, err
}

// ReadMessage reads the next message into b and returns its size in bytes, which may be
// 0. Of a message that Read has begun it returns the rest. The peer's mode decides what a
// message is: if it sends a byte stream, one segment, as it has cut it. The errors are
// Read's, and io.ErrShortBuffer if b is too small; then the message stays queued.
func (c *Conn) ReadMessage(b []byte) (n int, err error) {
	err = c.await(blocking{op: "read"}, func() (pause, error) {
		if err := c.cannotRead(); err != nil {
			return pause{}, err
		}
		size, err := c.session.ReadMessage(b)
		switch err {
		case nil:
			n = size
			return pause{}, nil
		case io.ErrShortBuffer:
			return pause{}, err
		}
		return pause{on: &c.io.canRead}, c.session.ReadEnd(false)
	}, nil)
	return n, err
}

// cannotRead returns why a Read fails even if data has arrived; nil if it does not.
func (c *Conn) cannotRead() error {
	s := c.session.State()
	switch {
	case s.Left:
		return net.ErrClosed
	case c.io.member != nil:
		return errGrouped
	case c.io.readDeadline.expired():
		if w := c.session.Waiting(); !c.ep.Compat.DataBeforeDeadline || !w.Data && !w.All && s.Err == nil {
			return os.ErrDeadlineExceeded
		}
	}
	return nil
}

// Write queues b, and sends at once as much as the windows allow. It blocks while
// Config.WriteBuffer is full, and returns when all of b is queued; if it fails, n bytes
// were. In message mode each segment of b is a message; see WriteMessage. Concurrent
// calls do not interleave. Errors are os.ErrDeadlineExceeded, ErrPeerClosed when the peer
// has closed the session, and net.ErrClosed after CloseWrite, too.
func (c *Conn) Write(b []byte) (n int, err error) {
	return c.write(nil, session.WriteCall{B: b, Waits: true})
}

// write is all calls that write to s, or if that is nil to the session. It takes the
// lock of those, writing, and c.mu.
func (c *Conn) write(s *Stream, w session.WriteCall) (int, error) {
	if w.Options != nil {
		if err := (*MessageOptions)(w.Options).check(); err != nil {
			return 0, c.opError("write", err)
		}
	}
	writing := &c.writing
	if s != nil {
		writing = &s.writing
	}
	if w.Waits {
		writing.Lock()
	}
	begun := false
	err := c.await(blocking{op: "write", stream: s}, func() (p pause, err error) {
		if !begun {
			begun = true
			w.Free = w.Waits || writing.TryLock() // after c.mu: the one that holds it sees a refusal
			w.Message = w.Message || s == nil && !w.Waits && c.session.State().Message
			if w.Message {
				w.Begun = c.ep.now()
			}
		}
		if w.Line != nil {
			w.Line.Done()
			w.Line = nil
		}
		before := w.N
		err, p.on = c.tryWrite(s, &w), &c.io.canWrite
		if s != nil {
			p.on = &s.canWrite
		}
		if w.N > before || w.Message && err == nil {
			c.session.Push()
		}
		switch {
		case err == nil && w.N < len(w.B):
			return pause{again: true}, nil // these segments are on their way before the next
		case err != ErrWouldBlock || !w.Waits:
			return pause{}, err
		case s != nil:
			w.Line = s.state.Wait(w.Half)
		}
		return p, nil
	}, func() {
		if w.Line != nil {
			w.Line.Done()
		}
		if !w.Free {
			return
		}
		writing.Unlock()
		// A write that did not wait for this one may have room, or has to wait for some.
		if m := c.io.member; s != nil && s.refused {
			s.refused = false
			s.noteEventLocked()
		} else if s == nil && m != nil && m.refused {
			m.refused = false
			m.wake()
		}
	})
	return w.N, err
}

// tryWrite is session.write to s, or if that is nil to the session. What has to follow is
// noted: EventWritable of a group.
func (c *Conn) tryWrite(s *Stream, w *session.WriteCall) error {
	if w.Late = c.io.writeDeadline.err(); s != nil {
		w.Late, w.Stream, w.Closed = s.writeDeadline.err(), &s.state, s.closed
	}
	err := c.session.Write(w)
	if err == ErrWouldBlock && !w.Waits {
		if m := c.io.member; s != nil {
			s.refused = s.refused || !w.Free
			s.awaitRoomLocked(w.Half)
		} else if m != nil {
			m.wantsRoom, m.refused = true, m.refused || !w.Free
		}
	}
	return err
}

// MaxMessageSize returns the largest message that WriteMessage takes, in bytes: 127
// segments, or as many as the largest receive window that the peer has shown. It grows
// with the path MTU, and never shrinks. It is 0 without message mode.
func (c *Conn) MaxMessageSize() int {
	c.mu.Lock()
	defer c.unlock()
	return c.session.MaxMessage()
}

// WriteMessage queues b as one message, which may be empty, of up to MaxMessageSize
// bytes. options nil means none. What follows a message that is given up does not wait
// for it. A peer that takes no streams cannot be told so of one that was partly sent:
// docs/calls.md.
//
// It blocks as Write does, which counts towards Lifetime. If it fails, nothing was
// queued. Errors are Write's, a *SizeError, an *OptionError, errors.ErrUnsupported
// without message mode, and ErrWouldBlock itself with MessageOptions.NoWait.
func (c *Conn) WriteMessage(b []byte, options *MessageOptions) error {
	_, err := c.write(nil, options.call(b))
	return err
}

// NextMessageSize returns the size in bytes of the message that ReadMessage would return
// now, such as after io.ErrShortBuffer. ok is false if ReadMessage would wait or fail.
func (c *Conn) NextMessageSize() (size int, ok bool) {
	c.mu.Lock()
	defer c.unlock()
	if size = c.session.NextMessage(); size < 0 || c.cannotRead() != nil {
		return 0, false
	}
	return size, true
}

// TryWrite is Write without waiting: it queues as much of b as the write buffer has room
// for, and returns the number of bytes. In message mode b is one message, which is queued
// whole or not at all. If not all of b is queued, the error is ErrWouldBlock itself:
// there is no more room, or another goroutine is in a call that writes. WriteReady waits
// for room; in a Group EventWritable follows.
func (c *Conn) TryWrite(b []byte) (n int, err error) {
	return c.write(nil, session.WriteCall{B: b})
}

// WriteReady returns a channel that is closed as soon as TryWrite would not return
// ErrWouldBlock, or if nothing can be written any more. A call may return a new one.
func (c *Conn) WriteReady() <-chan struct{} {
	c.mu.Lock()
	defer c.unlock()
	w := c.state()
	if w.room == nil {
		w.room = make(chan struct{})
	}
	room := w.room
	c.announceRoom(w)
	return room
}

// announceRoom closes the channel of WriteReady if a write would not wait.
func (c *Conn) announceRoom(w *callState) {
	if c.session.Writable(&session.WriteCall{Late: c.io.writeDeadline.err()}) {
		close(w.room)
		w.room = nil
	}
}
