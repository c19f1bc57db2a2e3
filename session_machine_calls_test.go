package kcp

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
)

// What the calls of applications have a session do, without the waiting.

// queue has w queued as far as there is room, and sends it.
func (e *machineEnd) queue(w writeCall) (n int, queued bool) {
	if w.free, w.begun = true, e.w.now; e.conn.writeEnd(w.stream) != nil {
		return 0, false
	}
	err := e.conn.write(&w)
	if err != nil && err != ErrWouldBlock && !errors.Is(err, ErrMessageTooLarge) {
		e.w.t.Fatalf("queue: %v", err)
	}
	if w.stream != nil && !w.message {
		w.stream.SetCut(err != nil)
	}
	e.conn.push()
	e.carryOut()
	return w.n, err == nil
}

// tryWrite queues as many bytes as there is room for, and returns their number.
func (e *machineEnd) tryWrite(b []byte) (n int) {
	if !e.conn.messageMode() {
		n, _ = e.queue(writeCall{b: b})
	}
	return n
}

// sendMessage queues a message if there is room.
func (e *machineEnd) sendMessage(b []byte, options *MessageOptions) (queued bool) {
	if e.conn.messageMode() {
		_, queued = e.queue(writeCall{b: b, message: true, options: options})
	}
	return queued
}

// read reads bytes, or a message, and returns io.EOF after the last. No data and no
// error: there is none yet.
func (e *machineEnd) read() ([]byte, error) {
	c := e.conn
	if c.closing.Caller != closing.Uses {
		return nil, net.ErrClosed
	}
	n := c.kcp.PeekSize()
	if n < 0 && c.kcp.receiver().readable() {
		n = 1 // the first bytes of a message that is not complete
	}
	if n < 0 {
		if c.allReceived() && c.closing.err != ErrMemoryPressure && !c.kcp.receiver().queued() {
			return nil, io.EOF
		}
		return nil, c.reason(c.closing.err)
	}
	b := make([]byte, n)
	if c.messageMode() {
		if _, err := c.kcp.Recv(b); err != nil {
			e.w.t.Fatalf("Recv: %v", err)
		}
	} else {
		b = b[:c.kcp.recvBytes(b)]
	}
	c.afterRead(len(b))
	e.carryOut()
	return b, nil
}

// sendDatagram sends an unreliable datagram, and reports whether it was taken.
func (e *machineEnd) sendDatagram(b []byte) bool {
	err := e.conn.queueDatagram(b)
	e.carryOut()
	return err == nil
}

// receiveDatagram returns the oldest datagram; nil: there is none.
func (e *machineEnd) receiveDatagram() (b []byte) {
	c := e.conn
	if q := c.in.datagrams; q.Len() > 0 && c.closing.Caller == closing.Uses {
		b = q.Pop()
		c.accountRead(len(b))
		e.carryOut()
	}
	return b
}

// closeWrite is Conn.CloseWrite once the peer's kind is known.
func (e *machineEnd) closeWrite() bool {
	c := e.conn
	if c.writeEnd(nil) != nil || c.hs.Peer < opening.Extended {
		return false
	}
	c.dropSpentMessages()
	c.closing.Fin()
	c.step.ready |= writers
	c.kick(e.w.now)
	e.carryOut()
	return true
}

// close is Conn.Close, which does not wait.
func (e *machineEnd) close(background bool) {
	c := e.conn
	if c.closing.Caller != closing.Uses {
		return
	}
	c.stopCalls()
	if c.closing.Phase >= closing.Ended {
		c.dropReceived()
		c.kcp.Compact()
		c.account()
	} else {
		c.startClose(background, true)
	}
	e.carryOut()
}

// abort is Conn.Abort.
func (e *machineEnd) abort() {
	e.conn.forget(net.ErrClosed)
	e.carryOut()
}

// settable reports whether settings have an effect.
func (e *machineEnd) settable() bool {
	return e.conn.closing.Caller == closing.Uses && e.conn.closing.Phase < closing.Ended
}

// setMTU is Conn.SetMTU.
func (e *machineEnd) setMTU(n int) {
	if c := e.conn; e.settable() {
		c.ownSettings().mtu = n
		c.plpmtu.Restart()
		c.outgoing.dropProbe()
		c.kcp.configure(machineSettings{mtu: c.firstMTU() - c.shared.overhead.total})
		if c.hs.capabilities&capPMTU != 0 {
			c.enablePieces()
		}
		e.carryOut()
	}
}

