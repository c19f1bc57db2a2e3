package wakeup

import (
	"sync"
	"time"
)

// A ReadTurn says whose turn it is to read a socket. An endpoint has a read goroutine,
// the loop. When a single session uses the socket, a call of that session that would
// block reads the socket instead, as the leader of the leader/followers pattern. Then
// input is not handed from goroutine to goroutine, and from processor to processor.
//
// Replies to that input are deferred until the application's next call, or
// until the call waits again. That call usually carries the acknowledgement
// itself, so no reply is needed and no timer.
//
//	            a call is woken          no call within Grace
//	the loop --------------------> nobody ---------------------------> the loop
//	                                | ^
//	               a call blocks    v |   it has what it waits for
//	                               a call

// Grace is how long a socket may have no reader while the application is between two
// calls. If there were calls since the timer was set, it is up to twice that. It delays
// input, and the deferred reply to earlier input.
//
// A timer that fires between two calls disturbs them: a thread wakes, and may take the
// work to another processor. So the grace doubles, up to MaxGrace, while calls follow
// each other closely, manyCalls in each Grace, and none reads burstPackets at once. After
// a burst the next is best read while the application takes the first.
const (
	Grace        = time.Millisecond
	MaxGrace     = 8 * Grace
	burstPackets = 4
	manyCalls    = 16
)

// Soon is when Insist repeats an interrupt for the first time. The time then doubles,
// up to Late.
const (
	Soon = time.Millisecond
	Late = 100 * time.Millisecond
)

// maxHoldoff bounds the number of wake-ups for which the loop keeps the socket
// after no call has come in time.
const maxHoldoff = 1024

// If no more than fewCalls calls took the turn within Grace, the next maxStops stop the
// timer.
const (
	fewCalls = 2
	maxStops = 64
)

// minStreak is how many turns calls have to take in a row for handing over to
// have been worthwhile. The hold-off then starts again from 1.
const minStreak = 8

// Reader is who reads the socket.
type Reader uint8

const (
	Loop Reader = iota
	Nobody
	Call
)

// ReadTurn is whose turn it is to read a socket: the loop's or a call's of a session
// of type S. The zero value lets the loop alone read. All methods are safe for
// concurrent use, and call nothing with the lock held but what Insist is given.
type ReadTurn[S any] struct {
	possible bool          // calls may read; immutable after Init
	back     chan struct{} // capacity 1; the loop waits here while it has no turn

	mu          sync.Mutex // guards the fields below
	who         Reader
	lastReader  *S            // session of the last call to read, which may have deferred its reply; nil: none
	timer       *time.Timer   // nil before its first use
	grace       time.Duration // for which timer is set: Grace to MaxGrace
	burst       bool          // burstPackets were read at once since timer was set
	armed       bool          // timer is set
	stops       int           // so many times more Acquire stops the timer
	armedAt     int           // acquired when timer was set; -1: before the present handover
	stopped     bool          // calls may no longer read
	holdoff     int           // wake-ups to let pass before the next handover
	nextHoldoff int           // holdoff after the next handover that ends without a call
	acquired    int           // turns that calls took since the loop handed over
	turns       uint32        // turns that calls took in all, modulo 2^32
}

// Init lets calls read. It comes before all other methods.
func (t *ReadTurn[S]) Init() {
	t.possible = true
	t.back = make(chan struct{}, 1)
	t.nextHoldoff = 1
}

// Who returns who reads the socket.
func (t *ReadTurn[S]) Who() Reader {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.who
}

// Possible reports whether calls may read.
func (t *ReadTurn[S]) Possible() bool { return t.possible }

// HandOver ends the loop's turn in favour of a call that the loop has just
// woken. It reports false if the loop must go on reading. Otherwise the loop
// must call Await.
func (t *ReadTurn[S]) HandOver() bool {
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

// Acquire takes the turn for a call, and reports whether it was free.
func (t *ReadTurn[S]) Acquire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who != Nobody || t.stopped {
		return false
	}
	t.who, t.lastReader = Call, nil
	if t.stops > 0 && t.armed && t.timer.Stop() {
		t.armed = false
		t.stops--
	}
	t.acquired++
	t.turns++
	return true
}

// Release ends the turn of a call of c, which has read so many packets last. If no other
// call is expected to follow, the loop gets it back at once.
func (t *ReadTurn[S]) Release(c *S, packets int, follow bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastReader = c
	t.burst = t.burst || packets >= burstPackets
	if !follow || t.stopped {
		t.reclaimLocked()
		return
	}
	t.leaveOpenLocked()
}

// leaveOpenLocked leaves the turn to the next call, for about Grace.
// t.mu is held.
func (t *ReadTurn[S]) leaveOpenLocked() {
	t.who = Nobody
	if !t.armed {
		t.armLocked()
	}
}

// armLocked sets the timer. While calls follow each other soon, Acquire does not stop
// it: letting it fire now and then costs less. If few do, it is the reverse. t.mu is
// held.
func (t *ReadTurn[S]) armLocked() {
	t.armed, t.armedAt, t.burst = true, t.acquired, false
	if t.timer == nil {
		t.grace = Grace
		t.timer = time.AfterFunc(Grace, t.expire)
	} else {
		t.timer.Reset(t.grace)
	}
}

// expire gives the turn back to the loop if no call has come since armLocked.
func (t *ReadTurn[S]) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = false
	calls := t.acquired - t.armedAt
	if calls <= fewCalls {
		t.stops = maxStops
	}
	if calls >= manyCalls*int(t.grace/Grace) && !t.burst {
		t.grace = min(2*t.grace, MaxGrace)
	} else {
		t.grace = Grace
	}
	if t.who != Nobody {
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
func (t *ReadTurn[S]) reclaimLocked() {
	t.who = Loop
	t.back <- struct{}{}
}

// Stop lets no further call read. It does not wait for the one that is reading.
func (t *ReadTurn[S]) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.stopped = true
	if t.who == Nobody {
		t.reclaimLocked()
	}
}

// Start lets calls read again after Stop.
func (t *ReadTurn[S]) Start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = false
}

// Await blocks the loop after HandOver, until it has the turn again. It returns
// the session that may have deferred its reply, or nil.
func (t *ReadTurn[S]) Await() *S {
	<-t.back
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.lastReader
	t.lastReader = nil
	return c
}

// Insist calls interrupt, with t.mu held, at growing intervals until the call
// that has the turn has left it.
func (t *ReadTurn[S]) Insist(interrupt func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who != Call {
		return
	}
	turn, wait := t.turns, Soon
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.who == Call && t.turns == turn {
			interrupt()
			wait = min(2*wait, Late)
			timer.Reset(wait)
		}
	})
}
