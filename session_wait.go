package kcp

import (
	"sync"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/inturn"
)

// notifier is what the calls of a session wait on: a condition variable with
// Conn.mu as its lock, whose Broadcast also reaches the call that reads the
// socket (see package readturn). Conn.mu guards it.
type notifier struct {
	cond    sync.Cond // L is the *connLock of the session
	count   uint32    // broadcasts, modulo 2^32
	waiting int32     // calls in Wait, without the one that reads the socket
}

// connLock is a Conn as the sync.Locker that is its mu, so that a notifier
// finds the session through its lock.
type connLock Conn

func (l *connLock) Lock()   { l.mu.Lock() }
func (l *connLock) Unlock() { l.mu.Unlock() }

func (n *notifier) init(c *Conn) { n.cond.L = (*connLock)(c) }

// conn returns the session.
func (n *notifier) conn() *Conn { return (*Conn)(n.cond.L.(*connLock)) }

// Broadcast wakes all calls in Wait. c.mu is held.
func (n *notifier) Broadcast() {
	c := n.conn()
	n.count++
	if w := c.calls; w != nil && w.room != nil && n == &c.io.canWrite {
		c.announceRoom(w)
	}
	if m := c.io.member; m != nil && (n == &c.io.canRead || m.wantsRoom) {
		m.wake()
	}
	if n.waiting > 0 {
		// Of several calls of streams, none takes the read turn.
		c.io.wokeWaiter = c.io.wokeWaiter || c.calls == nil || c.calls.waiting <= 1
		n.wakeWaiting()
	}
	if c.io.readerWaitsFor == n {
		c.io.readerWaitsFor = nil
		c.ep.interruptCall()
	}
}

// heldWakes is which notifiers of a session have a wake-up of their waiting calls
// held back.
type heldWakes uint8

const (
	holdWakes heldWakes = 1 << iota // wake-ups are held back
	heldRead                        // some of canRead were
	heldWrite                       // some of canWrite were
)

// wakeWaiting wakes the waiting calls, unless wake-ups are held back.
func (n *notifier) wakeWaiting() {
	c := n.conn()
	switch {
	case c.io.wakes&holdWakes == 0:
	case n == &c.io.canRead:
		c.io.wakes |= heldRead
		return
	case n == &c.io.canWrite:
		c.io.wakes |= heldWrite
		return
	}
	n.cond.Broadcast()
}

// takeWakes ends holding wake-ups back, and returns those that were, for
// wakeHeld.
func (c *Conn) takeWakes() heldWakes {
	held := c.io.wakes
	c.io.wakes = 0
	return held
}

// wakeHeld carries out wake-ups that were held back. It is best called without
// c.mu, which a call that is woken locks at once.
func (c *Conn) wakeHeld(held heldWakes) {
	if held&heldRead != 0 {
		c.io.canRead.cond.Broadcast()
	}
	if held&heldWrite != 0 {
		c.io.canWrite.cond.Broadcast()
	}
}

// Wait returns after the next Broadcast, or earlier; the caller checks its
// condition again. If a reply is pending, Wait sends it and returns at once. If
// the read turn is free, Wait takes it and reads the socket. Otherwise it
// blocks. c.mu is held, and released meanwhile.
func (n *notifier) Wait() {
	if !n.conn().readLocked(n) {
		n.block(nil)
	}
}

// waitLocked is n.Wait for a call of the stream. While several calls of streams wait, the
// read goroutine reads: a call would mostly read what is for others.
func (s *Stream) waitLocked(n *notifier) {
	if c := s.conn; !c.readLocked(n) {
		c.calls.waiting++
		n.block(s)
		c.calls.waiting--
	}
}

// readLocked writes what was collected, with a reply that is pending, or reads the
// socket if the read turn is free. It reports whether it did one of them. The lock is
// released meanwhile.
func (c *Conn) readLocked(n *notifier) bool {
	pending := c.step.replyPending
	if pending {
		c.respondLocked(c.ep.now())
	}
	if c.writePackets() || pending {
		return true
	}
	s := c.ep.takeReadTurn()
	if s != nil {
		c.readWhile(n, s)
	}
	return s != nil
}

// block waits for the next Broadcast, and does not read the socket. s is the stream of
// the call; nil: it is one of the session.
func (n *notifier) block(s *Stream) {
	n.conn().letGoOn()
	n.waiting++
	n.cond.Wait()
	n.waiting--
	if c := n.conn(); c.ep.env != nil {
		c.ep.env.Woken(n.cond.L, c.entry.Conv, n.place(s))
	}
}

// place returns the place of a call among those of the session that are woken at once.
func (n *notifier) place(s *Stream) inturn.Place {
	switch c := n.conn(); {
	case s != nil:
		return inturn.OfStream(uint64(s.state.ID()), n == &s.canWrite)
	case n == &c.io.canRead:
		return inturn.Read
	case n == &c.io.canWrite:
		return inturn.Write
	}
	return inturn.AcceptStream
}

// readWhile reads the socket, as the leader of the leader/followers pattern,
// until n is broadcast or what has arrived is for the calling Read or Write.
func (c *Conn) readWhile(n *notifier, s *shard) {
	follow := false
	defer func() {
		c.io.readerWaitsFor = nil
		c.ep.endReadTurn(s, c, follow)
		if c.othersWait() {
			c.wakeAll() // one of them takes the read turn
		}
	}()
	for count := n.count; n.count == count; {
		c.io.readerWaitsFor = n
		end := false
		c.unlocked(func() { end = c.ep.readForCall(s, c) })
		c.io.readerWaitsFor = nil
		if end {
			return
		}
		if c.step.respondPending && c.mayDeferReply(n) {
			c.step.replyPending = true
			break
		}
		if c.step.respondPending {
			c.respondLocked(c.ep.now())
			c.writePackets()
		}
	}
	follow = c.closing.Phase < closing.Ended && c.ep.single() && (c.calls == nil || c.calls.waiting == 0)
}

// mayDeferReply reports whether the reply to what has arrived may be left to
// the call that waits for n: it can go on, and no other call waits, be it for
// the session's Group.
func (c *Conn) mayDeferReply(n *notifier) bool {
	switch {
	case c.othersWait() || c.io.member != nil:
		return false
	case n == &c.io.canRead:
		return c.readable()
	}
	return c.room() > 0
}

// othersWait reports whether calls wait besides the one that reads the socket.
func (c *Conn) othersWait() bool { return c.io.canRead.waiting+c.io.canWrite.waiting > 0 }
