package kcp

import (
	"net"

	"github.com/arqnet/kcp/internal/session"
)

// streamWatch is of streams whose end the application has asked for; under Conn.mu.
type streamWatch struct {
	done chan struct{} // closed when the stream has ended; nil: not asked for
	err  error         // why it has ended; nil: it has not
}

// Done returns a channel that is closed when the stream has ended, as Err says: nothing
// more can be written. CloseWrite of one end alone does not end it; of both it does, once
// all has arrived. What has arrived can still be read, unless the stream was reset or
// closed here.
func (s *Stream) Done() <-chan struct{} {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	if s.watch == nil {
		s.watch = new(streamWatch)
	}
	w := s.watch
	if w.done == nil {
		w.done = make(chan struct{})
		if w.err == nil {
			s.noteEndLocked()
		} else {
			close(w.done)
		}
	}
	return w.done
}

// Err returns nil until the stream has ended, and then always the same cause, not wrapped
// in a *net.OpError:
//   - a *StreamError if either end has reset the stream, or the peer has closed it or
//     reads no more;
//   - net.ErrClosed after Close, of the stream or session, and after both ends'
//     CloseWrite;
//   - ErrPeerClosed, or a *PeerCloseError, if the peer has closed the session;
//   - the error with which the session ended.
func (s *Stream) Err() error {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	if s.watch == nil {
		err := s.endLocked()
		if err == nil {
			return nil
		}
		s.watch = &streamWatch{err: err}
	}
	return s.watch.err
}

// noteEndLocked closes the channel of Done if the stream has ended.
func (s *Stream) noteEndLocked() {
	w := s.watch
	if w == nil || w.err != nil {
		return
	}
	if w.err = s.endLocked(); w.err != nil && w.done != nil {
		close(w.done)
	}
}

// endLocked returns why the stream has ended; nil if it has not.
func (s *Stream) endLocked() error {
	if err := s.state.Ended(); err != nil {
		return err
	}
	if s.closed {
		return net.ErrClosed
	}
	return s.conn.session.StreamsEnd()
}

// CancelRead ends reading, and does not wait (compare STOP_SENDING, RFC 9000 §3.5). What
// was not read is dropped, and so is what still arrives. Calls that read return
// net.ErrClosed. Unless all has arrived, the peer's calls that write fail with a
// *StreamError of this code, below 1<<62; higher bits are cleared. Writing goes on.
func (s *Stream) CancelRead(code uint64) error {
	return s.end(session.StopReading, code)
}

// CancelWrite ends writing at once, also after CloseWrite (compare RESET_STREAM, RFC 9000
// §3.5): what was not delivered is dropped, at both ends. The peer's calls that read fail
// with a *StreamError of this code, below 1<<62; higher bits are cleared. Calls that
// write return net.ErrClosed, as does CancelWrite once all is delivered. Reading goes on.
func (s *Stream) CancelWrite(code uint64) error {
	return s.end(session.StopWriting, code)
}

// end ends one direction of the stream.
func (s *Stream) end(how session.StreamEnd, code uint64) error {
	c := s.conn
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.EndStream(&s.state, how, code&maxStreamCode, s.closed); err != nil {
		return c.opError("close", err)
	}
	return nil
}
