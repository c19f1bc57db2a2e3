package kcp

import (
	"context"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wakeup"
)

// notifier is what the calls of a session wait on: a condition variable with
// Conn.mu as its lock, whose Broadcast also reaches the call that reads the
// socket (see package readturn). Conn.mu guards it.
type notifier struct {
	cond    sync.Cond // L is the *connLock of the session
	count   uint32    // broadcasts, modulo 2^32
	waiting int32     // calls that wait, without the one that reads the socket
}

// connLock is a Conn as the sync.Locker of its notifiers, which find the session by it.
type connLock Conn

func (l *connLock) Lock()   { l.mu.Lock() }
func (l *connLock) Unlock() { l.mu.Unlock() }

func (n *notifier) init(c *Conn) { n.cond.L = (*connLock)(c) }

// conn returns the session.
func (n *notifier) conn() *Conn { return (*Conn)(n.cond.L.(*connLock)) }

// Broadcast lets all calls that wait for n try again. c.mu is held.
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
		c.io.woken = true
		// Of several calls of streams, none takes the read turn.
		c.io.wokeWaiter = c.io.wokeWaiter || c.calls == nil || c.calls.waiting <= 1
		switch held := c.io.wakes&holdWakes != 0; {
		case held && n == &c.io.canRead:
			c.io.wakes |= heldRead
		case held && n == &c.io.canWrite:
			c.io.wakes |= heldWrite
		default:
			n.cond.Broadcast()
		}
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
// does not wait, until that is done or fails. It releases c.mu between two calls, so try
// has to look at everything again. end, if not nil, is called last with c.mu held, also
// if code of the application's panics.
func (c *Conn) await(call blocking, try func() (pause, error), end func()) error {
	var stop func() bool  // of the context; nil: it is not watched yet
	var watched *notifier // which its end wakes
	var timer *time.Timer // nil: none yet
	var at time.Duration  // when it fires
	c.mu.Lock()
	locked := true
	defer func() {
		if !locked {
			c.mu.Lock()
		}
		defer c.unlock()
		if stop != nil {
			stop()
		}
		if timer != nil {
			timer.Stop()
		}
		if end != nil {
			end()
		}
	}()
	for {
		p, err := try()
		if err != nil {
			return c.opError(call.op, err)
		} else if p.on == nil && !p.again {
			return nil
		}
		if call.ctx != nil && watched != p.on && call.ctx.Done() != nil {
			if stop != nil {
				stop()
			}
			stop, watched = context.AfterFunc(call.ctx, p.on.wake), p.on
		}
		if p.until != at {
			at = p.until
			if wait := at - c.ep.now(); timer == nil {
				timer = time.AfterFunc(wait, p.on.wake)
			} else {
				timer.Reset(wait)
			}
		}
		s, wait := c.beforeWait(p)
		switch {
		case wait:
			if call.stream != nil {
				c.calls.waiting++
			}
			p.on.waiting++
			p.on.cond.Wait()
			p.on.waiting--
			c.io.woken = false
			if c.ep.Env != nil {
				c.ep.Env.Woken(p.on.cond.L, c.Conv(), p.on.place(call.stream))
			}
			if call.stream != nil {
				c.calls.waiting--
			}
			continue
		case s == nil:
			locked = false
			c.unlock()
		default:
			locked = false
			count := p.on.count
			c.mu.Unlock()
			c.readWhile(p.on, count, s)
		}
		c.mu.Lock()
		locked = true
	}
}

// wake locks the session's mu, and is Broadcast.
func (n *notifier) wake() {
	c := n.conn()
	c.mu.Lock()
	defer c.unlock()
	n.Broadcast()
}

// beforeWait sends a reply that is pending. It reports whether the call may wait, as
// nothing is to be written before. If it returns a socket the call has the read turn, and
// reads it.
func (c *Conn) beforeWait(p pause) (s *shard, wait bool) {
	if c.calls != nil && p.on == &c.calls.canAccept {
		c.letGoOn()
		return nil, true // for as long as the session lasts, while others read and reply
	}
	c.letGoOn() // what has been sent may be the reply
	pending := c.io.reply == replyLeft
	if pending {
		c.io.reply = noReply
		c.session.Respond(c.ep.now(), c.io.woken)
		c.letGoOn()
	}
	if pending || p.again || c.session.ToWrite(session.Nobody) {
		return nil, false
	}
	if s = c.ep.takeReadTurn(); s != nil {
		c.io.readerWaitsFor = p.on
	}
	return s, s == nil
}

// place returns the place of a call among the session's calls that are woken at once.
func (n *notifier) place(s *Stream) wakeup.Place {
	switch c := n.conn(); {
	case s != nil:
		return wakeup.AtStream(uint64(s.state.ID()), n == &s.canWrite)
	case n == &c.io.canRead:
		return wakeup.AtRead
	case n == &c.io.canWrite:
		return wakeup.AtWrite
	}
	return wakeup.AtAcceptStream
}

// readWhile reads the socket, as the leader of the leader/followers pattern, until n has
// another count of broadcasts, or what has arrived is for the calling Read or Write. It
// runs without c.mu, and ends the read turn.
func (c *Conn) readWhile(n *notifier, count uint32, s *shard) {
	done := false
	defer func() {
		if !done { // code of the application's has panicked
			c.mu.Lock()
			defer c.unlock()
			c.endReading(s, false)
		}
	}()
	for !done {
		end := c.ep.readForCall(s, c)
		done = c.afterReading(n, count, s, end)
	}
}

// afterReading locks c.mu after a batch of input that a call has read, as readWhile says.
// end says that the read turn has to end. It reports whether that has ended.
func (c *Conn) afterReading(n *notifier, count uint32, s *shard, end bool) bool {
	c.mu.Lock()
	defer c.unlock()
	follow := c.ep.Single() && (c.calls == nil || c.calls.waiting == 0)
	switch {
	case end:
		follow = false
	case c.io.reply != noReply && c.mayDeferReply(n):
		c.io.reply = replyLeft
	default:
		if c.io.reply != noReply {
			c.io.reply = noReply
			c.session.Respond(c.ep.now(), c.io.woken)
		}
		c.letGoOn()
		if n.count == count {
			c.io.readerWaitsFor = n
			return false
		}
	}
	c.endReading(s, follow && !c.session.State().Ended)
	return true
}

// endReading ends the read turn of a call. follow says that another call is expected.
func (c *Conn) endReading(s *shard, follow bool) {
	c.io.readerWaitsFor = nil
	c.ep.endReadTurn(s, c, follow)
	if c.othersWait() {
		c.io.canRead.Broadcast() // one of them takes the read turn
		c.io.canWrite.Broadcast()
	}
}

// mayDeferReply reports whether the reply to what has arrived may be left to
// the call that waits for n: it can go on, and no other call waits, be it for
// the session's Group.
func (c *Conn) mayDeferReply(n *notifier) bool {
	switch {
	case c.othersWait() || c.io.member != nil:
		return false
	case n == &c.io.canRead:
		return c.session.Waiting().Any
	}
	return c.session.Room() > 0
}

// othersWait reports whether calls wait besides the one that reads the socket.
func (c *Conn) othersWait() bool { return c.io.canRead.waiting+c.io.canWrite.waiting > 0 }
