package kcp

import (
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
)

// What a session does as a member of a Group.

// takeEvent fills in the next event of the session, whose place in a group is m. What
// is of streams and what is not take turns.
func (c *Conn) takeEvent(m *groupMember, memory *groupMemory, e *Event) gotWhat {
	*e = Event{Conn: c}
	if c.session.State().Left {
		return c.takeEnd(m, e, net.ErrClosed)
	}
	for range 2 {
		got, ofStream := gotNothing, !m.ofStream
		if ofStream {
			got = c.takeStream(m, memory, e)
		} else {
			got = c.takeArrived(m, memory, e)
		}
		if m.ofStream = ofStream; got != gotNothing {
			return got
		}
	}
	return c.takeState(m, e)
}

// takeArrived is takeEvent for what has arrived outside of streams. Datagrams and data
// take turns.
func (c *Conn) takeArrived(m *groupMember, memory *groupMemory, e *Event) gotWhat {
	if w := c.session.Waiting(); w.Datagrams > 0 && !(m.datagram && w.Data) {
		m.datagram = true
		e.Kind = EventDatagram
		e.Data, _ = c.session.ReceiveDatagram()
		return gotEvent
	}
	return c.takeData(m, memory, e)
}

// takeState is takeEvent for ends, and for room, after all that has arrived.
func (c *Conn) takeState(m *groupMember, e *Event) gotWhat {
	if err := c.session.ReadEnd(m.peerDone); err != nil && c.session.State().Retired {
		return c.takeEnd(m, e, err)
	} else if err != nil && !m.peerDone && c.session.Waiting().EOF {
		m.peerDone = true
		e.Kind, e.Err = EventEOF, c.opError("read", err)
		return gotEvent
	}
	if c.writableLocked(m) {
		m.wantsRoom = false
		e.Kind = EventWritable
		return gotEvent
	}
	return gotNothing
}

// takeData is takeEvent for messages and data of the stream.
func (c *Conn) takeData(m *groupMember, memory *groupMemory, e *Event) gotWhat {
	if !c.session.Waiting().Data {
		return gotNothing
	}
	n := 0
	if c.session.State().Message {
		size := c.session.NextMessage()
		if size < 0 {
			return gotNothing
		}
		free := memory.free(size, size)
		if free == nil && size > 0 {
			return gotNoMemory
		}
		n, _ = c.session.ReadMessage(free) // the message is there, and fits
		e.Kind = EventMessage
	} else {
		free := memory.free(leastRun, groupRun)
		if free == nil {
			return gotNoMemory
		}
		if n = c.session.Read(free, 0); n == 0 {
			return gotNothing // it went to a Read that has yet to return
		}
		e.Kind = EventData
	}
	e.Data = memory.take(n)
	m.datagram = false
	return gotEvent
}

// takeEnd fills in the last event of the session, and takes it out of the group.
func (c *Conn) takeEnd(m *groupMember, e *Event, err error) gotWhat {
	c.leaveGroup()
	m.group.set.Remove(m)
	e.Kind, e.Err = EventEnded, c.opError("read", err)
	return gotEvent
}

// hasEvent reports whether takeEvent may have an event for m.
func (c *Conn) hasEvent(m *groupMember) bool {
	s, w := c.session.State(), c.session.Waiting()
	return s.Left || s.Retired || w.Data || w.Datagrams > 0 || w.EOF && !m.peerDone || c.writableLocked(m) ||
		m.streams && (c.calls != nil && c.calls.ready.First() != nil || w.Streams > 0)
}

// writableLocked reports whether EventWritable is due for m. A write that came in the
// middle of another would be refused again until that is done.
func (c *Conn) writableLocked(m *groupMember) bool {
	return m.wantsRoom && !m.refused && c.session.Room() > 0
}

// joinGroup makes m the session's place in a group. What streams have is there for
// it, and their calls that wait return.
func (c *Conn) joinGroup(m *groupMember) {
	c.io.member = m
	if m.streams {
		c.session.WakeStreams()
	}
}

// leaveGroup ends what joinGroup has begun.
func (c *Conn) leaveGroup() {
	m, t := c.io.member, c.calls
	c.io.member = nil
	if t == nil {
		return
	}
	t.reported = t.reported || m.streams
	c.endTurnsLocked()
}

// endTurnsLocked ends the turns of all streams, except ends that wait for the next group.
func (c *Conn) endTurnsLocked() {
	t := c.calls
	var ended container.List[Stream]
	for s := t.ready.First(); s != nil; s = t.ready.First() {
		s.noEventsLocked()
		if s.endWaitsLocked() {
			ended.Add(turnOf, s, false)
		}
	}
	t.ready = ended
}

