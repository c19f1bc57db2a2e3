// Package ends has the applications of package life that use sessions of endpoints: over
// simulated networks, or the system's.
package ends

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// Code and Text are the reason of those that close with one.
const (
	Code = 77
	Text = "that was all"
)

// Codes are those of the protocol, with which a stream may be reset whoever has it.
var Codes = []uint64{kcp.StreamTooLarge, kcp.StreamRefused}

// Class returns the class of an error, and the code of a stream that was reset.
func Class(err error) (life.Class, uint64) {
	var told *kcp.PeerCloseError
	var stream *kcp.StreamError
	switch {
	case err == io.EOF:
		return life.EOF, 0
	case errors.As(err, &told):
		switch {
		case told.Code != Code || told.Text != Text:
			return life.Unknown(err), 0
		case told.Aborted:
			return life.ResetByPeer, 0
		}
		return life.Told, 0
	case errors.As(err, &stream) && stream.Code != kcp.StreamViolation:
		if stream.Remote {
			return life.StreamReset, stream.Code
		}
		return life.StreamHere, stream.Code
	case errors.As(err, new(*kcp.PeerLostError)):
		return life.PeerLost, 0
	case errors.As(err, new(*kcp.NoAnswerError)):
		return life.NoAnswer, 0
	case errors.As(err, new(*kcp.SizeError)):
		return life.TooLarge, 0
	case errors.As(err, new(*kcp.SocketError)):
		return life.SocketEnded, 0
	}
	for known, is := range classes {
		if errors.Is(err, known) {
			return is, 0
		}
	}
	return life.Unknown(err), 0
}

var classes = map[error]life.Class{
	kcp.ErrReset: life.ResetByPeer, kcp.ErrRefused: life.Refused, kcp.ErrPeerClosed: life.PeerClosed,
	kcp.ErrNotDelivered: life.NotDelivered, net.ErrClosed: life.ClosedHere, kcp.ErrMessageAbandoned: life.Abandoned,
	kcp.ErrMemoryPressure: life.NoMemory, kcp.ErrWouldBlock: life.WouldBlock, kcp.ErrInUse: life.InGroup,
	kcp.ErrLegacyPeer: life.Legacy, os.ErrDeadlineExceeded: life.Timeout, context.DeadlineExceeded: life.Timeout,
	errors.ErrUnsupported: life.Legacy, kcp.ErrStreamClosed: life.StreamHere,
	// A message ends with the session, or the session within a message.
	io.ErrUnexpectedEOF: life.PeerClosed,
}

// End is a session as life.End.
type End struct {
	Conn *kcp.Conn
	Path time.Duration // the least time of Ping

	mu      sync.Mutex
	streams map[uint32]*kcp.Stream
}

// Stream returns that of an ID.
func (e *End) Stream(id uint32) *kcp.Stream {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.streams[id]
}

func (e *End) has(s *kcp.Stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.streams == nil {
		e.streams = make(map[uint32]*kcp.Stream)
	}
	e.streams[s.ID()] = s
}

// Accepted takes a stream that the peer has opened.
func (e *End) Accepted(p *life.Party, s *kcp.Stream) {
	e.has(s)
	o := s.Options()
	p.Has(s.ID(), life.StreamOptions{Unordered: o.Unordered, Priority: o.Priority, Lifetime: o.MaxLifetime, Retransmits: o.MaxRetransmits})
}

// Write implements life.End.
func (e *End) Write(id uint32, b []byte, waits bool) (int, error) {
	switch s := e.Stream(id); {
	case id == 0 && waits:
		return e.Conn.Write(b)
	case id == 0:
		return e.Conn.TryWrite(b)
	case waits:
		return s.Write(b)
	default:
		return s.TryWrite(b)
	}
}

// SendMessage implements life.End.
func (e *End) SendMessage(id uint32, b []byte, o life.Options, waits bool) error {
	var options *kcp.MessageOptions
	if !waits || o.Done != nil || o.Step.Lifetime() > 0 || o.Step.Retransmits() != 0 {
		options = &kcp.MessageOptions{NoWait: !waits, Lifetime: o.Step.Lifetime(), MaxRetransmits: o.Step.Retransmits(), Done: o.Done}
	}
	if id == 0 {
		return e.Conn.WriteMessage(b, options)
	}
	return e.Stream(id).WriteMessage(b, options)
}

// SendDatagram implements life.End.
func (e *End) SendDatagram(b []byte) error { return e.Conn.SendDatagram(b) }

// OpenStream implements life.End.
func (e *End) OpenStream(o life.StreamOptions, waits bool) (uint32, error) {
	options := &kcp.StreamOptions{Unordered: o.Unordered, Priority: o.Priority, MaxLifetime: o.Lifetime, MaxRetransmits: o.Retransmits}
	open := e.Conn.TryOpenStream
	if waits {
		open = func(o *kcp.StreamOptions) (*kcp.Stream, error) { return e.Conn.OpenStream(context.Background(), o) }
	}
	s, err := open(options)
	if err != nil {
		return 0, err
	}
	e.has(s)
	return s.ID(), nil
}

// EndStream implements life.End.
func (e *End) EndStream(id uint32, how life.Op, code uint64) error {
	s := e.Stream(id)
	switch {
	case id == 0:
		return e.Conn.CloseWrite()
	case how == life.Fin:
		return s.CloseWrite()
	case how == life.StopRead:
		return s.CancelRead(code)
	case how == life.StopWrite:
		return s.CancelWrite(code)
	case how == life.Reset:
		return s.Reset(code)
	default:
		return s.Close()
	}
}

// Close implements life.End.
func (e *End) Close(how life.Op) error {
	switch how {
	case life.Reason:
		return e.Conn.CloseWithError(Code, Text)
	case life.Abort:
		return e.Conn.Abort(0, "")
	default:
		return e.Conn.Close()
	}
}

// Read implements life.End. It waits.
func (e *End) Read(id uint32, b []byte, messages bool) (int, error) {
	switch s := e.Stream(id); {
	case id == 0 && messages:
		return e.Conn.ReadMessage(b)
	case id == 0:
		return e.Conn.Read(b)
	case messages:
		return s.ReadMessage(b)
	default:
		return s.Read(b)
	}
}

// Class implements life.End.
func (e *End) Class(err error) (life.Class, uint64) { return Class(err) }

// Set implements life.End.
func (e *End) Set(s life.Step) error {
	c, stream := e.Conn, e.Stream(s.ID)
	switch s.Op {
	case life.Rate:
		return c.SetMaxRate(s.N)
	case life.Window:
		return c.SetWindow(1+s.N, 1+4*s.N)
	case life.MTU:
		return nil // paths differ
	case life.Buffer:
		return c.SetWriteBuffer(s.N)
	case life.Deadline:
		at := time.Time{}
		if s.N > 0 {
			at = time.Now().Add(time.Duration(s.N) * time.Millisecond)
		}
		if stream != nil {
			return stream.SetDeadline(at)
		}
		return c.SetDeadline(at)
	case life.Ping:
		begun := time.Now()
		took, err := c.Ping(context.Background())
		if after := time.Since(begun); err == nil && (took < e.Path || took > after) {
			return fmt.Errorf("a Ping says %v after %v", took, after)
		}
		return err
	case life.Flush:
		return c.Flush(context.Background())
	case life.Look:
		c.Stats()
		c.NextMessageSize()
		c.WriteReady()
		if stream != nil {
			stream.Stats()
			stream.NextMessageSize()
			_ = stream.Err()
		}
	}
	return nil
}