// setWindow is Conn.SetWindow.
func (e *machineEnd) setWindow(send, receive int) {
	if c := e.conn; e.settable() {
		c.kcp.configure(machineSettings{sendWindow: send, receiveWindow: receive})
		c.push()
		e.carryOut()
	}
}

// setMaxRate is Conn.SetMaxRate.
func (e *machineEnd) setMaxRate(bytes int) {
	if c := e.conn; e.settable() {
		c.setClock(e.w.now)
		c.capRate(bytes)
		if c.streams != nil {
			c.streams.WakeWriter()
		}
		c.push()
		e.carryOut()
	}
}

// openStream is Conn.TryOpenStream. It returns nil if none may be opened.
func (e *machineEnd) openStream(p streams.Params) *machineStream {
	c := e.conn
	if known, err := c.peerTakesStreams(e.w.now); !known || err != nil {
		return nil
	}
	t := c.streamTable()
	s, err := t.Open(p)
	if err != nil {
		return nil
	}
	if t.openAt == 0 {
		t.openAt = e.w.now + openDelay
	}
	c.wake(t.openAt)
	return e.addStream(s)
}

// acceptStream returns a stream that the peer has opened; nil: there is none.
func (e *machineEnd) acceptStream() *machineStream {
	c := e.conn
	if c.streams == nil || c.closing.Caller != closing.Uses {
		return nil
	}
	s := c.streams.Accept()
	if s == nil {
		return nil
	}
	return e.addStream(s)
}

// addStream lists a stream that the application has got.
func (e *machineEnd) addStream(s *streams.Stream) *machineStream {
	m := s.Owner.(*machineStream)
	e.streams[s.ID()] = m
	return m
}

// writeStream queues as much of b as there is room for, and returns how much.
func (e *machineEnd) writeStream(s *machineStream, b []byte) (n int) {
	if !s.closed {
		n, _ = e.queue(writeCall{stream: &s.state, b: b})
	}
	return n
}

// sendStream queues a message with the options of the stream if there is room.
func (e *machineEnd) sendStream(s *machineStream, b []byte) (queued bool) {
	if !s.closed {
		_, queued = e.queue(writeCall{stream: &s.state, b: b, message: true})
	}
	return queued
}

// readStream reads a message, or bytes, of a stream. No data and no error: there is none
// yet.
func (e *machineEnd) readStream(s *machineStream, messages bool) (b []byte, err error) {
	c := e.conn
	if s.closed || c.closing.Caller != closing.Uses {
		return nil, net.ErrClosed
	}
	n, more := s.state.NextMessage()
	switch {
	case messages && more:
		b = make([]byte, n)
		s.state.ReadMessage(b)
	case !messages:
		b = make([]byte, 4096)
		b = b[:s.state.Read(b)]
		more = len(b) > 0
	}
	if !more {
		if err := s.state.ReadEnd(); err != nil {
			s.state.ReadDone()
			c.account()
			return nil, err
		}
		return nil, c.reason(c.closing.err)
	}
	c.accountRead(len(b))
	if s.state.CreditDue() && c.closing.Phase == closing.Open {
		c.push()
	}
	e.carryOut()
	return b, nil
}

// endStream ends a stream, in one of the ways that there are.
func (e *machineEnd) endStream(s *machineStream, how streamEnding) {
	switch c := e.conn; {
	case how == endsWriting:
		s.state.WriteDone()
		if s.closed || e.conn.writeEnd(&s.state) != nil {
			e.conn.account()
			return
		}
		s.state.Finish()
	case s.closed || c.closing.Caller != closing.Uses && how != endsReset:
		return
	case how == endsBoth:
		s.closed = true
		s.state.StopReading(0)
		s.state.Finish()
	case how == endsReset:
		s.closed = true
		s.state.Reset(7)
	case how == endsCancelRead:
		s.state.StopReading(8)
	case how == endsCancelWrite:
		s.state.CancelWrite(9)
	}
	e.conn.kickStreams()
	e.carryOut()
}

// streamEnding is a call that ends a stream.
type streamEnding uint8

const (
	endsWriting streamEnding = iota
	endsBoth
	endsReset
	endsCancelRead
	endsCancelWrite
)

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
