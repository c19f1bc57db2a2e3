package kcp

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// What the calls of applications have a session do, without the waiting: life.End.

var _ life.End = (*machineEnd)(nil)

// queue has w queued as far as there is room, and sends it.
func (e *machineEnd) queue(w writeCall, id uint32) (n int, err error) {
	if s := e.streams[id]; id != 0 {
		if s.closed {
			return 0, net.ErrClosed
		}
		w.stream = &s.state
	}
	w.free, w.begun = true, e.w.now
	if err := e.conn.writeEnd(w.stream); err != nil {
		return 0, err
	}
	err = e.conn.write(&w)
	if w.stream != nil && !w.message {
		w.stream.SetCut(err != nil)
	}
	e.conn.push()
	e.carryOut()
	return w.n, err
}

func (e *machineEnd) Write(id uint32, b []byte, _ bool) (int, error) {
	return e.queue(writeCall{b: b}, id)
}

func (e *machineEnd) SendMessage(id uint32, b []byte, o life.Options, _ bool) error {
	options := &MessageOptions{Lifetime: o.Step.Lifetime(), MaxRetransmits: o.Step.Retransmits(), Done: o.Done}
	_, err := e.queue(writeCall{b: b, message: true, options: options}, id)
	return err
}

func (e *machineEnd) SendDatagram(b []byte) error {
	err := e.conn.queueDatagram(b)
	e.carryOut()
	return err
}

// orNothing returns why there is nothing more to read; ErrWouldBlock: there may be later.
func (c *session) orNothing() error {
	if err := c.reason(c.closing.err); err != nil {
		return err
	}
	return ErrWouldBlock
}

func (e *machineEnd) Read(id uint32, b []byte, messages bool) (n int, err error) {
	c := e.conn
	switch {
	case c.closing.Caller != closing.Uses:
		return 0, net.ErrClosed
	case id == life.Datagrams:
		q := c.in.datagrams
		if q.Len() == 0 {
			return 0, ErrWouldBlock
		}
		n = copy(b, q.Pop())
		c.accountRead(n)
		e.carryOut()
		return n, nil
	case id != 0:
		return e.readStream(e.streams[id], b, messages)
	case c.kcp.PeekSize() < 0 && !c.kcp.receiver().readable():
		if c.allReceived() && c.closing.err != ErrMemoryPressure && !c.kcp.receiver().queued() {
			return 0, c.reason(io.EOF)
		}
		return 0, c.orNothing()
	case c.messageMode():
		n, err = c.kcp.Recv(b)
	default:
		n = c.kcp.recvBytes(b)
	}
	c.afterRead(n)
	e.carryOut()
	return n, err
}

func (e *machineEnd) readStream(s *machineStream, b []byte, messages bool) (n int, err error) {
	c := e.conn
	if s.closed {
		return 0, net.ErrClosed
	}
	size, more := s.state.NextMessage()
	switch {
	case messages && more:
		n = size
		s.state.ReadMessage(b[:n])
	case !messages:
		n = s.state.Read(b)
		more = n > 0
	}
	if !more {
		if err := s.state.ReadEnd(); err != nil {
			s.state.ReadDone()
			c.account()
			return 0, err
		}
		return 0, c.orNothing()
	}
	c.accountRead(n)
	if s.state.CreditDue() && c.closing.Phase == closing.Open {
		c.push()
	}
	e.carryOut()
	return n, nil
}

// OpenStream is Conn.TryOpenStream.
func (e *machineEnd) OpenStream(o life.StreamOptions, _ bool) (uint32, error) {
	c := e.conn
	if known, err := c.peerTakesStreams(e.w.now); !known || err != nil {
		return 0, ErrWouldBlock
	}
	t := c.streamTable()
	s, err := t.Open(streams.Params{
		Unordered: o.Unordered, Priority: int8(o.Priority), Retransmits: uint16(o.Retransmits), Lifetime: uint32(o.Lifetime.Milliseconds()),
	})
	if err != nil {
		return 0, err
	}
	if t.openAt == 0 {
		t.openAt = e.w.now + openDelay
	}
	c.wake(t.openAt)
	return e.addStream(s), nil
}

