package kcp

// TryWrite is Write without waiting: it queues as much of b as the write buffer has room
// for, sends at once as much as the windows allow, and returns the number of bytes
// queued. If that is not all of b, the error is ErrWouldBlock itself: there is no more
// room, or another goroutine is in Write or WriteMessage. Its other errors are those of
// Write.
//
// WriteReady waits for room. In a Group EventWritable follows ErrWouldBlock; that of a
// stream after ReportStreams.
func (c *Conn) TryWrite(b []byte) (n int, err error) {
	return c.write(nil, writeCall{b: b})
}

// TryWriteMessage is WriteMessage without waiting: it queues b as one message if the
// write buffer has any room. Otherwise, and while another goroutine is in Write or
// WriteMessage, it returns ErrWouldBlock itself. Its other errors are those of
// WriteMessage. After any error nothing of b was queued.
func (c *Conn) TryWriteMessage(b []byte) error {
	_, err := c.write(nil, writeCall{b: b, message: true})
	return err
}

// TrySendMessage is SendMessage without waiting: it returns ErrWouldBlock itself as
// TryWriteMessage does. Messages whose lifetime is over make room, as for SendMessage.
// Its other errors are those of SendMessage. After any error nothing of b was queued, and
// MessageOptions.Done is not called.
func (c *Conn) TrySendMessage(b []byte, options *MessageOptions) error {
	_, err := c.write(nil, writeCall{b: b, message: true, options: options})
	return err
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
	payload := c.kcp.load().payload
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
func (s *Stream) TryWrite(b []byte) (n int, err error) {
	return s.conn.write(s, writeCall{b: b, message: s.messages})
}

// TryWriteMessage is WriteMessage without waiting: it queues b as one message if the
// write buffers have any room. Otherwise, and while another goroutine is in a call that
// writes, it returns ErrWouldBlock itself. Its other errors are those of WriteMessage.
// After any error nothing of b was queued.
func (s *Stream) TryWriteMessage(b []byte) error { return s.TrySendMessage(b, nil) }

// TrySendMessage is TryWriteMessage with options for this message; nil means those of
// the stream. An option that is out of its range is an *OptionError. After any error
// MessageOptions.Done is not called.
func (s *Stream) TrySendMessage(b []byte, options *MessageOptions) error {
	_, err := s.conn.write(s, writeCall{b: b, message: true, options: options})
	return err
}
