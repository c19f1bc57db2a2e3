package kcp

import (
	"io"
	"net"
	"os"

	"github.com/arqnet/kcp/internal/closing"
)

// Read reads up to len(b) bytes, and waits until there are some. The rest of a message
// that does not fit into b is for the next Read. Several goroutines may read; each byte
// goes to one of them.
//
// Read fails at once with os.ErrDeadlineExceeded when the read deadline has passed,
// ErrGrouped in a Group, and net.ErrClosed after Close or Abort. After all data that has
// arrived, it returns
//   - io.EOF if the peer has closed the session, or its side of it;
//   - io.ErrUnexpectedEOF if the peer has done so within a message;
//   - ErrReset if the peer has aborted the session;
//   - a *PeerLostError if the peer is gone;
//   - otherwise the error with which the session ended.
func (c *Conn) Read(b []byte) (n int, err error) {
	lent := false // the state machine copies what arrives straight into b
	takeBack := func() int {
		lent, c.io.filling = false, false
		return len(b) - c.kcp.receiver().takeBuffer()
	}
	err = c.await(blocking{op: "read"}, func() (pause, error) {
		if lent {
			n = takeBack()
		}
		if n > 0 {
			n += c.kcp.recvBytes(b[n:])
		} else if err := c.cannotRead(); err != nil || len(b) == 0 {
			return pause{}, err
		} else if n = c.kcp.recvBytes(b); n == 0 {
			if err := c.readEnd(); err != nil {
				return pause{}, err
			}
			if !c.io.filling { // else another Read has lent its buffer, and comes first
				lent, c.io.filling = true, true
				c.kcp.receiver().lendBuffer(b)
			}
			return pause{on: &c.io.canRead}, nil
		}
		c.afterRead(n)
		return pause{}, nil
	}, func() {
		if done := false; lent && takeBack() > 0 {
			c.endIfUnwound(&done) // what is in b is lost
		}
	})
	return n, err
}

// ReadMessage reads the next message into b and returns its size in bytes, which may be
// 0. Of a message that Read has begun it returns the rest. The peer's mode decides what
// a message is: if it sends a byte stream, one segment, as it has cut it. The errors are
// those of Read, and io.ErrShortBuffer if b is too small; the message stays queued for a
// larger b (see NextMessageSize).
func (c *Conn) ReadMessage(b []byte) (n int, err error) {
	err = c.await(blocking{op: "read"}, func() (pause, error) {
		if err := c.cannotRead(); err != nil {
			return pause{}, err
		}
		size, err := c.kcp.Recv(b)
		switch err {
		case nil:
			n = size
			c.afterRead(n)
			return pause{}, nil
		case io.ErrShortBuffer:
			return pause{}, err
		}
		return pause{on: &c.io.canRead}, c.readEnd()
	}, nil)
	return n, err
}