// acceptStreams takes the streams that the peer has opened.
func (e *machineEnd) acceptStreams(p *life.Party) {
	for c := e.conn; c.streams != nil && c.closing.Caller == closing.Uses; {
		s := c.streams.Accept()
		if s == nil {
			return
		}
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
	if id == 0 {
		return e.closeWrite()
	}
	if how == life.Fin {
		s.state.WriteDone()
		if err := c.writeEnd(&s.state); s.closed || err != nil {
			c.account()
			return err
		}
		s.state.Finish()
	} else if s.closed || c.closing.Caller != closing.Uses && how != life.Reset {
		return net.ErrClosed
	}
	switch how {
	case life.EndStream:
		s.closed = true
		s.state.StopReading(0)
		s.state.Finish()
	case life.Reset:
		s.closed = true
		s.state.Reset(code)
	case life.StopRead:
		s.state.StopReading(code)
	case life.StopWrite:
		s.state.CancelWrite(code)
	}
	c.kickStreams()
	e.carryOut()
	return nil
}

// closeWrite is Conn.CloseWrite once the peer's kind is known.
func (e *machineEnd) closeWrite() error {
	c := e.conn
	if err := c.writeEnd(nil); err != nil {
		return err
	}
	if c.hs.Peer < opening.Extended {
		return ErrWouldBlock
	}
	c.dropSpentMessages()
	c.closing.Fin()
	c.step.ready |= writers
	c.kick(e.w.now)
	e.carryOut()
	return nil
}

// Close is Conn.Close, which does not wait, or Conn.Abort.
func (e *machineEnd) Close(how life.Op) error {
	switch c := e.conn; {
	case how == life.Abort:
		c.forget(net.ErrClosed)
	case c.closing.Caller != closing.Uses:
		return nil
	case c.closing.Phase >= closing.Ended:
		c.stopCalls()
		c.dropReceived()
		c.kcp.Compact()
		c.account()
	default:
		c.stopCalls()
		c.startClose(how == life.Background, true)
	}
	e.carryOut()
	return nil
}

// Set is what changes settings of a session.
func (e *machineEnd) Set(s life.Step) error {
	c := e.conn
	if c.closing.Caller != closing.Uses || c.closing.Phase >= closing.Ended {
		return nil
	}
	switch s.Op {
	case life.MTU:
		c.ownSettings().mtu = s.N
		c.plpmtu.Restart()
		c.outgoing.dropProbe()
		c.kcp.configure(machineSettings{mtu: c.firstMTU() - c.shared.overhead.total})
		if c.hs.capabilities&capPMTU != 0 {
			c.enablePieces()
		}
		c.schedule(e.w.now)
	case life.Window:
		c.kcp.configure(machineSettings{sendWindow: s.N, receiveWindow: s.N * 4})
		c.push()
	case life.Rate:
		c.setClock(e.w.now)
		c.capRate(s.N)
		if c.streams != nil {
			c.streams.WakeWriter()
		}
		c.push()
	}
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
	net.ErrClosed: life.ClosedHere, ErrMessageAbandoned: life.Abandoned, ErrMemoryPressure: life.NoMemory,
	ErrWouldBlock: life.WouldBlock, ErrLegacyPeer: life.Legacy, ErrRefused: life.Refused,
	ErrMessageTooLarge: life.TooLarge, ErrDatagramTooLarge: life.TooLarge, ErrNoStreams: life.Legacy, ErrStreamClosed: life.StreamHere,
}

// dueAgain returns when the session has something to do next, as if it had never asked
// for a wake-up; 0: it has not.
func (e *machineEnd) dueAgain() time.Duration {
	c := e.conn
	was := c.timers
	e.fixed = true
	c.timers.dueAt, c.timers.wakeAt = 0, 0
	c.schedule(e.w.now)
	due := c.timers.dueAt
	c.timers, e.fixed = was, false
	return due
}
