package kcp

import (
	"context"
	"net"
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