// cannotRead returns why a Read fails even if data has arrived; nil if it does
// not.
func (c *Conn) cannotRead() error {
	switch {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.io.member != nil:
		return ErrGrouped
	case c.io.readDeadline.expired() && !(c.ep.compat.DataBeforeDeadline &&
		(c.kcp.receiver().readable() || c.allReceived() || c.closing.err != nil)):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// readEnd returns why nothing more can be read once the queue has no complete message:
// io.EOF once the peer has closed its side and all its data was read. nil: more may
// arrive.
func (c *Conn) readEnd() error {
	if c.allReceived() && c.closing.err != ErrMemoryPressure && c.closing.err != errUnwound { // which drop what was not read
		if c.kcp.receiver().queued() {
			return io.ErrUnexpectedEOF // a message without its end
		}
		if c.closing.Read == closing.ReadClosed && c.hs.reasons != nil && c.hs.reasons.peer != nil {
			return c.hs.reasons.peer
		}
		return io.EOF
	}
	c.io.errReported = c.io.errReported || c.closing.err != nil
	return c.reason(c.closing.err)
}

// Write queues b, and sends at once as much as the windows allow. It blocks while
// Config.WriteBuffer is full, and returns when all of b is queued; the peer need not
// have acknowledged it. In message mode each segment of b is a message; see
// WriteMessage. Concurrent calls of Write and WriteMessage do not interleave.
//
// The write deadline bounds the wait for room, not the time until delivery. If Write
// fails, n bytes were queued and will be delivered if possible. Its errors are
//   - os.ErrDeadlineExceeded when the write deadline has passed;
//   - net.ErrClosed after Close, Abort or CloseWrite;
//   - ErrPeerClosed when the peer has closed the session;
//   - the error with which the session ended, such as a *PeerLostError or ErrReset.
func (c *Conn) Write(b []byte) (n int, err error) {
	return c.write(nil, writeCall{b: b, waits: true})
}

// write is all calls that write to s, or if that is nil to the session. It takes the
// lock of those, writing, and c.mu.
func (c *Conn) write(s *Stream, w writeCall) (int, error) {
	if w.options != nil {
		if err := w.options.check(); err != nil {
			return 0, c.opError("write", err)
		}
	}
	writing := &c.writing
	if s != nil {
		writing = &s.writing
	}
	if w.waits {
		writing.Lock()
	}
	begun := false
	err := c.await(blocking{op: "write", stream: s}, func() (p pause, err error) {
		if !begun {
			begun = true
			w.free = w.waits || writing.TryLock() // after c.mu: the one that holds it sees a refusal
			if w.message {
				w.begun = c.ep.now()
			}
		}
		if w.line != nil {
			w.line.Done()
			w.line = nil
		}
		before := w.n
		if s == nil {
			err, p.on = c.tryWrite(&w), &c.io.canWrite
		} else {
			err, p.on = s.tryWriteLocked(&w), &s.canWrite
		}
		if w.n > before || w.message && err == nil {
			c.push()
		}
		switch {
		case err == nil && w.n < len(w.b):
			return pause{again: true}, nil // these segments are on their way before the next
		case err != ErrWouldBlock || !w.waits:
			return pause{}, err
		case s != nil:
			w.line = s.state.Wait(w.half)
		}
		return p, nil
	}, func() {
		if w.line != nil {
			w.line.Done()
		}
		if !w.free {
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
	return w.n, err
}

// tryWrite queues as much of w.b as there is room for; as a message all of it, or
// nothing. If the call waits it does so for one round: at most writeBatch segments, so
// that these are on their way before the next. In message mode each segment of what is
// not one message is a message.
func (c *Conn) tryWrite(w *writeCall) error {
	if w.message && !c.messageMode() {
		return ErrNotMessageMode
	}
	bound := c.ep.compat.SegmentBound
	goesOn := bound && w.waits && w.n > 0
	if c.closing.Caller != closing.Uses || c.closing.err != nil || c.io.writeDeadline.expired() || c.closing.Read == closing.ReadClosed || c.closing.Write != closing.WriteOpen {
		if err := c.cannotWrite(); err != nil && !(goesOn && err == os.ErrDeadlineExceeded) {
			return err
		}
	}
	room := c.room()
	if room <= 0 && w.message {
		c.dropSpentMessages()
		room = c.room()
	}
	for w.message || w.n < len(w.b) {
		if !goesOn && (room <= 0 || !w.free) {
			if m := c.io.member; m != nil && !w.waits {
				m.wantsRoom, m.refused = true, m.refused || !w.free
			}
			c.kcp.refuse()
			return ErrWouldBlock
		}
		if w.message {
			return c.queueMessage(w)
		}
		payload := c.kcp.load().payload
		segments := min(max(room/(payload+writeCostPerSegment), 1), writeBatch)
		if bound {
			segments = writeBatch
		}
		end := min(len(w.b), w.n+segments*payload)
		for w.n < end {
			piece := w.b[w.n:end]
			if c.messageMode() {
				piece = piece[:min(len(piece), payload)]
			}
			n, err := c.kcp.Send(piece)
			if w.n += n; err != nil {
				return err
			}
		}
		if w.waits {
			return nil
		}
		room = c.room()
	}
	return nil
}

// MaxMessageSize returns the largest message that WriteMessage takes, in bytes; 0
// without Config.MessageMode or SetMessageMode. It is 127 segments, or as many as the
// largest receive window that the peer has shown. It grows with the path MTU, and does
// not shrink with it.
func (c *Conn) MaxMessageSize() int {
	c.mu.Lock()
	defer c.unlock()
	if !c.messageMode() {
		return 0
	}
	most, _ := c.kcp.messageLimit()
	return most
}

// WriteMessage queues b as one message, which may be empty. It blocks as Write does. If
// it fails, nothing was queued. Its errors are those of Write, ErrNotMessageMode without
// Config.MessageMode, and ErrMessageTooLarge for more than MaxMessageSize bytes.
func (c *Conn) WriteMessage(b []byte) error {
	_, err := c.write(nil, writeCall{b: b, message: true, waits: true})
	return err
}

// cannotWrite returns why nothing more may be written, for the call that
// returns it; nil if it may.
func (c *Conn) cannotWrite() error {
	if c.closing.Caller == closing.Uses && !c.io.writeDeadline.expired() && c.closing.Read != closing.ReadClosed && c.closing.err != nil {
		c.io.errReported = true
	}
	return c.writeEnd()
}

// writeEnd returns why nothing more may be written; nil if it may.
func (c *Conn) writeEnd() error {
	switch {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.io.writeDeadline.expired() && !(c.ep.compat.DataBeforeDeadline && c.room() > 0):
		return os.ErrDeadlineExceeded
	case c.closing.Read == closing.ReadClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case c.closing.Write != closing.WriteOpen:
		return net.ErrClosed
	}
	return nil
}

// NextMessageSize returns the size in bytes, which may be 0, of the message that
// ReadMessage would return now. It does not wait: ok is false if ReadMessage would wait
// or fail. The size serves to make a buffer after io.ErrShortBuffer, if no other call
// reads in between.
func (c *Conn) NextMessageSize() (size int, ok bool) {
	c.mu.Lock()
	defer c.unlock()
	if size = c.kcp.PeekSize(); size < 0 || c.cannotRead() != nil {
		return 0, false
	}
	return size, true
}

// SendMessage is WriteMessage with options for this message; nil means those of
// WriteMessage: it is delivered if the session lasts. A message that is given up is not
// delivered, unless all of it has arrived before. What follows it keeps its order and
// does not wait for it.
//
// A peer that does not take streams, see OpenStream, cannot be told that a message is
// given up of which something was sent. For it Lifetime ends a message of which nothing
// was sent, and MaxRetransmits has no effect. Done works with every peer.
//
// SendMessage blocks as Write does, which counts towards Lifetime. If it fails, nothing
// was queued, and Done is not called. Its errors are those of WriteMessage, and an
// *OptionError for an option that is out of its range.
func (c *Conn) SendMessage(b []byte, options *MessageOptions) error {
	_, err := c.write(nil, writeCall{b: b, message: true, options: options, waits: true})
	return err
}
