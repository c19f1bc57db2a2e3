package kcp

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/stats"
)

// Stream is one of several flows of a session (compare RFC 9000 §2). It implements
// net.Conn, and keeps the boundaries of messages. What is lost on one stream delays no
// other. A stream counts for Limits.MaxStreams until both ends have closed or reset it,
// or have called CloseWrite and read to the end.
//
// All methods are safe for concurrent use. Errors are of type *net.OpError, except
// io.EOF. Calls that read or write return net.ErrClosed after Close or Reset of this end,
// a *StreamError once the peer has reset the stream, and the error with which the session
// ended. Those that write return ErrPeerClosed when the peer has closed the session.
type Stream struct {
	conn     *Conn // immutable
	messages bool  // each Write is one; immutable once the stream is open

	writing sync.Mutex // held for a whole Write; locked before Conn.mu

	// Conn.mu guards the fields below.
	state         streams.Stream
	canRead       notifier
	canWrite      notifier
	readDeadline  deadline
	writeDeadline deadline
	closed        bool         // by Close
	filling       bool         // a blocked Read has lent its buffer
	refused       bool         // a write did not wait for the one that holds writing
	watch         *streamWatch // nil: neither Done nor Err was called

	turn   container.Links[Stream] // in Streams.ready
	writer *streams.Writer         // EventWritable of a group is due; nil: it is not
	eof    bool                    // EventEOF was delivered
}

// OpenStream opens a stream. It waits until the first packets show whether the peer takes
// streams, and while the peer has Limits.MaxStreams of them, but not for AcceptStream.
// Calls open theirs in the order in which they came. The peer must go on to read the
// session's bytes, whose receive window they share.
//
// Errors are an *OptionError, ctx.Err(), and errors.ErrUnsupported if this end or the
// peer takes no streams: ErrLegacyPeer of a legacy one.
func (c *Conn) OpenStream(ctx context.Context, options *StreamOptions) (*Stream, error) {
	return c.openStream(ctx, options, true)
}

// openStream is OpenStream if it waits, and otherwise TryOpenStream.
func (c *Conn) openStream(ctx context.Context, options *StreamOptions, waits bool) (s *Stream, err error) {
	params, err := options.params()
	if err != nil {
		return nil, c.opError("open", err)
	}
	call := session.OpenCall{Params: params, Waits: waits}
	var turn *notifier // on which the call waits for its turn
	if waits {
		turn = new(notifier)
		turn.init(c)
		call.Wake = turn.Broadcast
	}
	err = c.await(blocking{op: "open", ctx: ctx}, func() (pause, error) {
		call.Why = ctx.Err()
		state, err := c.session.OpenStream(&call)
		switch {
		case err != nil:
			return pause{}, err
		case state != nil:
			s = streamOf(state)
			return pause{}, nil
		case call.InLine:
			return pause{on: turn}, nil
		}
		return pause{on: &c.io.canWrite, until: call.Until}, nil
	}, func() { c.session.LeaveLine(&call) })
	return s, err
}

// TryOpenStream is OpenStream without waiting: where that would wait, it returns an error
// that wraps ErrWouldBlock. No EventWritable follows.
func (c *Conn) TryOpenStream(options *StreamOptions) (*Stream, error) {
	return c.openStream(context.Background(), options, false)
}

// AcceptStream waits for a stream that the peer has opened. Errors are ctx.Err(),
// ErrInUse in a group with ReportStreams, and errors.ErrUnsupported if Limits.MaxStreams
// of this end is negative.
func (c *Conn) AcceptStream(ctx context.Context) (s *Stream, err error) {
	err = c.await(blocking{op: "accept", ctx: ctx}, func() (pause, error) {
		calls := c.state()
		switch {
		case c.session.State().Left:
			return pause{}, net.ErrClosed
		case ctx.Err() != nil:
			return pause{}, ctx.Err()
		case c.reportsStreams():
			return pause{}, errGrouped
		}
		next, err := c.session.AcceptStream()
		if next != nil {
			s = streamOf(next)
			return pause{}, nil
		}
		return pause{on: &calls.canAccept}, err
	}, nil)
	return s, err
}

// ID returns the stream's number, the same at both ends: odd if the dialler's.
func (s *Stream) ID() uint32 { return s.state.ID() }