// endWaitsLocked reports whether the stream is over, and out of the table, and its end
// is to be an event of the group that the session joins next.
func (s *Stream) endWaitsLocked() bool {
	c := s.conn
	return c.calls.reported && !c.session.State().Left && !s.closed && !s.eof && s.state.Gone() && s.state.ReadEnd() != nil
}

// reportsStreams reports whether a group has the events of the session's streams.
func (c *Conn) reportsStreams() bool { return c.io.member != nil && c.io.member.streams }

// turnOf returns the place of a stream in Streams.ready.
func turnOf(s *Stream) *container.Links[Stream] { return &s.turn }

// takeStream is takeEvent for the streams of the session, if the group has their
// events. All that the peer has opened come first, so no other event of a stream
// comes before its EventStream.
func (c *Conn) takeStream(m *groupMember, memory *groupMemory, e *Event) gotWhat {
	if !m.streams {
		return gotNothing
	}
	if c.session.Waiting().Streams > 0 {
		s, _ := c.session.AcceptStream()
		e.Kind, e.Stream = EventStream, streamOf(s)
		return gotEvent
	}
	if c.calls == nil {
		return gotNothing
	}
	ready := &c.calls.ready
	for s := ready.First(); s != nil; s = ready.First() {
		ready.Remove(turnOf, s)
		got := s.takeEventLocked(memory, e)
		if got == gotNoMemory {
			ready.Add(turnOf, s, true)
		}
		if got != gotNothing {
			return got
		}
	}
	return gotNothing
}

// noteEventLocked lets the group look for an event of the stream, or the next group for
// its end.
func (s *Stream) noteEventLocked() {
	c := s.conn
	if s.closed || !c.reportsStreams() {
		s.stopAwaitingLocked()
		if s.endWaitsLocked() {
			c.calls.ready.Add(turnOf, s, false)
		}
		return
	}
	c.calls.ready.Add(turnOf, s, false)
	c.io.member.wake()
}

// takeEventLocked fills in the next event of the stream.
func (s *Stream) takeEventLocked(memory *groupMemory, e *Event) gotWhat {
	if s.closed {
		s.stopAwaitingLocked()
		return gotNothing
	}
	if got := s.takeDataLocked(memory, e); got != gotNothing {
		return got
	}
	if !s.eof && s.state.ReadEnd() != nil {
		s.eof = true
		err := s.conn.session.StreamReadEnd(&s.state)
		e.Kind, e.Stream, e.Err = EventEOF, s, s.conn.opError("read", err)
		s.goOnLocked()
		return gotEvent
	}
	if s.writer == nil || s.refused {
		return gotNothing
	}
	w := session.WriteCall{Stream: &s.state, Late: s.writeDeadline.err(), Closed: s.closed}
	writable := s.conn.session.Writable(&w)
	s.stopAwaitingLocked()
	if !writable {
		s.awaitRoomLocked(w.Half)
		return gotNothing
	}
	e.Kind, e.Stream = EventWritable, s
	return gotEvent
}

// takeDataLocked is takeEventLocked for what has arrived.
func (s *Stream) takeDataLocked(memory *groupMemory, e *Event) gotWhat {
	size, ok := s.state.NextMessage()
	if !ok {
		return gotNothing
	}
	n, kind := 0, EventData
	if s.messages || s.conn.session.State().Message {
		kind = EventMessage
		free := memory.free(size, size)
		if free == nil && size > 0 {
			return gotNoMemory
		}
		n = s.conn.session.ReadStream(&s.state, free, 0, true)
	} else {
		free := memory.free(leastRun, groupRun)
		if free == nil {
			return gotNoMemory
		}
		if n = s.conn.session.ReadStream(&s.state, free, 0, false); n == 0 {
			return gotNothing // empty messages, and nothing else
		}
	}
	e.Kind, e.Stream, e.Data = kind, s, memory.take(n)
	s.goOnLocked()
	return gotEvent
}

// goOnLocked gives the stream a further turn if it may have a further event.
func (s *Stream) goOnLocked() {
	_, more := s.state.NextMessage()
	if more || s.writer != nil || !s.eof && s.state.ReadEnd() != nil {
		s.conn.calls.ready.Add(turnOf, s, false)
	}
}

// awaitRoomLocked makes EventWritable follow once there is room, if the group has
// the events of streams.
func (s *Stream) awaitRoomLocked(half streams.Half) {
	if s.writer == nil && s.conn.reportsStreams() {
		s.writer = s.state.Wait(half, true)
	}
}

// noEventsLocked records that the group has no further event of the stream.
func (s *Stream) noEventsLocked() {
	s.conn.calls.ready.Remove(turnOf, s)
	s.stopAwaitingLocked()
}

