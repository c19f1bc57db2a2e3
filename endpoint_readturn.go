package kcp

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Who reads a socket. An endpoint has a goroutine for it, but where one session
// has the socket to itself, a call of that session that would wait reads it
// instead (the leader of the leader/followers pattern): what arrives then is
// not handed from goroutine to goroutine, and from processor to processor. The
// session answers it once the application has had its say, or wants to wait
// again: then mostly there is nothing left to answer, and to set timers for.
//
//	            a call is woken            nobody leads for handoverGrace
//	the loop --------------------> nobody ---------------------------> the loop
//	                                | ^
//	                 a call waits   v |   it has what it waits for
//	                               the call

// handoverGrace is how long a socket may go without anybody who reads it, while the
// application is between two calls; after many calls up to twice that. It delays
// what arrives then, and the answer to what came before.
const handoverGrace = time.Millisecond

// maxHoldoff bounds how many wake-ups the loop keeps the socket for, after
// the application has not come back in time.
const maxHoldoff = 1024

// minStreak is how many times in a row calls have to lead for it to have been
// worth the while.
const minStreak = 8

// readerKind is who leads.
type readerKind uint8

const (
	loopReads readerKind = iota
	nobodyReads
	callReads
)

// readTurn is whose turn it is to read a socket.
type readTurn struct {
	possible bool          // calls may lead
	back     chan struct{} // the loop waits here while it does not lead

	mu          sync.Mutex
	who         readerKind
	lastReader  *Conn // a call of it has led last, and may have left the answer to later
	timer       *time.Timer
	armed       bool
	armedAt     int // claims
	stopped     bool
	holdoff     int // wake-ups to let pass before calls may lead
	nextHoldoff int // the next reluctance
	acquired    int // since the loop yielded
}

func (t *readTurn) init() {
	t.possible = true
	t.back = make(chan struct{}, 1)
	t.nextHoldoff = 1
}

// handOver has the loop give the lead to a call that it has just woken. The loop
// then waits for back.
func (t *readTurn) handOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	if t.holdoff > 0 {
		t.holdoff--
		return false
	}
	t.acquired, t.armedAt = 0, -1 // whatever the timer is set for, this has just begun
	t.leaveOpenLocked()
	return true
}

// acquire gives the lead to a call, if nobody has it.
func (t *readTurn) acquire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who != nobodyReads || t.stopped {
		return false
	}
	t.who, t.lastReader = callReads, nil
	t.acquired++
	return true
}

// release takes the lead from a call of c. It goes back to the loop at once
// where no call is to follow.
func (t *readTurn) release(c *Conn, follow bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastReader = c
	if !follow || t.stopped {
		t.reclaimLocked()
		return
	}
	t.leaveOpenLocked()
}

// leaveOpenLocked leaves the lead to the next call, for some time. mu is held.
func (t *readTurn) leaveOpenLocked() {
	t.who = nobodyReads
	if !t.armed {
		t.armLocked()
	}
}

// armLocked sets the timer, which is left to fire when a call comes: that is rarer
// than calls are. mu is held.
func (t *readTurn) armLocked() {
	t.armed, t.armedAt = true, t.acquired
	if t.timer == nil {
		t.timer = time.AfterFunc(handoverGrace, t.expire)
	} else {
		t.timer.Reset(handoverGrace)
	}
}

// expire gives the lead back to the loop where no call has come.
func (t *readTurn) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = false
	if t.who != nobodyReads {
		return
	}
	if t.acquired != t.armedAt { // a call came, and has gone again
		t.armLocked()
		return
	}
	if t.acquired >= minStreak {
		t.nextHoldoff = 1
	}
	t.holdoff = t.nextHoldoff
	t.nextHoldoff = min(2*t.nextHoldoff, maxHoldoff)
	t.reclaimLocked()
}

// recall gives the lead back to the loop. mu is held.
func (t *readTurn) reclaimLocked() {
	t.who = loopReads
	t.back <- struct{}{}
}

// stop lets no call lead any more. The one that does is not waited for.
func (t *readTurn) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.stopped = true
	if t.who == nobodyReads {
		t.reclaimLocked()
	}
}

// await is how the loop waits for the lead, after yield. It returns the session
// that may have left its answer to later.
func (t *readTurn) await() *Conn {
	<-t.back
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.lastReader
	t.lastReader = nil
	return c
}

// interrupted reports whether err only means that somebody wants whoever reads
// the socket to look up, and undoes the deadline that has made it so.
func (e *Endpoint) interrupted(s *shard, err error) bool {
	if !s.lead.possible || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	select {
	case <-e.socket.done: // this deadline is for good
		return false
	default:
	}
	_ = s.pc.SetReadDeadline(time.Time{})
	select {
	case <-e.socket.done: // and may have come just before it was undone
		_ = s.pc.SetReadDeadline(time.Unix(1, 0))
		return false
	default:
	}
	return true
}

// single reports whether there is but one session that an application can have
// business with. Strangers who open others do not take the lead from its calls.
func (e *Endpoint) single() bool { return e.load.sessions.Load()-e.load.halfOpen.Load() == 1 }

// callsMayRead reports whether calls may read pc. They have to be interrupted by a
// read deadline, which not every net.PacketConn out there knows.
func callsMayRead(pc net.PacketConn) bool {
	switch pc.(type) {
	case *net.UDPConn, interface{ interruptible() }:
		return true
	}
	return false
}
