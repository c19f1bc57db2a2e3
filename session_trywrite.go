package kcp

// TryWrite is Write without waiting: it queues as much of b as the write buffer has room
// for, sends at once as much as the windows allow, and returns the number of bytes
// queued. If that is not all of b, the error is ErrWouldBlock itself: there is no more
// room, or another goroutine is in Write or WriteMessage. Its other errors are those of
// Write.
//
// WriteReady waits for room. In a Group EventWritable follows ErrWouldBlock; that of a
// stream after ReportStreams.
func (c *Conn) TryWrite(b []byte) (n int, err error) { return c.try(b, false, nil) }

// TryWriteMessage is WriteMessage without waiting: it queues b as one message if the
// write buffer has any room. Otherwise, and while another goroutine is in Write or
// WriteMessage, it returns ErrWouldBlock itself. Its other errors are those of
// WriteMessage. After any error nothing of b was queued.
func (c *Conn) TryWriteMessage(b []byte) error {
	_, err := c.try(b, true, nil)
	return err
}

// TrySendMessage is SendMessage without waiting: it returns ErrWouldBlock itself as
// TryWriteMessage does. Messages whose lifetime is over make room, as for SendMessage.
// Its other errors are those of SendMessage. After any error nothing of b was queued, and
// MessageOptions.Done is not called.
func (c *Conn) TrySendMessage(b []byte, options *MessageOptions) error {
	if err := options.check(); err != nil {
		return opError("write", c.LocalAddr(), c.RemoteAddr(), err)
	}
	_, err := c.try(b, true, options)
	return err
}

// try locks c.mu, and c.writing if it is free, for TryWrite, TryWriteMessage and
// TrySendMessage.
func (c *Conn) try(b []byte, message bool, options *MessageOptions) (n int, err error) {
	c.mu.Lock()
	defer c.unlock()
	free := c.writing.TryLock() // not before c.mu: endWritingLocked sees a refusal
	if free {
		defer c.endWritingLocked()
	}
	if message && !c.messageMode() {
		return 0, c.opError("write", ErrNotMessageMode)
	}
	n, err = c.tryWrite(b, free, message, options)
	if n > 0 || message && err == nil {
		c.push()
	}
	if err != nil && err != ErrWouldBlock {
		err = c.opError("write", err)
	}
	return n, err
}

// endWritingLocked ends a call that holds c.writing. A write that did not wait for it
// may have room.
func (c *Conn) endWritingLocked() {
	c.writing.Unlock()
	if m := c.io.member; m != nil && m.refused {
		m.refused = false
		m.wake()
	}
}

// WriteAvailable returns how many bytes TryWrite would queue now: what is left of
// Config.WriteBuffer, less 64 bytes for each segment, or 0 if nothing can be written any
// more. If it is not 0, TryWriteMessage would queue a message of whatever size. Under
// memory pressure other sessions change it.
func (c *Conn) WriteAvailable() int {
	c.mu.Lock()
	defer c.unlock()
	room := c.room()
	if room <= 0 || c.writeEnd() != nil {
		return 0
	}
	payload := c.kcp.sendPayload()
	full, rest := room/(payload+writeCostPerSegment), room%(payload+writeCostPerSegment)
	return max(full*payload+max(rest-writeCostPerSegment, 0), 1)
}

// WriteReady returns a channel that is closed as soon as the write buffer has room, so
// that TryWrite does not return ErrWouldBlock, or if nothing can be written any more.
// Each call may return another channel; one that is closed stays so. A program with
// thousands of sessions uses the events of a Group instead.
func (c *Conn) WriteReady() <-chan struct{} {
	c.mu.Lock()
	defer c.unlock()
	w := c.watched()
	if w.room == nil {
		w.room = make(chan struct{})
	}
	room := w.room
	c.announceRoom(w)
	return room
}

// announceRoom closes the channel of WriteReady if a write would not wait.
func (c *Conn) announceRoom(w *sessionWatch) {
	if c.room() > 0 || c.writeEnd() != nil {
		close(w.room)
		w.room = nil
	}
}

// TryWrite is Write without waiting: it queues as much of b as the write buffers of the
// stream and of the session have room for, sends at once as much as may leave, and
// returns the number of bytes queued; if the stream is unordered or not reliable, b is
// one message, which is queued whole or not at all. If that is not all of b, the error
// is ErrWouldBlock itself: there is no more room, or another goroutine is in a call that
// writes. Its other errors are those of Write.
func (s *Stream) TryWrite(b []byte) (n int, err error) { return s.try(b, s.messages, nil) }

// TryWriteMessage is WriteMessage without waiting: it queues b as one message if the
// write buffers have any room. Otherwise, and while another goroutine is in a call that
// writes, it returns ErrWouldBlock itself. Its other errors are those of WriteMessage.
// After any error nothing of b was queued.
func (s *Stream) TryWriteMessage(b []byte) error { return s.TrySendMessage(b, nil) }

// TrySendMessage is TryWriteMessage with options for this message; nil means those of
// the stream. An option that is out of its range is an *OptionError. After any error
// MessageOptions.Done is not called.
func (s *Stream) TrySendMessage(b []byte, options *MessageOptions) error {
	if err := options.check(); err != nil {
		return opError("write", s.LocalAddr(), s.RemoteAddr(), err)
	}
	_, err := s.try(b, true, options)
	return err
}

// try locks Conn.mu, and s.writing if it is free, and writes what there is room for.
func (s *Stream) try(b []byte, message bool, options *MessageOptions) (n int, err error) {
	c := s.conn
	c.mu.Lock()
	defer c.unlock()
	free := s.writing.TryLock() // not before Conn.mu: endWritingLocked sees a refusal
	if free {
		defer s.endWritingLocked()
	}
	n, err = s.tryWriteLocked(b, free, message, options)
	if n > 0 || message && err == nil {
		c.push()
	}
	if err != nil && err != ErrWouldBlock {
		err = c.opError("write", err)
	}
	return n, err
}

// endWritingLocked ends a call that holds s.writing. A write that did not wait for it
// may have room, or has to wait for some.
func (s *Stream) endWritingLocked() {
	s.writing.Unlock()
	if s.refused {
		s.refused = false
		s.noteEventLocked()
	}
}

// tryWriteLocked queues as much of b as there is room for; as a message all of it,
// or nothing. If free is not set, there is no room, as a Write comes first.
func (s *Stream) tryWriteLocked(b []byte, free, message bool, options *MessageOptions) (n int, err error) {
	defer func() {
		if free && !(message && err == ErrWouldBlock) { // such a message is meant to be missed
			s.state.SetCut(err != nil)
		}
	}()
	if err := s.cannotWriteLocked(); err != nil {
		return 0, err
	}
	least := 1
	if message {
		if err := s.tooLargeLocked(len(b)); err != nil {
			return 0, err
		}
		least = len(b)
	}
	for message || n < len(b) {
		room, half := s.roomLocked(least)
		if !free || room <= 0 {
			s.refused = s.refused || !free
			s.awaitRoomLocked(half)
			return n, ErrWouldBlock
		}
		if message {
			s.queueLocked(b, options, s.conn.ep.now())
			return len(b), nil
		}
		n += s.state.Write(b[n:min(n+room, len(b))])
	}
	return n, nil
}
