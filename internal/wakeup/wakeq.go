// Package wakeup says who goes on, and when: elements at times of their choice, members
// of a poll group that may have events, the call whose turn it is to read a socket, calls
// of the application's code. In virtual time it puts in order what goes on at one instant.
package wakeup

import (
	"sync"
	"time"
)

// A Queue wakes many elements at times of their choice with one timer of the runtime.
//
// It has at most one wake-up for each element. While no element asks for one
// it costs nothing: the timer is not set, and there is a goroutine only between
// wake-ups that follow each other soon. An element keeps its place in the queue
// itself. So a wake-up is moved or removed without a search, and takes no memory
// but its entry in a slice.

// Queue is a priority queue of wake-ups, with the timer that carries them out.
// Init is called before any other method. The others are safe for concurrent
// use. No code of the caller's runs while the lock is held, except index.
type Queue[T any] struct {
	epoch time.Time           // what times are measured from; does not change
	index func(T) *int32      // where an element keeps its place; does not change
	turn  func()              // called without mu held; does not change; nil: none
	wake  func(T)             // called without mu held; does not change
	late  func(time.Duration) // called without mu held; does not change; nil: none

	mu      sync.Mutex // guards what follows, and what index points to
	heap    []wakeUp[T]
	timer   *time.Timer   // nil before the first wake-up
	armedAt time.Duration // when timer fires, or waiter if there is a goroutine that waits; 0: neither
	firesAt time.Duration // the same, but not before it was set
	waiter  *time.Timer   // what a goroutine that stays waits for; nil before the first
	end     chan struct{} // closed by Stop; nil before there is such a goroutine
	waits   bool          // there is such a goroutine; timer is not set then
	stopped bool
	spare   []T  // empty: the memory of what takeDue returns; nil: in use, or none yet
	lag     *Lag // of the wake-ups so far; nil: none

	probe   *time.Timer   // nil before the first look at the lag
	probeAt time.Duration // when probe is to fire; 0: it is not set
	looked  time.Duration // when the lag was last asked for
}

// wakeUp is the request of one element.
type wakeUp[T any] struct {
	at   time.Duration
	elem T
}

// Init makes q ready for use. Times are since epoch.
//
// index returns the address of the int32 in an element that the queue keeps its
// place in, counted from 1; 0 means that it has none. It is 0 at first, and the
// queue's lock guards it. index is called with that lock held, and does no more
// than to return the address.
//
// wake is called for an element when its time has come, on a goroutine of its
// own and without the lock. Before that late is called with how late the timer was,
// unless it is nil. turn, unless it is nil, returns when the elements that are due may
// be taken: a program that is to run the same way again needs an instant at which
// nobody calls Set.
func (q *Queue[T]) Init(epoch time.Time, index func(T) *int32, turn func(), wake func(T), late func(time.Duration)) {
	q.epoch, q.index, q.turn, q.wake, q.late = epoch, index, turn, wake, late
}

// Set asks for elem to be woken once, at a time, replacing an earlier request.
// After Stop it does nothing.
func (q *Queue[T]) Set(elem T, at time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	if i := int(*q.index(elem)) - 1; i >= 0 {
		q.place(i, wakeUp[T]{at, elem})
	} else {
		q.heap = append(q.heap, wakeUp[T]{})
		q.place(len(q.heap)-1, wakeUp[T]{at, elem})
	}
	q.arm()
}

// Remove withdraws the request of elem, if there is one. A call of wake that has
// begun is not waited for.
func (q *Queue[T]) Remove(elem T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := int(*q.index(elem)) - 1; i >= 0 {
		q.remove(i)
	}
}

// Stop withdraws all requests, for good.
func (q *Queue[T]) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	q.stopped = true
	for _, w := range q.heap {
		*q.index(w.elem) = 0
	}
	q.heap, q.spare = nil, nil
	if q.timer != nil {
		q.timer.Stop()
	}
	if q.probe != nil {
		q.probe.Stop()
	}
	if q.waiter != nil {
		q.waiter.Stop()
		close(q.end)
	}
}

// Idle reports whether there is no request, and the timer is not set.
func (q *Queue[T]) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.heap) == 0 && q.armedAt == 0
}

// arm sets the timer to the earliest request. If it is about to fire, or fires before
// that anyway, it stays, unless it would in less than half of the time: what it costs to
// fire is ten times what it costs to be set. q.mu is held.
func (q *Queue[T]) arm() {
	if len(q.heap) == 0 {
		return
	}
	at := max(q.heap[0].at, 1)
	if q.armedAt == at {
		return
	}
	now := time.Since(q.epoch)
	if q.armedAt != 0 && (q.armedAt <= now || q.armedAt < at && q.armedAt-now >= (at-now)/2) {
		return
	}
	q.armedAt = at
	delay := max(at-now, 0)
	q.firesAt = now + delay
	switch {
	case q.waits:
		q.waiter.Reset(delay)
	case q.timer == nil:
		q.timer = time.AfterFunc(delay, q.fire)
	default:
		q.timer.Reset(delay)
	}
}

