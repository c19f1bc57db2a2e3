package kcp

import (
	"context"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/inturn"
)

// notifier is what the calls of a session wait on: a condition variable with
// Conn.mu as its lock, whose Broadcast also reaches the call that reads the
// socket (see package readturn). Conn.mu guards it.
type notifier struct {
	cond    sync.Cond // L is the *connLock of the session
	count   uint32    // broadcasts, modulo 2^32
	waiting int32     // calls in block, without the one that reads the socket
}

// connLock is a Conn as the sync.Locker that is its mu, so that a notifier
// finds the session through its lock.
type connLock Conn

func (l *connLock) Lock()   { l.mu.Lock() }
func (l *connLock) Unlock() { l.mu.Unlock() }

func (n *notifier) init(c *Conn) { n.cond.L = (*connLock)(c) }

// conn returns the session.
func (n *notifier) conn() *Conn { return (*Conn)(n.cond.L.(*connLock)) }

// Broadcast wakes all calls in pause. c.mu is held.
func (n *notifier) Broadcast() {
	c := n.conn()
	n.count++
	if w := c.watch; w != nil && w.room != nil && n == &c.io.canWrite {
		c.announceRoom(w)
	}
	if m := c.io.member; m != nil && (n == &c.io.canRead || m.wantsRoom) {
		m.wake()
	}
	if n.waiting > 0 {
		// Of several calls of streams, none takes the read turn.
		c.io.wokeWaiter = c.io.wokeWaiter || c.streams == nil || c.streams.waiting <= 1
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

// blocking is what await has to know of a call.
type blocking struct {
	op     string          // of the *net.OpError that says why the call fails
	ctx    context.Context // the call tries again when it is done; nil: it has none
	stream *Stream         // whose call it is; nil: of the session itself
}

// pause is what a call does before it tries again. The zero value: it is done.
type pause struct {
	on    *notifier     // it waits for the next Broadcast; nil: it does not wait
	until time.Duration // but no longer than that, since the epoch; 0: however long
	again bool          // it writes what it has collected, and tries again at once
}

// await is all calls of the application that may wait. It locks c.mu and calls try, which
// does not wait, until that is done or fails. It pauses between two calls, with c.mu
// released, so try has to look at everything again. end, if not nil, is called last, also
// if code of the application's panics.
func (c *Conn) await(call blocking, try func() (pause, error), end func()) error {
	var alarm struct {
		stop  func() bool   // of the context; nil: it is not watched yet
		timer *time.Timer   // nil: none yet
		at    time.Duration // when it fires
	}
	c.mu.Lock()
	defer c.unlock()
	defer func() {
		if alarm.stop != nil {
			alarm.stop()
		}
		if alarm.timer != nil {
			alarm.timer.Stop()
		}
		if end != nil {
			end()
		}
	}()
	for {
		p, err := try()
		switch {
		case err != nil:
			return c.opError(call.op, err)
		case p.again:
			c.writePackets()
			continue
		case p.on == nil:
			return nil
		}
		if call.ctx != nil && alarm.stop == nil && call.ctx.Done() != nil {
			alarm.stop = context.AfterFunc(call.ctx, p.on.wake)
		}
		if p.until != alarm.at {
			alarm.at = p.until
			if wait := p.until - c.ep.now(); alarm.timer == nil {
				alarm.timer = time.AfterFunc(wait, p.on.wake)
			} else {
				alarm.timer.Reset(wait)
			}
		}
		c.pause(p.on, call.stream)
	}
}

// wake locks the session's mu, and wakes all calls in pause.
func (n *notifier) wake() {
	c := n.conn()
	c.mu.Lock()
	defer c.unlock()
	n.Broadcast()
}

// pause returns after the next Broadcast of n, or earlier. It writes what was collected,
// with a reply that is pending, and returns at once if there was some. Otherwise it reads
// the socket if the read turn is free, or blocks. s is as in blocking. c.mu is held, and
// released meanwhile.
func (c *Conn) pause(n *notifier, s *Stream) {
	if c.streams != nil && n == &c.streams.canAccept {
		n.block(s) // for as long as the session lasts, while others read and reply
		return
	}
	pending := c.io.replyPending
	if pending {
		c.respondLocked(c.ep.now())
	}
	if c.writePackets() || pending {
		return
	}
	shard := c.ep.takeReadTurn()
	switch {
	case shard != nil:
		c.readWhile(n, shard)
	case s == nil:
		n.block(nil)
	default:
		// While several calls of streams wait, the read goroutine reads: a call would
		// mostly read what is for others.
		c.streams.waiting++
		n.block(s)
		c.streams.waiting--
	}
}

// block waits for the next Broadcast, and does not read the socket. s is the stream of
// the call; nil: it is one of the session.
func (n *notifier) block(s *Stream) {
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
		if c.io.respondPending && c.mayDeferReply(n) {
			c.io.replyPending = true
			break
		}
		if c.io.respondPending {
			c.respondLocked(c.ep.now())
			c.writePackets()
		}
	}
	follow = c.closing.state != stateEnded && c.ep.single() && (c.streams == nil || c.streams.waiting == 0)
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