// stopAwaitingLocked ends what awaitRoomLocked has begun.
func (s *Stream) stopAwaitingLocked() {
	if w := s.writer; w != nil {
		s.writer = nil
		w.Done()
	}
}

// batched is what Group.Send has queued in a session, but not sent yet.
type batched uint8

const (
	batchedData batched = 1 << iota
	batchedDatagram
)

// tryQueue locks c.mu, and what a Write would hold, and queues what o has for the
// session, or for a stream of it, as far as there is room. It reports whether the
// session is to be flushed, and is not to be flushed by another call of Send.
func (c *Conn) tryQueue(o *Outgoing) (flush bool) {
	writing := &c.writing
	if o.Stream != nil {
		writing = &o.Stream.writing
	}
	c.mu.Lock()
	defer c.mu.Unlock()       // what was queued leaves with flushBatched
	free := writing.TryLock() // else a Write waits for room, or is about to
	if free {
		defer writing.Unlock()
	}
	what := batchedData
	if o.Datagram && o.Stream == nil {
		what = batchedDatagram
		if o.Err = c.session.SendDatagram(o.Data); o.Err == nil {
			o.N = len(o.Data)
		}
	} else {
		w := session.WriteCall{B: o.Data, Free: free, Message: c.session.State().Message || o.Stream != nil && o.Stream.messages, Begun: c.ep.now()}
		if o.Lifetime != 0 {
			options := &MessageOptions{Lifetime: o.Lifetime}
			w.Message, w.Options = true, (*session.MessageOptions)(options)
			o.Err = options.check()
		}
		if o.Err == nil {
			o.Err = c.tryWrite(o.Stream, &w)
		}
		o.N = w.N
	}
	if o.Err != nil && o.Err != ErrWouldBlock {
		o.Err = c.opError("write", o.Err)
	}
	if o.Err != nil && o.N == 0 {
		return false
	}
	flush = c.io.batched == 0
	c.io.batched |= what
	return flush
}

// flushBatched locks c.mu and leaves what Group.Send has queued to b.
func (c *Conn) flushBatched(b *sendBatch) {
	c.mu.Lock()
	defer c.unlockWith(b)
	what := c.io.batched
	c.io.batched = 0
	if what&batchedData != 0 && !c.session.State().Ended {
		c.session.Push()
	}
}

// Outgoing is one message, datagram or run of bytes for Group.Send.
type Outgoing struct {
	// Conn is the session to write to, in the group or not. It may be nil with Stream.
	Conn *Conn
	// Stream, if not nil, is the stream to write to, of any session. Conn and Datagram
	// are ignored then.
	Stream *Stream
	// Data is written to the session or stream. Send copies it. It is one message, which
	// may be empty, if the session has Config.MessageMode, Lifetime is set, or the stream
	// is unordered or not reliable.
	Data []byte
	// Datagram sends Data as an unreliable datagram; see Conn.SendDatagram.
	Datagram bool
	// Lifetime, if not 0, is MessageOptions.Lifetime of the message. A session takes it
	// only with Config.MessageMode; datagrams ignore it.
	Lifetime time.Duration

	// N is set by Send: the number of bytes of Data that were queued; of a message or a
	// datagram all or none.
	N int
	// Err is set by Send: why not all of Data was queued; nil if it was.
	Err error
}

// Send writes to many sessions without waiting: it queues all elements of the batch, in
// order, and then sends what was queued, each session's in as few packets as possible. It
// sets N and Err of each element, and returns how many have a nil Err. Err is as for
// WriteMessage with NoWait, Write and SendDatagram, and syscall.EINVAL without Conn and
// Stream. After ErrWouldBlock EventWritable follows if the session is in the group.
func (g *Group) Send(batch []Outgoing) (queued int) {
	touched, out := g.takeTouched(), sendBatches.Get().(*sendBatch)
	defer func() { // as the rest, even if code of the caller's panics
		g.mu.Lock()
		defer g.mu.Unlock()
		g.touched = touched[:0]
	}()
	defer func() {
		out.send()
		sendBatches.Put(out)
	}()
	defer func() {
		each(touched, func(c *Conn) { c.flushBatched(out) })
		clear(touched)
	}()
	for i := range batch {
		o := &batch[i]
		o.N, o.Err = 0, nil
		c := o.Conn
		if o.Stream != nil {
			c = o.Stream.conn
		}
		if c == nil {
			o.Err = g.opError("write", errNoTarget)
		} else if c.tryQueue(o) {
			touched = append(touched, c)
		}
		if o.Err == nil {
			queued++
		}
	}
	return queued
}

// sendBatches has the working memory of Send.
var sendBatches = sync.Pool{New: func() any { return new(sendBatch) }}

// takeTouched returns an empty list for a call of Send.
func (g *Group) takeTouched() []*Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.touched
	g.touched = nil
	return list
}
