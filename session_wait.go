package kcp

import (
	"sync"
	"time"
)

// notifier is what calls of a session wait for, under its lock: a condition
// variable whose Broadcast also reaches the call that reads the socket.
type notifier struct {
	cond    sync.Cond
	conn    *Conn
	count   uint32
	waiting int32 // calls, but for the one that leads
}

func (n *notifier) init(c *Conn) { n.cond.L, n.conn = &c.mu, c }

// Broadcast has all calls that wait look again.
func (n *notifier) Broadcast() {
	c := n.conn
	n.count++
	if n.waiting > 0 {
		c.io.wokeWaiter = true
		n.cond.Broadcast()
	}
	if c.io.readerWaitsFor == n {
		c.io.readerWaitsFor = nil
		// The reading call returns with a time-out.
		_ = c.ep.socket.shards[0].pc.SetReadDeadline(time.Unix(1, 0))
	}
}

// Wait waits for the next Broadcast, or for reason to look again.
func (n *notifier) Wait() {
	c := n.conn
	if c.io.replyPending {
		c.respondLocked(c.ep.now())
		return
	}
	s := &c.ep.socket.shards[0]
	if s.lead.possible && c.ep.single() && s.lead.acquire() {
		c.readWhile(n, s)
		return
	}
	n.waiting++
	n.cond.Wait()
	n.waiting--
}

// readWhile reads the socket until there is something new for a call that waits
// for n.
func (c *Conn) readWhile(n *notifier, s *shard) {
	follow := false
	defer func() {
		s.lead.release(c, follow)
		if c.othersWait() {
			c.wakeAll() // one of them follows
		}
	}()
	for count := n.count; n.count == count; {
		c.io.readerWaitsFor = n
		suspect := false
		c.unlocked(func() {
			_, ok := c.ep.readOnce(s, c)
			suspect = !ok || s.failures >= manyFailures
		})
		c.io.readerWaitsFor = nil
		if suspect {
			return // the loop has the patience
		}
		if c.io.respondPending && c.settled(n) {
			c.io.replyPending = true
			break
		}
		if c.io.respondPending {
			c.respondLocked(c.ep.now())
		}
	}
	follow = c.closing.state != stateEnded && c.ep.single()
}

// settled reports whether what has arrived is something for a Read or Write that
// waits for n, and nobody else waits for any of it.
func (c *Conn) settled(n *notifier) bool {
	switch {
	case c.othersWait():
		return false
	case n == &c.io.canRead:
		return c.readable()
	}
	return c.room() > 0
}

// othersWait reports whether calls wait for whoever leads.
func (c *Conn) othersWait() bool { return c.io.canRead.waiting+c.io.canWrite.waiting > 0 }
