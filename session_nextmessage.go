package kcp

// NextMessageSize returns the size in bytes, which may be 0, of the message that
// ReadMessage would return now. ok is false if ReadMessage would wait or fail.
//
// It does not wait. The size is that of the next ReadMessage if no other call
// reads in between; after a Read it may be less. Together with io.ErrShortBuffer
// it serves to make a buffer of the right size:
//
//	n, err := c.ReadMessage(b)
//	if errors.Is(err, io.ErrShortBuffer) {
//		size, _ := c.NextMessageSize()
//		b = make([]byte, size)
//		n, err = c.ReadMessage(b)
//	}
func (c *Conn) NextMessageSize() (size int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cannotRead() != nil {
		if c.rare == nil || len(c.rare.kept) == 0 {
			return 0, false
		}
		return len(c.rare.kept[0]), true
	}
	if size = c.kcp.PeekSize(); size < 0 {
		return 0, false
	}
	return size, true
}

// NextMessageSize is that of Conn, for the next message of the stream, or the
// rest of one that Read has begun.
func (s *Stream) NextMessageSize() (size int, ok bool) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if s.cannotReadLocked() != nil {
		return 0, false
	}
	return s.state.NextMessage()
}