// fire wakes the elements that are due. The runtime calls it on a goroutine of
// its own. That stays if the next wake-up is near: a new one would cost more,
// and have to grow its stack again. While it wakes elements, the next wake-up
// can begin on another goroutine, so that a wake that blocks holds up no other.
func (q *Queue[T]) fire() {
	for stays := false; ; stays = true {
		if q.turn != nil {
			q.turn()
		}
		due, late := q.takeDue(stays)
		if q.late != nil {
			q.late(late)
		}
		for _, elem := range due {
			q.wake(elem)
		}
		clear(due)
		if !q.stay(due[:0]) {
			return
		}
		select {
		case <-q.waiter.C:
		case <-q.end:
			return
		}
	}
}

const (
	// maxSpare is the most elements that a queue keeps memory for between two
	// wake-ups, and while it is empty.
	maxSpare = 1024
	// maxStay is how long the goroutine of the last wake-up waits for the next.
	maxStay = 50 * time.Millisecond
)

// stay reports whether the goroutine of fire is to wait for waiter. It takes back
// the memory of what takeDue has returned.
func (q *Queue[T]) stay(spare []T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return false
	}
	if cap(spare) <= maxSpare {
		q.spare = spare
	}
	wait := q.armedAt - time.Since(q.epoch)
	if q.armedAt == 0 || q.waits || wait > maxStay || !q.timer.Stop() {
		return false
	}
	q.waits = true
	if q.waiter == nil {
		q.waiter, q.end = time.NewTimer(wait), make(chan struct{})
	} else {
		q.waiter.Reset(wait)
	}
	return true
}

// takeDue removes the requests that are due, and sets the timer to the next. It
// may run while another call of fire has yet to wake what is due. stayed is set
// for the goroutine that has waited for waiter. late is how late that is.
func (q *Queue[T]) takeDue(stayed bool) (due []T, late time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if stayed {
		q.waits = false
	}
	now := time.Since(q.epoch)
	if q.armedAt != 0 {
		late = max(now-q.firesAt, 0)
		q.recordLocked(late, now)
	}
	q.armedAt = 0
	due, q.spare = q.spare, nil
	for len(q.heap) > 0 && q.heap[0].at <= now {
		due = append(due, q.heap[0].elem)
		q.remove(0)
	}
	q.arm()
	return due, late
}

// recordLocked records that the timer was late by d.
func (q *Queue[T]) recordLocked(d, now time.Duration) {
	if q.lag == nil {
		q.lag = new(Lag)
	}
	q.lag.Record(d, now)
}

// addLag adds how late the wake-ups of the last seconds were.
func (q *Queue[T]) addLag(to *Lag) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lag != nil {
		q.lag.advance(time.Since(q.epoch))
		to.add(q.lag)
	}
}

// The heap has four children a node, which are beside each other in memory. It
// moves few elements for that, of which each has to note its place: with many
// elements that costs the most, as few of them are in a cache. q.mu is held.

// children is how many a node of the heap has.
const children = 4

// put makes w the one at i.
func (q *Queue[T]) put(i int, w wakeUp[T]) {
	q.heap[i] = w
	*q.index(w.elem) = int32(i + 1)
}

// remove removes the one at i.
func (q *Queue[T]) remove(i int) {
	*q.index(q.heap[i].elem) = 0
	last := len(q.heap) - 1
	w := q.heap[last]
	q.heap[last] = wakeUp[T]{}
	q.heap = q.heap[:last]
	if last == 0 && cap(q.heap) > maxSpare {
		q.heap = nil
	}
	if i != last {
		q.place(i, w)
	}
}

// place puts w into the heap, in place of the one at i or where it belongs, which is in
// front of that or behind it.
func (q *Queue[T]) place(i int, w wakeUp[T]) {
	for i > 0 && w.at < q.heap[(i-1)/children].at {
		q.put(i, q.heap[(i-1)/children])
		i = (i - 1) / children
	}
	for {
		first := children*i + 1
		if first >= len(q.heap) {
			break
		}
		child := first
		for j := first + 1; j < min(first+children, len(q.heap)); j++ {
			if q.heap[j].at < q.heap[child].at {
				child = j
			}
		}
		if w.at <= q.heap[child].at {
			break
		}
		q.put(i, q.heap[child])
		i = child
	}
	q.put(i, w)
}
