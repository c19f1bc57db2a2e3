package session

import (
	"cmp"
	"errors"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// What the calls of applications have a session do, without the waiting: life.End.

var _ life.End = (*machineEnd)(nil)

// queue has w queued as far as there is room, and sends it.
func (e *machineEnd) queue(w WriteCall, id uint32) (n int, err error) {
	if s := e.streams[id]; id != 0 {
		w.Stream, w.Closed = &s.state, s.closed
	}
	w.Free, w.Begun = true, e.w.now
	if err = e.conn.Write(&w); w.N > 0 || w.Message && err == nil {
		e.conn.Push()
	}
	e.carryOut()
	return w.N, err
}

func (e *machineEnd) Write(id uint32, b []byte, _ bool) (int, error) {
	return e.queue(WriteCall{B: b}, id)
}

func (e *machineEnd) SendMessage(id uint32, b []byte, o life.Options, _ bool) error {
	options := &MessageOptions{Lifetime: o.Step.Lifetime(), MaxRetransmits: o.Step.Retransmits(), Done: o.Done}
	_, err := e.queue(WriteCall{B: b, Message: true, Options: options}, id)
	return err
}

func (e *machineEnd) SendDatagram(b []byte) error {
	err := e.conn.SendDatagram(b)
	e.carryOut()
	return err
}

func (e *machineEnd) Read(id uint32, b []byte, messages bool) (n int, err error) {
	c := e.conn
	defer e.carryOut()
	switch {
	case c.State().Left:
		return 0, net.ErrClosed
	case id == life.Datagrams:
		d, ok := c.ReceiveDatagram()
		if !ok {
			return 0, ErrWouldBlock
		}
		return copy(b, d), nil
	case id != 0:
		return e.readStream(e.streams[id], b, messages)
	case c.messageMode():
		if c.NextMessage() >= 0 {
			return c.ReadMessage(b)
		}
	default:
		n = c.Read(b, 0)
	}
	if n > 0 {
		return n, nil
	}
	return 0, cmp.Or(c.ReadEnd(false), error(ErrWouldBlock))
}

func (e *machineEnd) readStream(s *machineStream, b []byte, messages bool) (n int, err error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	if size, more := s.state.NextMessage(); messages && more {
		return e.conn.ReadStream(&s.state, b[:size], 0, true), nil
	} else if !messages {
		n = e.conn.ReadStream(&s.state, b, 0, false)
	}
	if n > 0 {
		return n, nil
	}
	return 0, cmp.Or(e.conn.StreamReadEnd(&s.state), error(ErrWouldBlock))
}

// OpenStream is Conn.TryOpenStream.
func (e *machineEnd) OpenStream(o life.StreamOptions, _ bool) (uint32, error) {
	s, err := e.conn.OpenStream(&OpenCall{Params: streams.Params{
		Unordered: o.Unordered, Priority: int8(o.Priority), Retransmits: uint16(o.Retransmits), Lifetime: uint32(o.Lifetime.Milliseconds()),
	}})
	e.carryOut()
	if err != nil {
		return 0, err
	}
	return e.addStream(s), nil
}

// acceptStreams takes the streams that the peer has opened.
func (e *machineEnd) acceptStreams(p *life.Party) {
	for c := e.conn; !c.State().Left && c.Waiting().Streams > 0; {
		s, _ := c.AcceptStream()
		o := s.Params()
		p.Has(e.addStream(s), life.StreamOptions{
			Unordered: o.Unordered, Priority: int(o.Priority), Retransmits: int(o.Retransmits), Lifetime: time.Duration(o.Lifetime) * time.Millisecond,
		})
	}
}

// addStream lists a stream that the application has got.
func (e *machineEnd) addStream(s *streams.Stream) uint32 {
	e.streams[s.ID()] = s.Owner.(*machineStream)
	return s.ID()
}

func (e *machineEnd) EndStream(id uint32, how life.Op, code uint64) error {
	c, s := e.conn, e.streams[id]
	defer e.carryOut()
	if id == 0 {
		waits, _, err := c.CloseWrite(false)
		if waits {
			err = ErrWouldBlock
		}
		return err
	}
	ways := map[life.Op]StreamEnd{
		life.Fin: FinishStream, life.EndStream: CloseStream, life.Reset: ResetStream, life.StopRead: StopReading, life.StopWrite: StopWriting,
	}
	if how == life.EndStream && (s.closed || c.State().Left) {
		return net.ErrClosed
	}
	err := c.EndStream(&s.state, ways[how], code, s.closed)
	s.closed = s.closed || how == life.EndStream || how == life.Reset
	return err
}

// Close is Conn.Close, which does not wait, or Conn.Abort.
func (e *machineEnd) Close(how life.Op) error {
	_, _ = e.conn.Close(&CloseCall{Abrupt: how == life.Abort, Background: how == life.Background})
	e.carryOut()
	return nil
}

// Set is what changes settings of a session.
func (e *machineEnd) Set(s life.Step) error {
	to := map[life.Op]Change{life.MTU: {Of: OfMTU, N: s.N}, life.Window: {Of: OfWindow, N: s.N, M: s.N * 4}, life.Rate: {Of: OfRate, N: s.N}}[s.Op]
	_ = e.conn.Set(&to)
	e.carryOut()
	return nil
}

// Class implements life.End.
func (e *machineEnd) Class(err error) (life.Class, uint64) {
	var reset *StreamError
	if errors.As(err, &reset) {
		return life.StreamReset, reset.Code
	}
	for known, is := range machineErrors {
		if errors.Is(err, known) {
			return is, 0
		}
	}
	if errors.As(err, new(*PeerLostError)) {
		return life.PeerLost, 0
	}
	return life.Unknown(err), 0
}

var machineErrors = map[error]life.Class{
	io.EOF: life.EOF, ErrReset: life.ResetByPeer, ErrPeerClosed: life.PeerClosed, ErrNotDelivered: life.NotDelivered,
	net.ErrClosed: life.ClosedHere, streams.ErrAbandoned: life.Abandoned, ErrMemoryPressure: life.NoMemory,
	ErrWouldBlock: life.WouldBlock, ErrLegacyPeer: life.Legacy, ErrRefused: life.Refused,
	machine.ErrMessageTooLarge: life.TooLarge, ErrDatagramTooLarge: life.TooLarge, errors.ErrUnsupported: life.Legacy, ErrStreamClosed: life.StreamHere,
}

// dueAgain returns when the session has something to do next, as if it had never asked
// for a wake-up; 0: it has not.
func (e *machineEnd) dueAgain() time.Duration {
	c := e.conn
	was, left := c.timers, c.step.left
	c.timers.dueAt, c.timers.wakeAt = 0, 0
	c.schedule(e.w.now)
	due := c.timers.dueAt
	c.timers, c.step.left = was, left
	return due
}
