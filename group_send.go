package kcp

import (
	"sync"
	"time"
)

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
