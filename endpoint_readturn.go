package kcp

import (
	"sync"
	"time"
)

// Whose turn it is to read a socket. An endpoint has a read goroutine, the
// loop. When a single session uses the socket, a call of that session that
// would block reads the socket instead, as the leader of the leader/followers
// pattern. Then input is not handed from goroutine to goroutine, and from
// processor to processor.
//
// Replies to that input are deferred until the application's next call, or
// until the call waits again. That call usually carries the acknowledgement
// itself, so no reply is needed and no timer.
//
//	            a call is woken          no call within handoverGrace
//	the loop --------------------> nobody ---------------------------> the loop
//	                                | ^
//	               a call blocks    v |   it has what it waits for
//	                               a call

// handoverGrace is how long a socket may have no reader while the application
// is between two calls. If there were calls since the timer was set, it is up
// to twice that. It delays input, and the deferred reply to earlier input.
const handoverGrace = time.Millisecond

// maxHoldoff bounds the number of wake-ups for which the loop keeps the socket
// after no call has come in time.
const maxHoldoff = 1024

// minStreak is how many turns calls have to take in a row for handing over to
// have been worthwhile. The hold-off then starts again from 1.
const minStreak = 8

// readerKind is who reads the socket.
type readerKind uint8

const (
	loopReads readerKind = iota
	nobodyReads
	callReads
)

// readTurn decides whose turn it is to read a socket: the loop's or a call's.
type readTurn struct {
	possible bool          // calls may read; immutable after init
	back     chan struct{} // capacity 1; the loop waits here while it has no turn

	mu          sync.Mutex // guards the fields below
	who         readerKind
	lastReader  *Conn       // session of the last call to read, which may have deferred its reply; nil: none
	timer       *time.Timer // nil before its first use
	armed       bool        // timer is set
	armedAt     int         // acquired when timer was set; -1: before the present handover
	stopped     bool        // calls may no longer read
	holdoff     int         // wake-ups to let pass before the next handover
	nextHoldoff int         // holdoff after the next handover that ends without a call
	acquired    int         // turns that calls took since the loop handed over
	turns       uint32      // turns that calls took in all, modulo 2^32
}

func (t *readTurn) init() {
	t.possible = true
	t.back = make(chan struct{}, 1)
	t.nextHoldoff = 1
}

// handOver ends the loop's turn in favour of a call that the loop has just
// woken. It reports false if the loop must go on reading. Otherwise the loop
// must call await.
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
	t.acquired, t.armedAt = 0, -1 // so that a timer still set from before does not end this handover
	t.leaveOpenLocked()
	return true
}

// acquire takes the turn for a call, and reports whether it was free.
func (t *readTurn) acquire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who != nobodyReads || t.stopped {
		return false
	}
	t.who, t.lastReader = callReads, nil
	t.acquired++
	t.turns++
	return true
}

// release ends the turn of a call of c. If no other call is expected to follow,
// the loop gets it back at once.
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

// leaveOpenLocked leaves the turn to the next call, for about handoverGrace.
// t.mu is held.
func (t *readTurn) leaveOpenLocked() {
	t.who = nobodyReads
	if !t.armed {
		t.armLocked()
	}
}

// armLocked sets the timer. acquire does not stop it: letting it fire now and
// then costs less than stopping it for each call. t.mu is held.
func (t *readTurn) armLocked() {
	t.armed, t.armedAt = true, t.acquired
	if t.timer == nil {
		t.timer = time.AfterFunc(handoverGrace, t.expire)
	} else {
		t.timer.Reset(handoverGrace)
	}
}

// expire gives the turn back to the loop if no call has come since armLocked.
func (t *readTurn) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = false
	if t.who != nobodyReads {
		return
	}
	if t.acquired != t.armedAt { // a call came, and is done again
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

// reclaimLocked gives the turn back to the loop. t.mu is held.
func (t *readTurn) reclaimLocked() {
	t.who = loopReads
	t.back <- struct{}{}
}

// stop lets no further call read. It does not wait for the one that is reading.
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

// await blocks the loop after handOver, until it has the turn again. It returns
// the session that may have deferred its reply, or nil.
func (t *readTurn) await() *Conn {
	<-t.back
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.lastReader
	t.lastReader = nil
	return c
}

// single reports whether there is only one session. Half-open ones do not
// count, so that anyone who opens some cannot stop calls from reading the
// socket.
func (e *Endpoint) single() bool { return e.load.sessions.Load()-e.load.halfOpen.Load() == 1 }
