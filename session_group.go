package kcp

import (
	"net"
)

// What a session does as a member of a Group.

// takeEvent fills in the next event of the session, whose place in a group is
// m. Datagrams and data of the stream take turns. It may release c.mu, if it
// has taken data.
func (c *Conn) takeEvent(m *groupMember, memory *groupMemory, e *Event) gotWhat {
	*e = Event{Conn: c}
	if c.closing.closed {
		return c.takeEnd(m, e, net.ErrClosed)
	}
	if q := c.in.datagrams; q != nil && len(q.waiting) > 0 && !(m.datagram && c.kcp.readable()) {
		m.datagram = true
		e.Kind, e.Data = EventDatagram, q.pop()
		c.accountRead(len(e.Data))
		return gotEvent
	}
	if got := c.takeData(m, memory, e); got != gotNothing {
		return got
	}
	ended := c.closing.retired
	if err := c.readEnd(); err != nil && ended {
		if m.peerDone && c.closing.err != ErrPeerClosed {
			err = c.closing.err
			c.io.errReported = true
		}
		return c.takeEnd(m, e, err)
	} else if err != nil && c.atEOF(m) {
		m.peerDone = true
		e.Kind, e.Err = EventEOF, c.opError("read", err)
		return gotEvent
	}
	if m.wantsRoom && c.room() > 0 {
		m.wantsRoom = false
		e.Kind = EventWritable
		return gotEvent
	}
	return gotNothing
}

// takeData is takeEvent for messages and data of the stream.
func (c *Conn) takeData(m *groupMember, memory *groupMemory, e *Event) gotWhat {
	if !c.kcp.readable() {
		return gotNothing
	}
	n := 0
	if c.messageMode() {
		size := c.kcp.PeekSize()
		if size < 0 {
			return gotNothing
		}
		free := memory.free(size, size)
		if free == nil && size > 0 {
			return gotNoMemory
		}
		n, _ = c.kcp.Recv(free) // the message is there, and fits
		e.Kind = EventMessage
	} else {
		free := memory.free(leastRun, groupRun)
		if free == nil {
			return gotNoMemory
		}
		if n = c.kcp.recvBytes(free); n == 0 {
			return gotNothing // it went to a Read that has yet to return
		}
		e.Kind = EventData
	}
	e.Data = memory.take(n)
	m.datagram = false
	c.afterRead(n)
	return gotEvent
}

// atEOF reports whether EventEOF is due, if the peer's data has ended. If the
// peer has closed the session, that ends in the same step.
func (c *Conn) atEOF(m *groupMember) bool {
	return !m.peerDone && c.closing.state == stateOpen && c.allReceived() && !c.hs.peerClosed
}

// takeEnd fills in the last event of the session, and takes it out of the
// group.
func (c *Conn) takeEnd(m *groupMember, e *Event, err error) gotWhat {
	c.io.member = nil
	m.group.set.Remove(m)
	e.Kind, e.Err = EventEnded, c.opError("read", err)
	return gotEvent
}

// hasEvent reports whether takeEvent may have an event for m.
func (c *Conn) hasEvent(m *groupMember) bool {
	return c.closing.closed || c.closing.retired || c.kcp.readable() ||
		c.in.datagrams != nil && len(c.in.datagrams.waiting) > 0 ||
		c.atEOF(m) || m.wantsRoom && c.room() > 0
}

// batched is what Group.Send has queued in a session, but not sent yet.
type batched uint8

const (
	batchedData batched = 1 << iota
	batchedDatagram
)

// tryQueue locks c.writing and c.mu, and queues what o has for the session, as
// far as there is room. It reports whether the session is to be flushed, and is
// not to be flushed by another call of Send.
func (c *Conn) tryQueue(o *Outgoing) (flush bool) {
	free := c.writing.TryLock() // else a Write waits for room, or is about to
	if free {
		defer c.writing.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	what := batchedDatagram
	var err error
	if o.Datagram {
		if err = c.queueDatagram(o.Data); err == nil {
			o.N = len(o.Data)
		}
	} else {
		what = batchedData
		o.N, err = c.tryWrite(o.Data, free, c.messageMode(), nil)
	}
	o.Err = err
	if err != nil && err != ErrWouldBlock && !o.Datagram {
		o.Err = c.opError("write", err)
	}
	if err != nil && o.N == 0 {
		return false
	}
	flush = c.io.batched == 0
	c.io.batched |= what
	return flush
}

// tryWrite queues as much of b as there is room for; as a message, with options or
// without, all of it, or nothing. If free is not set, there is no room, as a Write
// comes first.
func (c *Conn) tryWrite(b []byte, free, message bool, options *MessageOptions) (n int, err error) {
	if err := c.cannotWrite(); err != nil {
		return 0, err
	}
	if message && c.room() <= 0 {
		c.dropSpentMessages()
	}
	for message || n < len(b) {
		if !free || c.room() <= 0 {
			if m := c.io.member; m != nil {
				m.wantsRoom = true
			}
			return n, ErrWouldBlock
		}
		if message && options != nil {
			if err := c.queueMessageLocked(b, options, c.ep.now()); err != nil {
				return 0, err
			}
			return len(b), nil
		}
		if message {
			return c.kcp.Send(b)
		}
		queued, err := c.queue(b[n:])
		n += queued
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// flushBatched locks c.mu and leaves what Group.Send has queued to b.
func (c *Conn) flushBatched(b *sendBatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what := c.io.batched
	c.io.batched = 0
	if c.closing.state == stateEnded {
		return
	}
	if what&batchedData != 0 {
		c.flushWrites()
	}
	c.writePacketsWith(b)
}