// Options returns the options with which the stream was opened, at either end.
func (s *Stream) Options() StreamOptions {
	p := s.state.Params()
	o := StreamOptions{Unordered: p.Unordered, Priority: int(p.Priority), MaxLifetime: time.Duration(p.Lifetime) * time.Millisecond}
	switch p.Retransmits {
	case 0:
	case 1:
		o.MaxRetransmits = -1
	default:
		o.MaxRetransmits = int(p.Retransmits) - 1
	}
	return o
}

// Conn returns the session of the stream.
func (s *Stream) Conn() *Conn { return s.conn }

// LocalAddr returns the LocalAddr of the session.
func (s *Stream) LocalAddr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr returns the RemoteAddr of the session.
func (s *Stream) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// SetDeadline sets the read and the write deadline.
func (s *Stream) SetDeadline(t time.Time) error { return s.setDeadlines(t, true, true) }

// SetReadDeadline is as Conn's, for Read and ReadMessage of the stream.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.setDeadlines(t, true, false) }

// SetWriteDeadline is as Conn's, for Write and WriteMessage of the stream.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.setDeadlines(t, false, true) }

func (s *Stream) setDeadlines(t time.Time, read, write bool) error {
	c := s.conn
	c.mu.Lock()
	defer c.unlock()
	if s.closed || c.session.State().Left {
		return c.opError("set", net.ErrClosed)
	}
	if read {
		s.readDeadline.set(t, &c.mu, &s.canRead)
	}
	if write {
		s.writeDeadline.set(t, &c.mu, &s.canWrite)
	}
	return nil
}

// Close closes the stream in both directions, and does not wait. What was written is
// still delivered, and the peer then reads io.EOF. What was not read is dropped; unless
// the peer has closed its side, its calls that write fail with a *StreamError that wraps
// ErrStreamClosed.
func (s *Stream) Close() error {
	c := s.conn
	c.mu.Lock()
	defer c.unlock()
	if s.closed {
		return c.opError("close", net.ErrClosed)
	}
	s.closed = true
	s.noEventsLocked()
	s.readDeadline.set(time.Time{}, &c.mu, &s.canRead)
	s.writeDeadline.set(time.Time{}, &c.mu, &s.canWrite)
	s.canRead.Broadcast()
	s.canWrite.Broadcast()
	s.noteEndLocked()
	return c.session.EndStream(&s.state, session.CloseStream, 0, false)
}

// CloseWrite closes the stream for writing, without waiting: the peer reads io.EOF after
// the last byte. A further call returns net.ErrClosed.
func (s *Stream) CloseWrite() error {
	c := s.conn
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.EndStream(&s.state, session.FinishStream, 0, s.closed); err != nil {
		return c.opError("close", err)
	}
	s.canWrite.Broadcast()
	return nil
}

// Reset ends the stream at once in both directions: what was not delivered is dropped, at
// both ends. The peer's calls fail with a *StreamError of this code, below 1<<62; higher
// bits are cleared. After Reset, and after Close once all is delivered, it returns
// net.ErrClosed.
func (s *Stream) Reset(code uint64) error {
	c := s.conn
	c.mu.Lock()
	defer c.unlock()
	if s.closed && s.state.Gone() {
		return c.opError("close", net.ErrClosed)
	}
	s.closed = true
	s.noEventsLocked()
	err := c.session.EndStream(&s.state, session.ResetStream, code&maxStreamCode, false)
	s.canRead.Broadcast()
	s.canWrite.Broadcast()
	s.noteEndLocked()
	return err
}

// Stats returns a snapshot of the stream.
func (s *Stream) Stats() stats.Stream {
	s.conn.mu.Lock()
	defer s.conn.unlock()
	st := s.state.Stats()
	return stats.Stream{
		MessagesSent: st.MessagesSent, MessagesReceived: st.MessagesReceived,
		BytesSent: st.BytesSent, BytesReceived: st.BytesReceived,
		Abandoned: st.Abandoned, Skipped: st.Skipped,
		WriteQueued: st.Queued, ReadBuffered: st.Unread,
	}
}

// streamOf returns the stream of the application.
func streamOf(s *streams.Stream) *Stream { return (*Stream)(s.Owner.(*streamOwner)) }

// streamOwner is a Stream as the streams.Owner: its calls that wait.
type streamOwner Stream

func (s *streamOwner) Readable() {
	s.canRead.Broadcast()
	(*Stream)(s).noteEventLocked()
}

func (s *streamOwner) Writable() {
	s.canWrite.Broadcast()
	(*Stream)(s).noteEndLocked()
	if s.writer != nil || s.state.Gone() {
		(*Stream)(s).noteEventLocked()
	}
}

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
